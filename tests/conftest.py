import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from fedstrata import fused
from fedstrata.data.store import locked

torch.set_num_threads(1)  # two threads on tiny work collapse when the machine is shared

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")  # how long an example takes says something of the machine alone

os.environ["COLUMNS"] = "100"  # tables look the same wherever the tests run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is slow is left to `make test-slow`, and says so."""
    if "FEDSTRATA_SLOW" not in os.environ:
        for item in items:
            if item.get_closest_marker("slow") is not None:
                item.add_marker(pytest.mark.skip(reason="make test-slow runs these"))


@pytest.fixture(params=["torch", "numba"])
def arithmetic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice: the server works with torch alone, and with the compiled loops however small the model."""
    if request.param == "numba":
        pytest.importorskip("numba")
        monkeypatch.setattr(fused, "SMALLEST", 0)


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script, and what we start inherits it
    signal.signal(signal.SIGINT, signal.default_int_handler)


ROOT = Path(__file__).parents[1]
PACKED = ROOT.parent / "shared" / "data" / "unpack"


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data where FEDSTRATA_DATA says, or unpacked once from beside the checkout."""
    if not os.environ.get("FEDSTRATA_DATA"):
        if not PACKED.exists():
            pytest.skip("no real data here: set FEDSTRATA_DATA to the folder of the published files")
        monkeypatch.setenv("FEDSTRATA_DATA", str(ROOT / ".data"))
        with locked("unpack"):
            subprocess.run([sys.executable, PACKED, ROOT / ".data"], check=True)
