"""The server's half: the experiment beside this file, played over the nodes that are there."""

from pathlib import Path

from fedstrata.flower import server_app

app = server_app(Path(__file__).with_name("experiment.toml"))
