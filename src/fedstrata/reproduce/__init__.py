"""Published tables, made again: `fedstrata reproduce`."""

from fedstrata.reproduce.best import BestShrink
from fedstrata.reproduce.plan import Reproduction, find, read, root
from fedstrata.reproduce.results import Result, results_of
from fedstrata.reproduce.run import reproduce
from fedstrata.reproduce.verdict import judge

__all__ = ["BestShrink", "Reproduction", "Result", "find", "judge", "read", "reproduce", "results_of", "root"]
