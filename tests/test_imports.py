"""Imports point one way: a module imports only what stands before it, in the order of the data flow."""

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import fedstrata

SRC = Path(__file__).parent.parent / "src" / "fedstrata"
ORDER = [
    "version", "errors", "values", "calls", "rng", "toml", "files", "stopping", "threads", "capture", "optim", "layout",
    "tables", "memory", "loops", "kernels", "fused", "updates", "batchnorm", "dropout", "bind", "patches", "products",
    "fold", "windows", "pooled", "precision", "task", "trial", "logistic", "closed", "clients", "data", "partition",
    "probes", "models", "buffers", "proxy", "turns", "hooks", "core", "surgery", "parts", "recipes", "parse", "papers",
    "decisions", "server", "merge", "augment", "faults", "descent", "graphs", "train", "testing", "evaluate",
    "runtimes", "checkpoint", "record", "track", "simulate", "server_step", "experiment", "flower", "deploy", "cost",
    "explain", "lab", "report", "reproduce", "console", "equations", "pages", "public", "__init__", "commands", "cli",
    "__main__",
]  # fmt: skip
LATE = {("optim", "layout")}  # for the name of a type alone


def imported(path: Path) -> set[str]:
    """The modules or packages of fedstrata that a file imports at run time, by their first name."""
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    typing_only = {id(n) for i in ast.walk(tree) if isinstance(i, ast.If) for n in ast.walk(i)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith("fedstrata")
            and id(node) not in typing_only
        ):
            names = (node.module or "").split(".")[1:2] or [a.name for a in node.names]
            found |= {n if (SRC / n).is_dir() or (SRC / f"{n}.py").exists() else "__init__" for n in names}
    return found


def test_every_module_has_its_place():
    here = {p.name if p.is_dir() else p.stem for p in SRC.iterdir() if not p.name.startswith("__pyc")} - {"py"}
    assert here - {"py.typed"} == set(ORDER)


def test_imports_point_one_way():
    for path in SRC.rglob("*.py"):
        here = path.relative_to(SRC).parts[0].removesuffix(".py")
        for other in imported(path) - {here}:
            assert ORDER.index(other) < ORDER.index(here) or (here, other) in LATE, f"{path.name} imports {other}"


def test_parts_do_not_know_who_runs_them():
    for path in (SRC / "parts").rglob("*.py"):
        assert not imported(path) & {"train", "runtimes", "server", "simulate", "server_step", "record"}, path.name


def alone(code: str) -> None:
    """Run this in a process of its own."""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_needs_only_the_light_core():
    """With everything but the core dependencies out of reach, the library still imports."""
    alone(
        "import sys\n"
        "for name in ('pooch', 'flwr', 'ray', 'plotly', 'tensorboard', 'mlflow', 'pandas', 'scipy.stats', 'pytest',\n"
        "             'numba'):\n"
        "    sys.modules[name] = None\n"
        "import fedstrata.public, fedstrata.cli\n"
        "from fedstrata.commands import about, data, deploy, lab, report, reproduce, run\n"
        "assert 'sklearn' not in sys.modules and 'matplotlib' not in sys.modules\n"
    )


def test_importing_the_package_does_not_wait_for_torch():
    alone("import sys, fedstrata; assert fedstrata.__version__; assert 'torch' not in sys.modules")
    alone("import sys; from fedstrata import SGD; assert 'torch' in sys.modules")


def test_a_function_keeps_its_name_where_its_module_was_imported_before():
    alone(
        "import fedstrata as fs\n"
        "import fedstrata.experiment, fedstrata.server_step\n"
        "from fedstrata.report import draw_curves\n"
        "assert callable(fs.simulate) and callable(fs.report) and callable(fs.server_step)\n"
        "from fedstrata.simulate import simulate\n"
        "assert fs.simulate is simulate\n"
    )


def test_functions_called_like_modules_are_known_to_the_package():
    found = {n for n in fedstrata.__all__ if n in ORDER and not isinstance(getattr(fedstrata, n), ModuleType)}
    assert found == fedstrata.FUNCTIONS


def test_every_kind_of_part_is_known_with_the_first_public_name():
    alone("import fedstrata as fs; assert fs.Part.from_dict({'kind': 'LWS', 'beta': 0.2}) == fs.parts.LWS(beta=0.2)")


def test_a_module_comes_when_it_is_asked_for_and_a_typo_does_not():
    alone("import fedstrata; assert fedstrata.rng.torch_seed")
    with pytest.raises(AttributeError, match="module 'fedstrata' has no attribute 'simulat'"):
        getattr(fedstrata, "simulat")  # noqa: B009
    assert not hasattr(fedstrata, "_private")


def test_all_public_names_exist():
    assert set(fedstrata.__all__) <= set(dir(fedstrata))
    assert all(hasattr(fedstrata, name) for name in fedstrata.__all__)
    assert fedstrata.__all__ == sorted(fedstrata.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
