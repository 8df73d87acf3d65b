"""The tree stays readable."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted(p for d in ("src", "tests", "examples", "benchmarks") for p in (ROOT / d).rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_no_file_is_longer_than_400_lines(path):
    assert len(path.read_text().splitlines()) <= 400


def test_functions_fit_on_a_screen():
    long = {
        f"{p.name}:{f.name}": (f.end_lineno or 0) - f.lineno
        for p in FILES
        for f in ast.walk(ast.parse(p.read_text()))
        if isinstance(f, ast.FunctionDef) and (f.end_lineno or 0) - f.lineno > 50
    }
    assert set(long) <= {"simulate.py:simulate"}, long  # whose half is its list of settings
