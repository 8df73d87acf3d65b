"""What is done once, after the last round."""

from fedstrata.parts.finish.calibrate import Calibrate

__all__ = ["Calibrate"]
