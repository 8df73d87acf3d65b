"""What is done to the proposal last: shrinking, layer by layer."""

from fedstrata.parts.shrink.lws import LWS, FixedShrink

__all__ = ["LWS", "FixedShrink"]
