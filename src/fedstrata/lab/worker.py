"""A process that runs experiments for another: a line of JSON for each job comes in, one for each round goes out."""

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from fedstrata.errors import FedstrataError, in_short
from fedstrata.experiment import Experiment
from fedstrata.lab.jobs import play
from fedstrata.record import json_text
from fedstrata.threads import share


def main() -> None:
    """Take jobs until nobody has any more; the argument is the number of cores to use."""
    share(int(sys.argv[1]))
    said = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a model of the user's prints is no message

    def say(message: dict[str, Any]) -> None:
        said.write(json_text(message) + "\n")
        said.flush()

    orders: SimpleQueue[dict[str, Any]] = SimpleQueue()
    Thread(target=_listen, args=(orders,), daemon=True).start()
    while True:
        order = orders.get()
        try:
            for name in order["modules"]:
                import_module(name)
            exp = Experiment.of(order["settings"])
            play(exp, Path(order["folder"]), lambda line: say({"round": line}))
        except FedstrataError as e:
            say({"error": type(e).__name__, "text": str(e)})
        except Exception as e:
            say({"error": "FedstrataError", "text": in_short(e)})
        else:
            say({"done": True})


def _listen(orders: SimpleQueue[dict[str, Any]]) -> None:
    """Pass jobs on; when the other process is gone, so is this one, in the middle of a round if need be."""
    for line in sys.stdin:
        orders.put(json.loads(line))
    os._exit(0)
