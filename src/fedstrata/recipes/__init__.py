"""The algorithms by name: methods as their papers define them, then presets that follow published code."""

from collections.abc import Callable

from fedstrata.core import Recipe
from fedstrata.recipes import methods as m
from fedstrata.recipes import presets as p
from fedstrata.recipes.base import DEFAULTS, SLOTS, combine, recipe  # noqa: F401
from fedstrata.recipes.methods import *  # noqa: F403
from fedstrata.recipes.presets import *  # noqa: F403

METHODS: dict[str, Callable[..., Recipe]] = {
    f.__name__: f
    for f in [
        *(m.fedavg, m.fedavgm, m.fedadagrad, m.fedadam, m.fedyogi),
        *(m.fedprox, m.adaptive_fedprox, m.scaffold, m.feddyn, m.feddc, m.moon, m.fedproc, m.fedetf, m.fedlama),
        *(m.fednova, m.feddisco, m.ldawa, m.fedadp, m.fedlayerwise, m.fedlaw, m.fedga_reconstruction),
        *(m.qfedavg, m.afl, m.fairfed, m.folb),
        *(m.feddf, m.fedbe, m.ccvr),
        *(m.fedlws, m.awd, m.adadecay, m.fedbs, m.fedpbs),
        p.fedlws_official,
        p.fedprox_fedlaw,
        p.feddyn_fedlaw,
        p.fedadam_fedlaw,
        p.fedadam_flower,
        p.ldawa_official,
        p.fedlaw_fedlws,
        p.feddisco_fedlws,
    ]
}
"""Every one by its name."""
