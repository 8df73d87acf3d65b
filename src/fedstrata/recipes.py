"""The named methods, one line each; any combination of parts is another line.

Every one takes further slots by keyword: `fedprox(mu=0.1, select=Sample(k=10), shrink=LWS(0.1))`. The first line of a
docstring is what `fedstrata methods` shows, the second the paper.
"""

from collections.abc import Callable
from typing import Any, Literal

from fedstrata.core import Part, Recipe
from fedstrata.errors import SettingError, near
from fedstrata.parts import (
    AFL,
    AWD,
    DC,
    FOLB,
    LWS,
    AdaDecay,
    Adagrad,
    Adam,
    AdaptiveProx,
    Angle,
    BySize,
    Calm,
    Calmest,
    Dawa,
    Disco,
    Dyn,
    Equal,
    Everyone,
    FairFed,
    FedGAReconstruction,
    FixedShrink,
    Learned,
    Momentum,
    Moon,
    Nova,
    PerLayer,
    Prox,
    Q,
    Scaffold,
    SelectiveProx,
    Yogi,
)  # fmt: skip
from fedstrata.parts.select import Variance
from fedstrata.parts.shrink.lws import Variant
from fedstrata.values import refuse_unknown

Weighting = Literal["samples", "uniform"]


DEFAULTS: dict[str, Any] = {"select": Everyone(), "weigh": BySize()}
"""What fills the slots that nobody fills."""


def recipe(**slots: Any) -> Recipe:
    """Parts by slot; everyone takes part and clients count by size unless said otherwise."""
    refuse_unknown(slots, ["select", "local", "weigh", "server", "shrink"], "a recipe")
    return Recipe(**(DEFAULTS | slots))


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


def feddc(alpha: float = 0.01, **slots: Any) -> Recipe:
    """Let every client carry its drift, and add the mean drift back on the server.
    Gao et al., CVPR 2022."""
    return recipe(**{"local": DC(alpha), "weigh": Equal()} | slots)


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


def fedbs(
    k: int | None = None, tau: float = 1.0, variance: Variance = "gradient", normalise: bool = False, **slots: Any
) -> Recipe:
    """Ask everyone first, train the calmest clients, weigh them by calmness.
    As defined in FedPBS, arXiv 2603.13909."""
    return recipe(**{"select": Calmest(k, variance), "weigh": Calm(tau, variance, normalise)} | slots)


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


def fedavgm(beta: float = 0.9, lr: float = 1.0, dampening: float = 0.0, **slots: Any) -> Recipe:
    """Momentum on the server.
    Hsu et al., arXiv 1909.06335."""
    return recipe(**{"server": Momentum(beta, lr, dampening)} | slots)


def fedadagrad(lr: float = 0.1, tau: float = 1e-3, **slots: Any) -> Recipe:
    """Adagrad on the server.
    Reddi et al., ICLR 2021."""
    return recipe(**{"server": Adagrad(lr, tau=tau)} | slots)


def fedadam(lr: float = 0.1, tau: float = 1e-3, **slots: Any) -> Recipe:
    """Adam on the server.
    Reddi et al., ICLR 2021."""
    return recipe(**{"server": Adam(lr, tau=tau)} | slots)


def fedyogi(lr: float = 0.01, tau: float = 1e-3, **slots: Any) -> Recipe:
    """Yogi on the server.
    Reddi et al., ICLR 2021."""
    return recipe(**{"server": Yogi(lr, tau=tau)} | slots)


def fednova(mu: float = 0.0, momentum: float | None = None, **slots: Any) -> Recipe:
    """Undo the bias of unequal numbers of local steps.
    Wang et al., NeurIPS 2020."""
    return recipe(**{"weigh": Nova(momentum, mu), "local": Prox(mu) if mu else ()} | slots)


def feddisco(
    a: float = 0.5, b: float = 0.1, distance: Literal["kl", "l2", "l1", "cosine"] = "kl", **slots: Any
) -> Recipe:
    """Weigh clients by how near their label distribution is to the target.
    Ye et al., ICML 2023."""
    return recipe(**{"weigh": Disco(a, b, distance)} | slots)


def ldawa(normalised: bool = False, warmup_rounds: int = 0, **slots: Any) -> Recipe:
    """Scale each local tensor by its cosine with the global one.
    Rehman et al., ICCV 2023."""
    return recipe(**{"weigh": Dawa(normalised=normalised, warmup_rounds=warmup_rounds)} | slots)


def fedlaw(epochs: int = 20, lr: float = 0.01, by: Literal["exp", "quad"] = "exp", **slots: Any) -> Recipe:
    """Learn client weights and a shrinking factor on the server's own data.
    Li et al., ICML 2023."""
    return recipe(**{"weigh": Learned(epochs, lr, by=by)} | slots)


def fedga_reconstruction(
    by: Literal["contribution", "validation"] = "contribution", m: int | None = None, **slots: Any
) -> Recipe:
    """Weigh clients by their contribution to the common direction; a reconstruction.
    FedGA (greedy aggregation), 2024; its text could not be had."""
    return recipe(**{"weigh": FedGAReconstruction(by, m)} | slots)


def qfedavg(q: float = 1.0, **slots: Any) -> Recipe:
    """Weigh clients by a power of their loss, for a fairer model.
    Li et al., ICLR 2020 (q-FFL)."""
    return recipe(**{"weigh": Q(q)} | slots)


def afl(lr: float = 0.1, **slots: Any) -> Recipe:
    """Let an adversary shift weight to the clients with the largest losses.
    Mohri et al., ICML 2019."""
    return recipe(**{"weigh": AFL(lr)} | slots)


def fairfed(beta: float = 1.0, **slots: Any) -> Recipe:
    """Take weight from clients whose accuracy is far from the common one.
    Ezzeldin et al., AAAI 2023."""
    return recipe(**{"weigh": FairFed(beta)} | slots)


def folb(**slots: Any) -> Recipe:
    """Weigh clients by how their gradient agrees with everybody's.
    Nguyen et al., IEEE JSAC 2021."""
    return recipe(**{"weigh": FOLB()} | slots)


def awd(strength: float = 0.02, **slots: Any) -> Recipe:
    """Adaptive weight decay of the average, on the server.
    Ghiasi et al. 2023, as compared with in FedLWS."""
    return recipe(**{"shrink": AWD(strength)} | slots)


def adadecay(alpha: float = 4.0, strength: float = 5e-4, **slots: Any) -> Recipe:
    """Weight decay by how much each parameter moved, on the server.
    Nakamura and Hong 2019, as compared with in FedLWS."""
    return recipe(**{"shrink": AdaDecay(alpha, strength)} | slots)


METHODS: dict[str, Callable[..., Recipe]] = {
    f.__name__: f
    for f in [
        *(fedavg, fedavgm, fedadagrad, fedadam, fedyogi),
        *(fedprox, adaptive_fedprox, scaffold, feddyn, feddc, moon),
        *(fednova, feddisco, ldawa, fedadp, fedlayerwise, fedlaw, fedga_reconstruction),
        *(qfedavg, afl, fairfed, folb),
        *(fedlws, awd, adadecay, fedbs, fedpbs),
    ]
}
"""The named methods."""


def combine(*terms: Recipe | Part) -> Recipe:
    """One recipe of several methods and parts: local, server and shrink parts act in the order given.

    There can be one selection and one weighing; everyone, and by size, give way to any other.
    """
    one: dict[str, Part] = {}
    many: dict[str, list[Part]] = {"local": [], "server": [], "shrink": []}
    for part in (p for t in terms for p in (t.parts().values() if isinstance(t, Recipe) else [t])):
        if part.slot in many:
            many[part.slot].append(part)
        elif part != DEFAULTS[part.slot] and one.setdefault(part.slot, part) != part:
            raise SettingError(f"a recipe has one {part.slot} part, not both {one[part.slot]!r} and {part!r}")
    return recipe(**one, **{slot: tuple(parts) for slot, parts in many.items()})


def _one_of(value: Any, *known: str) -> Any:
    if value not in known:
        raise SettingError(f"{value!r} is not a choice here; {near(str(value), known)}")
    return value


def _by(weighting: Weighting) -> BySize | Equal:
    return BySize() if _one_of(weighting, "samples", "uniform") == "samples" else Equal()
