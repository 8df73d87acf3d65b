"""From runs to tables and figures."""

from fedstrata.report.curves import draw_curves
from fedstrata.report.split import draw_split
from fedstrata.report.tables import methods_table, runs_table, split_table

__all__ = ["draw_curves", "draw_split", "methods_table", "runs_table", "split_table"]
