"""A recipe on a real network: Flower carries the messages, the recipe's two halves run at its two ends.

    from fedstrata.flower import client_app, server_app

`server_app("experiment.toml")` is a Flower ServerApp that runs an experiment over the nodes that are there, and
`client_app` the ClientApp for the nodes. `fedstrata deploy` writes the app around them, and everything else.
"""

from fedstrata.flower.node import client_app
from fedstrata.flower.server import serve, server_app
from fedstrata.flower.settings import Network

__all__ = ["Network", "client_app", "serve", "server_app"]
