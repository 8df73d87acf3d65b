"""Who takes part: the contenders, the environments that they need, and what each workload is measured with."""

import os
from dataclasses import dataclass

CORES = os.cpu_count() or 1
PROCESSES = max(n for n in (1, 2, 5, 10) if n <= CORES)  # of pfl: it wants as many clients in each


@dataclass(frozen=True)
class Contender:
    """A way to run the workloads: a script of benchmarks/contenders with its options."""

    name: str
    label: str  # as the tables say it
    script: str
    options: tuple[str, ...] = ()
    environment: str = ""  # "": the one that runs the benchmark, where fedstrata and torch are
    workloads: str = "ABC"
    looser: float = 1.0  # times the tolerance of checks in float64


@dataclass(frozen=True)
class Plan:
    """How a workload is timed."""

    rounds: int  # timed in each repetition, after one that warms up
    repeat: int
    fraction: float


@dataclass(frozen=True)
class Check:
    """How a workload is checked: on a part of it, a few rounds, all parameters within a tolerance of the naive loop.

    In float32 Adam turns rounding errors into differences of the size of its steps, so that nothing could be told
    from them; B and C are compared in float64, with the same code. pfl rounds its updates to float32 even there, and
    Adam makes 3e-6 of that in three rounds of B (4e-14 with that taken out of pfl): it is allowed ten times more.
    """

    fraction: float
    dtype: str
    tolerance: float
    rounds: int = 2


REFERENCE = "naive"
OURS = "ours-auto"

CONTENDERS = {
    c.name: c
    for c in [
        Contender(OURS, "fedstrata", "ours", ("--engine", "auto", "--split")),
        Contender("ours-stacked", "fedstrata, engine stacked", "ours", ("--engine", "stacked")),
        Contender("ours-pool", "fedstrata, engine pool", "ours", ("--engine", "pool")),
        Contender("ours-apart", "fedstrata, engine apart", "ours", ("--engine", "apart")),
        Contender("naive", "naive loop", "naive"),
        Contender("naive-thread", "naive loop, one thread", "naive", ("--threads", "1")),
        Contender("tuned", "tuned loop", "tuned"),
        Contender("tuned-last", "tuned loop, channels last", "tuned", ("--channels-last",), workloads="BC"),
        Contender("flower-naive", "Flower, naive client", "flower", ("--client", "naive"), "flower"),
        Contender("flower-tuned", "Flower, tuned client", "flower", ("--client", "tuned"), "flower"),
        Contender(
            "flower-last", "Flower, tuned client, channels last", "flower",
            ("--client", "tuned", "--channels-last"), "flower", "BC",
        ),
        Contender("pfl", "pfl", "pfl", (), "pfl", looser=10),
        Contender("pfl-processes", "pfl, a process a core", "pfl", ("--processes", str(PROCESSES)), "pfl", looser=10),
        Contender("fedjax", "FedJAX", "fedjax", (), "fedjax", "A"),
    ]
}  # fmt: skip

# torch is pinned everywhere, so that all have the same one. flwr 1.42.0 asks for a certifi that not every mirror has;
# 1.41.0 installs anywhere. FedJAX needs a jax of its time, and that a numpy 1 and a haiku that still knows it.
ENVIRONMENTS = {
    "flower": ("torch==2.13.0", "numpy==2.4.6", "flwr==1.41.0", "ray==2.55.1"),
    "pfl": ("torch==2.13.0", "numpy==2.4.6", "pfl[pytorch]==0.6.0"),
    "fedjax": ("jax==0.4.30", "jaxlib==0.4.30", "fedjax==0.0.17", "dm-haiku==0.0.13", "numpy==1.26.4"),
}

PLANS = {"A": Plan(10, 5, 1.0), "B": Plan(2, 3, 0.5), "C": Plan(1, 3, 0.25)}  # 13, 10 and 13 minutes on two cores
CHECKS = {
    "A": Check(0.2, "float32", 1e-5),
    "B": Check(0.1, "float64", 1e-6),
    "C": Check(0.04, "float64", 1e-6),
}


def chosen(names: str, workload: str) -> list[Contender]:
    """The contenders of a workload whose names begin with one of these, separated by commas; "" is all."""
    wanted = [n.strip() for n in names.split(",") if n.strip()]
    for name in wanted:
        if not any(c.startswith(name) for c in CONTENDERS):
            raise SystemExit(f"no contender's name begins with {name!r}; there are {', '.join(CONTENDERS)}")
    return [
        c
        for c in CONTENDERS.values()
        if workload in c.workloads and (not wanted or any(c.name.startswith(n) for n in wanted))
    ]
