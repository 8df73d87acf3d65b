"""Presets that reproduce published code where it differs from its paper: to check such results, never the default."""

from typing import Any

from fedstrata.core import Recipe
from fedstrata.parts import Adam, BySize, Dawa, Disco, Dyn, Learned, OfficialLWS, Prox
from fedstrata.recipes.base import recipe


def fedlws_official(beta: float = 0.03, low: float = 0.01, high: float = 0.2, **slots: Any) -> Recipe:
    """FedLWS as its code has it: clipped, buffers shrunk too, groups that end at a bias.
    Shi et al., ICLR 2025, published code."""
    return recipe(**{"shrink": OfficialLWS(beta, low, high)} | slots)


def fedprox_fedlaw(mu: float = 0.001, **slots: Any) -> Recipe:
    """FedProx as FedLAW's and FedLWS's code has it: no momentum, no weight decay.
    Li et al., ICML 2023, published code."""
    return recipe(**{"local": Prox(mu, plain_sgd=True)} | slots)


def feddyn_fedlaw(alpha: float = 0.001, **slots: Any) -> Recipe:
    """FedDyn as FedLAW's code has it: distance not squared, h over the cohort by size.
    Li et al., ICML 2023, published code."""
    return recipe(**{"local": Dyn(alpha, unsquared=True, over="cohort"), "weigh": BySize()} | slots)


def fedadam_fedlaw(lr: float = 1.0, **slots: Any) -> Recipe:
    """FedAdam as FedLAW's code has it: v from 0, tau 1e-5.
    Li et al., ICML 2023, published code."""
    return recipe(**{"server": Adam(lr, tau=1e-5, v_init=0.0)} | slots)


def fedadam_flower(lr: float = 0.1, tau: float = 1e-9, **slots: Any) -> Recipe:
    """FedAdam as Flower has it: v from 0, bias corrected.
    Flower's FedAdam."""
    return recipe(**{"server": Adam(lr, tau=tau, v_init=0.0, bias_correction=True)} | slots)


def ldawa_official(**slots: Any) -> Recipe:
    """L-DAWA as its code has it: FedAvg at first, running statistics scaled too.
    Rehman et al., ICCV 2023, published code."""
    return recipe(**{"weigh": Dawa(warmup_rounds=2, include_buffers=True)} | slots)


def fedlaw_fedlws(epochs: int = 100, lr: float = 0.01, **slots: Any) -> Recipe:
    """FedLAW as FedLWS compares with it: 100 epochs on the server.
    Shi et al., ICLR 2025."""
    return recipe(**{"weigh": Learned(epochs, lr)} | slots)


def feddisco_fedlws(a: float = 0.1, b: float = 0.1, **slots: Any) -> Recipe:
    """FedDisco as FedLWS compares with it: a = b = 0.1.
    Shi et al., ICLR 2025, published code."""
    return recipe(**{"weigh": Disco(a, b)} | slots)
