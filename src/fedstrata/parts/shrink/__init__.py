"""What is done to the proposal last: shrinking, layer by layer, and the weight decays it is compared with."""

from fedstrata.parts.shrink.decay import AWD, AdaDecay
from fedstrata.parts.shrink.lws import LWS, FixedShrink
from fedstrata.parts.shrink.official import OfficialLWS

__all__ = ["AWD", "LWS", "AdaDecay", "FixedShrink", "OfficialLWS"]
