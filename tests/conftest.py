import os

import torch

torch.set_num_threads(1)  # two threads on tiny work collapse when the machine is shared

os.environ["COLUMNS"] = "100"  # tables look the same wherever the tests run
