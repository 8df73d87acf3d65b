"""The nodes' half; what to do comes from the server, the data from the node's own configuration."""

from fedstrata.flower import client_app as app

__all__ = ["app"]
