"""Imports point one way: a module imports only what stands before it, in the order of the data flow."""

import ast
import subprocess
import sys
from pathlib import Path

SRC = Path(__file__).parent.parent / "src" / "fedstrata"
ORDER = [
    "version", "errors", "values", "calls", "rng", "toml", "files", "stopping", "threads", "optim", "layout", "tables",
    "memory", "kernels", "fused", "updates", "batchnorm", "dropout", "bind", "fold", "precision", "task", "logistic",
    "closed", "clients", "data", "partition", "probes", "models", "buffers", "proxy", "core", "surgery", "parts",
    "recipes", "parse", "papers", "decisions", "server", "merge", "augment", "faults", "descent", "graphs", "train",
    "testing", "evaluate", "runtimes", "checkpoint", "record", "track", "simulate", "server_step", "experiment", "cost",
    "explain", "lab", "report", "console", "pages", "__init__", "cli_data", "cli_options", "cli_lab",
    "cli_report", "cli", "__main__",
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


def test_importing_needs_only_the_light_core():
    """With everything but the core dependencies out of reach, the library still imports."""
    code = (
        "import sys\n"
        "for name in ('pooch', 'flwr', 'ray', 'plotly', 'tensorboard', 'mlflow', 'pandas', 'scipy.stats', 'pytest',\n"
        "             'numba'):\n"
        "    sys.modules[name] = None\n"
        "import fedstrata, fedstrata.cli\n"
        "assert 'sklearn' not in sys.modules and 'matplotlib' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_all_public_names_exist():
    import fedstrata

    assert all(hasattr(fedstrata, name) for name in fedstrata.__all__)
    assert fedstrata.__all__ == sorted(fedstrata.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
