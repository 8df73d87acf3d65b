"""The named methods, one line each; any combination of parts is another line.

Every one takes further slots by keyword: `fedprox(mu=0.1, select=Sample(k=10), shrink=LWS(0.1))`. The first line of a
docstring is what `fedstrata methods` shows, the second the paper.
"""

from typing import Any, Literal

from fedstrata.core import Recipe
from fedstrata.errors import SettingError, check, near
from fedstrata.layout import Grain
from fedstrata.parts import (
    AFL,
    AWD,
    DC,
    ETF,
    FOLB,
    LWS,
    AdaDecay,
    Adagrad,
    Adam,
    AdaptiveProx,
    Angle,
    BySize,
    Calibrate,
    Calm,
    Calmest,
    Dawa,
    Disco,
    Distill,
    Dyn,
    Equal,
    Everyone,
    FairFed,
    FedGAReconstruction,
    FixedShrink,
    Intervals,
    Learned,
    Momentum,
    Moon,
    Nova,
    PerLayer,
    Prototypes,
    Prox,
    Q,
    Rate,
    Sample,
    Scaffold,
    SelectiveProx,
    Yogi,
)  # fmt: skip
from fedstrata.parts.select import Variance
from fedstrata.parts.shrink.lws import Variant
from fedstrata.recipes.base import recipe

Weighting = Literal["samples", "uniform"]


def fedavg(weighting: Weighting = "samples", lr: float = 1.0, **slots: Any) -> Recipe:
    """Average the clients' models, by examples or equally.
    McMahan et al., AISTATS 2017."""
    return recipe(**{"weigh": _by(weighting), "server": _rate(lr)} | slots)


def fedprox(
    mu: float | PerLayer = 0.01, weighting: Weighting = "samples", plain_sgd: bool = False, **slots: Any
) -> Recipe:
    """Hold clients near the global model by a proximal term.
    Li et al., MLSys 2020."""
    return recipe(**{"local": Prox(mu, plain_sgd), "weigh": _by(weighting)} | slots)


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


def scaffold(option: Literal[1, 2] = 2, weighting: Weighting = "uniform", lr: float = 1.0, **slots: Any) -> Recipe:
    """Undo each client's drift with control variates.
    Karimireddy et al., ICML 2020."""
    return recipe(**{"local": Scaffold(option), "weigh": _by(weighting), "server": _rate(lr)} | slots)


def feddyn(
    alpha: float = 0.01,
    by_size: bool = False,
    clip: float | None = None,
    show: Literal["server", "participants", "all"] = "server",
    **slots: Any,
) -> Recipe:
    """Make local and global optima agree with a dynamic linear term.
    Acar et al., ICLR 2021."""
    return recipe(**{"local": Dyn(alpha, by_size, clip, show), "weigh": Equal()} | slots)


def feddc(alpha: float = 0.01, clip: float | None = None, **slots: Any) -> Recipe:
    """Let every client carry its drift, and add the mean drift back on the server.
    Gao et al., CVPR 2022."""
    return recipe(**{"local": DC(alpha, clip), "weigh": Equal()} | slots)


def moon(mu: float = 1.0, tau: float = 0.5, buffer: int = 1, head: int | None = None, **slots: Any) -> Recipe:
    """Pull a client's features towards the global model's, away from its own last ones.
    Li et al., CVPR 2021."""
    return recipe(**{"local": Moon(mu, tau, buffer, head)} | slots)


def fedproc(rounds: int = 100, by: Literal["examples", "clients"] = "examples", **slots: Any) -> Recipe:
    """Pull features towards the federation's mean feature of their class.
    Mu et al., FGCS 2023."""
    return recipe(**{"local": Prototypes(rounds, by)} | slots)


def fedetf(scale: float = 10.0, width: int | None = None, **slots: Any) -> Recipe:
    """Give everyone the same fixed classifier, a simplex, and balance the labels in the loss.
    Li et al., ICCV 2023."""
    return recipe(**{"local": ETF(scale, width)} | slots)


def fedlama(phi: int = 2, warmup: int = 6, **slots: Any) -> Recipe:
    """Average the layers in which clients agree less often.
    Lee et al., AAAI 2023."""
    return recipe(**{"local": Intervals(phi, warmup)} | slots)


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
    skip_norm: bool = False,
    **slots: Any,
) -> Recipe:
    """Shrink each layer of the average by how much the clients disagree in it.
    Shi et al., ICLR 2025."""
    grain = _one_of("mode", mode, "layer", "tensor", "model", "fixed")
    plain = beta == 0.1 and not skip_norm
    check(plain or grain != "fixed", "fedlws(mode='fixed') shrinks by given factors: leave out beta and skip_norm")
    step = FixedShrink(variant=variant) if grain == "fixed" else LWS(beta, grain, variant, skip_norm)
    return recipe(**{"shrink": step} | slots)


def fedbs(
    k: int | None = None,
    tau: float = 1.0,
    variance: Literal["gradient", "loss"] = "gradient",
    normalise: bool = False,
    importance: Weighting = "uniform",
    grad_scope: Literal["model", "last_layer"] = "model",
    **slots: Any,
) -> Recipe:
    """Ask everyone first, train the calmest clients, weigh them by calmness.
    As defined in FedPBS, arXiv 2603.13909."""
    last = _one_of("grad_scope", grad_scope, "model", "last_layer") == "last_layer" and variance == "gradient"
    of: Variance = "last_layer_gradient" if last else variance
    by = "size" if _one_of("importance", importance, "uniform", "samples") == "samples" else "uniform"
    return recipe(**{"select": Calmest(k, of, by), "weigh": Calm(tau, of, normalise)} | slots)


def fedpbs(
    mu: float = 0.01,
    batch: int | None = None,
    threshold: float | Literal["median"] = "median",
    variance: Literal["loss", "gradient"] = "loss",
    aggregation: Literal["uniform", "sat", "samples"] = "uniform",
    selection: Literal["random", "sur"] = "random",
    k: int | None = None,
    tau: float = 1.0,
    two_phase: bool = False,
    **slots: Any,
) -> Recipe:
    """Hold back only clients with small batches or noisy losses.
    FedPBS, arXiv 2603.13909."""
    by = _one_of("aggregation", aggregation, "uniform", "sat", "samples")
    weigh = Calm(tau, variance) if by == "sat" else _by(by)
    at_random = Everyone() if k is None else Sample(k)
    select = Calmest(k, variance) if _one_of("selection", selection, "random", "sur") == "sur" else at_random
    local = SelectiveProx(mu, batch, threshold, variance, two_phase)
    return recipe(**{"select": select, "local": local, "weigh": weigh} | slots)


def fedavgm(beta: float = 0.9, lr: float = 1.0, dampening: float = 0.0, **slots: Any) -> Recipe:
    """Momentum on the server.
    Hsu et al., arXiv 1909.06335."""
    return recipe(**{"server": Momentum(beta, lr, dampening)} | slots)


def fedadagrad(
    lr: float = 0.1, tau: float = 1e-3, beta1: float = 0.0, v_init: float | None = None, **slots: Any
) -> Recipe:
    """Adagrad on the server.
    Reddi et al., ICLR 2021."""
    return recipe(**{"server": Adagrad(lr, beta1, tau=tau, v_init=v_init)} | slots)


def fedadam(
    lr: float = 0.1,
    tau: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.99,
    v_init: float | None = None,
    bias_correction: bool = False,
    **slots: Any,
) -> Recipe:
    """Adam on the server.
    Reddi et al., ICLR 2021."""
    return recipe(**{"server": Adam(lr, beta1, beta2, tau, v_init, bias_correction)} | slots)


def fedyogi(
    lr: float = 0.01,
    tau: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.99,
    v_init: float | None = None,
    **slots: Any,
) -> Recipe:
    """Yogi on the server.
    Reddi et al., ICLR 2021."""
    return recipe(**{"server": Yogi(lr, beta1, beta2, tau, v_init)} | slots)


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


def ldawa(
    grain: Grain = "tensor",
    normalised: bool = False,
    floor: float | None = None,
    warmup_rounds: int = 0,
    include_buffers: bool = False,
    **slots: Any,
) -> Recipe:
    """Scale each local tensor by its cosine with the global one.
    Rehman et al., ICCV 2023."""
    return recipe(**{"weigh": Dawa(grain, normalised, floor, warmup_rounds, include_buffers)} | slots)


def fedlaw(
    epochs: int = 20, lr: float = 0.01, by: Literal["exp", "quad"] = "exp", swa: bool = False, **slots: Any
) -> Recipe:
    """Learn client weights and a shrinking factor on the server's own data.
    Li et al., ICML 2023."""
    return recipe(**{"weigh": Learned(epochs, lr, by=by, swa=swa)} | slots)


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


def afl(lr: float = 0.1, average: bool = True, **slots: Any) -> Recipe:
    """Let an adversary shift weight to the clients with the largest losses.
    Mohri et al., ICML 2019."""
    return recipe(**{"weigh": AFL(lr, average)} | slots)


def fairfed(beta: float = 1.0, **slots: Any) -> Recipe:
    """Take weight from clients whose accuracy is far from the common one.
    Ezzeldin et al., AAAI 2023."""
    return recipe(**{"weigh": FairFed(beta)} | slots)


def folb(two_sample: bool = False, psi: float = 0.0, **slots: Any) -> Recipe:
    """Weigh clients by how their gradient agrees with everybody's.
    Nguyen et al., IEEE JSAC 2021."""
    return recipe(**{"weigh": FOLB(two_sample, psi)} | slots)


def feddf(epochs: int = 20, lr: float = 1e-3, **slots: Any) -> Recipe:
    """Teach the average what the clients say together, on the server's own data.
    Lin et al., NeurIPS 2020."""
    return recipe(**{"server": Distill(epochs=epochs, lr=lr)} | slots)


def fedbe(
    epochs: int = 20,
    lr: float = 1e-3,
    samples: int = 10,
    draw: Literal["gaussian", "dirichlet"] = "gaussian",
    swa: bool = True,
    **slots: Any,
) -> Recipe:
    """The same with models drawn around the clients' as further teachers.
    Chen and Chao, ICLR 2021."""
    return recipe(**{"server": Distill("bayes", epochs, lr, samples=samples, draw=draw, swa=swa)} | slots)


def ccvr(samples: int = 100, epochs: int = 10, lr: float = 0.01, **slots: Any) -> Recipe:
    """In the end, train the classifier again on virtual features of all classes.
    Luo et al., NeurIPS 2021."""
    return recipe(**{"finish": Calibrate(samples, epochs, lr)} | slots)


def awd(strength: float = 0.02, **slots: Any) -> Recipe:
    """Adaptive weight decay of the average, on the server.
    Ghiasi et al. 2023, as compared with in FedLWS."""
    return recipe(**{"shrink": AWD(strength)} | slots)


def adadecay(alpha: float = 4.0, strength: float = 5e-4, **slots: Any) -> Recipe:
    """Weight decay by how much each parameter moved, on the server.
    Nakamura and Hong 2019, as compared with in FedLWS."""
    return recipe(**{"shrink": AdaDecay(alpha, strength)} | slots)


def _one_of(name: str, value: Any, *known: str) -> Any:
    if value not in known:
        raise SettingError(f"{name} cannot be {value!r}; {near(str(value), known)}")
    return value


def _by(weighting: Weighting) -> BySize | Equal:
    return BySize() if _one_of("weighting", weighting, "samples", "uniform") == "samples" else Equal()


def _rate(lr: float) -> tuple[Rate, ...]:
    """A server learning rate, where it is not 1."""
    return (Rate(lr),) if lr != 1.0 else ()
