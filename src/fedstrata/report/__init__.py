"""From runs to tables, figures and one page."""

from fedstrata.report.curves import draw_curves
from fedstrata.report.figures import draw_figures
from fedstrata.report.page import report
from fedstrata.report.split import draw_split
from fedstrata.report.tables import methods_table, runs_table, split_table

__all__ = ["draw_curves", "draw_figures", "draw_split", "methods_table", "report", "runs_table", "split_table"]
