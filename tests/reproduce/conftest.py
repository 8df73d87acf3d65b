"""What tests of tables share."""

from pathlib import Path

import pytest


@pytest.fixture
def where(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, the current one, with the table that the test's module calls TABLE."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "reproduction.toml").write_text(request.module.TABLE)
    return tmp_path
