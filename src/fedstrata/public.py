"""The public names, `fs.simulate` and the others: the package gets them from here when the first is asked for.

All at once, because parts, partitions and optimisers are known by their names once they have been imported.
"""

from fedstrata import data, models, partition, parts, recipes, testing
from fedstrata.clients import Clients
from fedstrata.core import Cohort, Local, Part, Proxy, Recipe, Round, Select, Step, Turn, Weigh
from fedstrata.errors import FedstrataError
from fedstrata.experiment import Experiment
from fedstrata.faults import Faults
from fedstrata.lab import Advice, Comparison, advise, compare
from fedstrata.layout import Arrays, Grain, Layout
from fedstrata.optim import SGD, Adam, AdamW, Training
from fedstrata.parse import parse_recipe, recipe_text
from fedstrata.partition import IID, Dirichlet, Partition
from fedstrata.report import report
from fedstrata.server_step import Outcome, Reply, server_step
from fedstrata.simulate import Run, simulate
from fedstrata.task import Batch, Task
from fedstrata.version import __version__

__all__ = [
    "IID", "SGD", "Adam", "AdamW", "Advice", "Arrays", "Batch", "Clients", "Cohort", "Comparison", "Dirichlet",
    "Experiment", "Faults", "FedstrataError", "Grain", "Layout", "Local", "Outcome", "Part", "Partition", "Proxy",
    "Recipe", "Reply", "Round", "Run", "Select", "Step", "Task", "Training", "Turn", "Weigh", "__version__", "advise",
    "compare", "data", "models", "parse_recipe", "partition", "parts", "recipe_text", "recipes", "report",
    "server_step", "simulate", "testing",
]  # fmt: skip
