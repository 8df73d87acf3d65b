"""The named methods, one line each; any combination of parts is another line.

Every one takes further slots by keyword: `fedprox(mu=0.1, select=Sample(k=10), shrink=LWS(0.1))`. The first line of a
docstring is what `fedstrata methods` shows, the second the paper.
"""

from collections.abc import Callable
from typing import Any, Literal

from fedstrata.core import Recipe
from fedstrata.errors import SettingError, near
from fedstrata.parts import (
    LWS,
    AdaptiveProx,
    Angle,
    BySize,
    Calm,
    Calmest,
    Dyn,
    Equal,
    Everyone,
    FixedShrink,
    Moon,
    PerLayer,
    Prox,
    Scaffold,
    SelectiveProx,
)  # fmt: skip
from fedstrata.parts.select import Variance
from fedstrata.parts.shrink.lws import Variant

Weighting = Literal["samples", "uniform"]


def recipe(**slots: Any) -> Recipe:
    """Parts by slot; everyone takes part and clients count by size unless said otherwise."""
    return Recipe(**({"select": Everyone(), "weigh": BySize()} | slots))


def fedavg(weighting: Weighting = "samples", **slots: Any) -> Recipe:
    """Average the clients' models, by examples or equally.
    McMahan et al., AISTATS 2017."""
    return recipe(**{"weigh": _by(weighting)} | slots)


def fedprox(mu: float | PerLayer = 0.01, weighting: Weighting = "samples", **slots: Any) -> Recipe:
    """Hold clients near the global model by a proximal term.
    Li et al., MLSys 2020."""
    return recipe(**{"local": Prox(mu), "weigh": _by(weighting)} | slots)


def adaptive_fedprox(
    mu: float = 0.01,
    alpha: float = 0.5,
    grain: Literal["tensor", "layer", "model"] = "tensor",
    weighting: Weighting = "samples",
    **slots: Any,
) -> Recipe:
    """FedProx whose mu follows, layer by layer, how far each layer moves.
    Per-Layer Adaptive mu FedProx."""
    return recipe(**{"local": AdaptiveProx(mu, alpha, grain), "weigh": _by(weighting)} | slots)


def scaffold(weighting: Weighting = "uniform", **slots: Any) -> Recipe:
    """Undo each client's drift with control variates.
    Karimireddy et al., ICML 2020."""
    return recipe(**{"local": Scaffold(), "weigh": _by(weighting)} | slots)


def feddyn(alpha: float = 0.01, **slots: Any) -> Recipe:
    """Make local and global optima agree with a dynamic linear term.
    Acar et al., ICLR 2021."""
    return recipe(**{"local": Dyn(alpha), "weigh": Equal()} | slots)


def moon(mu: float = 1.0, tau: float = 0.5, **slots: Any) -> Recipe:
    """Pull a client's features towards the global model's, away from its own last ones.
    Li et al., CVPR 2021."""
    return recipe(**{"local": Moon(mu, tau)} | slots)


def fedadp(alpha: float = 5.0, **slots: Any) -> Recipe:
    """Weigh clients by the angle between their update and the mean one.
    Wu and Wang, IEEE TCCN 2021."""
    return recipe(**{"weigh": Angle(alpha, "model")} | slots)


def fedlayerwise(alpha: float = 5.0, grain: Literal["layer", "tensor"] = "layer", **slots: Any) -> Recipe:
    """Weigh clients by that angle in each layer separately.
    Lanjewar et al., Layer-Wise Adaptive Weighting."""
    return recipe(**{"weigh": Angle(alpha, grain)} | slots)


def fedlws(
    beta: float = 0.1,
    mode: Literal["layer", "tensor", "model", "fixed"] = "layer",
    variant: Variant = "full",
    **slots: Any,
) -> Recipe:
    """Shrink each layer of the average by how much the clients disagree in it.
    Shi et al., ICLR 2025."""
    step = (
        FixedShrink(variant=variant)
        if mode == "fixed"
        else LWS(beta, _one_of(mode, "layer", "tensor", "model"), variant)
    )
    return recipe(**{"shrink": step} | slots)


def fedbs(k: int | None = None, tau: float = 1.0, variance: Variance = "gradient", **slots: Any) -> Recipe:
    """Ask everyone first, train the calmest clients, weigh them by calmness.
    As defined in FedPBS, arXiv 2603.13909."""
    return recipe(**{"select": Calmest(k, variance), "weigh": Calm(tau, variance)} | slots)


def fedpbs(
    mu: float = 0.01,
    batch: int | None = None,
    threshold: float | Literal["median"] = "median",
    variance: Variance = "loss",
    aggregation: Literal["uniform", "sat", "samples"] = "uniform",
    tau: float = 1.0,
    **slots: Any,
) -> Recipe:
    """Hold back only clients with small batches or noisy losses.
    FedPBS, arXiv 2603.13909."""
    weigh = Calm(tau, variance) if aggregation == "sat" else _by(_one_of(aggregation, "uniform", "samples"))
    return recipe(**{"local": SelectiveProx(mu, batch, threshold, variance), "weigh": weigh} | slots)


METHODS: dict[str, Callable[..., Recipe]] = {
    f.__name__: f
    for f in (fedavg, fedprox, adaptive_fedprox, scaffold, feddyn, moon, fedadp, fedlayerwise, fedlws, fedbs, fedpbs)
}
"""The named methods."""


def method(name: str) -> Callable[..., Recipe]:
    """The method of this name, or a sentence with the near miss."""
    if name not in METHODS:
        raise SettingError(f"no method is called {name!r}; {near(name, METHODS)}")
    return METHODS[name]


def _one_of(value: Any, *known: str) -> Any:
    if value not in known:
        raise SettingError(f"{value!r} is not a choice here; {near(str(value), known)}")
    return value


def _by(weighting: Weighting) -> BySize | Equal:
    return BySize() if _one_of(weighting, "samples", "uniform") == "samples" else Equal()
