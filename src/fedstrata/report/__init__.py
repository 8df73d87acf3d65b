"""From runs to tables and figures."""

from fedstrata.report.curves import draw_curves
from fedstrata.report.tables import methods_table, runs_table

__all__ = ["draw_curves", "methods_table", "runs_table"]
