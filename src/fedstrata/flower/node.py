"""The node's end: a Flower ClientApp that enrols, measures, trains and scores one client, on its own data.

It is the simulator with one client: the same training loop, the same draws. What the client remembers stays in the
node's store; the examples never leave.
"""

from collections.abc import Mapping
from logging import getLogger
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor

from fedstrata.core import Cohort, State
from fedstrata.descent import Federation
from fedstrata.errors import ClientError, SettingError
from fedstrata.evaluate import score
from fedstrata.experiment import Experiment
from fedstrata.flower.build import federation
from fedstrata.flower.enrolment import Enrolment
from fedstrata.flower.holding import ConfigError, Holding, holding
from fedstrata.flower.records import Tree, below, by_part, packed, unpacked
from fedstrata.flower.store import Store
from fedstrata.layout import Arrays
from fedstrata.precision import multiplying
from fedstrata.runtimes import Vault, chosen
from fedstrata.server import Server
from fedstrata.simulate import fresh_memory
from fedstrata.task import buffers_of
from fedstrata.threads import fitting_threads

MEMORY = Path("~/.local/share/fedstrata/memory")
"""Where clients' memories are kept unless the node-config says."""

log = getLogger("flwr")

client_app = ClientApp()
"""For the nodes."""


@client_app.query()
@client_app.train()
@client_app.evaluate()
def answer(message: Message, context: Context) -> Message:
    """Do what the server asks, and reply. What goes wrong is told here: its text may name files and what is in them."""
    try:
        arrays, facts = unpacked(message.content)
        tree, said = reply(arrays, facts, context.node_config)
        asked = {n: facts[n] for n in ("kind", "run", "round", "client") if n in facts}
        return Message(packed(tree, asked | said), reply_to=message)
    except ConfigError:
        raise
    except Exception as e:
        log.exception("this node cannot do what the server asks, which is told no more than %s", type(e).__name__)
        raise ClientError(f"{type(e).__name__} on this node; its log says what happened and what to do") from None


def reply(arrays: Arrays, facts: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[Tree, dict[str, Any]]:
    """What a node of this configuration answers: (tensors, facts)."""
    exp = Experiment.of(facts["experiment"])
    here = holding(config, exp, facts.get("columns", ()))
    if facts["kind"] == "enrol":
        return _enrol(exp, here)
    device = str(config.get("device", "cpu"))
    fed, network = federation(exp, here.clients(facts["client"]), facts["classes"], here.vocabulary, device)
    start = buffers_of(network)
    model, buffers = arrays["model"].to(fed.task.layout.device), below("buffers", arrays)
    server = Server(fed.task.layout, model, {n: buffers[n].to(model.device) for n in start}, {}, {}, facts["round"])
    work = fed.task.layout.size * (fed.training.batch or len(here.train[1]))
    with fitting_threads(work), multiplying(exp.precision):
        if facts["kind"] == "score":
            return _score(fed, here, server), {}
        root = Path(str(config.get("memory", MEMORY))).expanduser()
        fresh = fresh_memory(fed, server.model, start)
        return _work(fed, here, server, arrays, facts, Store.of(root, facts["run"], here.name), fresh)


def _enrol(exp: Experiment, here: Holding) -> tuple[Tree, dict[str, Any]]:
    """Who is here, and no more of the data than the recipe asks for."""
    told = {"labels": here.labels(here.classes)} if "labels" in exp.recipe.told else {}
    looks = {"shape": here.shape, "words": not here.train[0].is_floating_point()}
    named = {"classes": here.classes, "names": here.names, "columns": here.columns}
    return told, vars(Enrolment(here.name, here.partition, len(here.train[1]), **looks, **named))


def _work(
    fed: Federation, here: Holding, server: Server, arrays: Arrays, facts: Mapping[str, Any], store: Store, fresh: Any
) -> tuple[Tree, dict[str, Any]]:
    """Measure or train, with what the client remembers."""
    client, number = facts["client"], facts["round"]
    memory, since = store.before(number, fresh)
    vault = Vault(fresh, {} if since is None else {client: memory})
    engine = chosen("apart", fed, vault, {}, (server.model, server.buffers), rounds=1)
    names = frozenset(facts["probes"])
    if facts["kind"] == "survey":
        return {"stats": _row(engine.survey(server, names, [client]))}, {}
    if facts["kind"] != "train":
        raise SettingError(f"the server asks for {facts['kind']!r}, which this node cannot do: are versions the same?")
    back = engine.train(server, *_sent(fed, here, server, arrays, facts), names)
    if client in vault.memories and vault.memories[client] is not memory:
        store.keep(number, vault.memories[client])
    uploads = {part: _row(own) for part, own in back.uploads.items()}
    told = {"delta": back.delta[0], "buffers": _row(back.buffers), "uploads": uploads, "stats": _row(back.stats)}
    lost = since is None and facts["since"] is not None and bool(any(fresh.values()))
    return told, {"examples": len(here.train[1]), "lost": lost}


def _sent(
    fed: Federation, here: Holding, server: Server, arrays: Arrays, facts: Mapping[str, Any]
) -> tuple[Cohort, State]:
    """The cohort, which is this client alone, and its brief."""
    stats = below("stats", arrays) | {"examples": torch.tensor(len(here.train[1])).double()}
    stats |= {"labels": here.labels(facts["classes"])} if "labels" in fed.recipe.needs else {}
    place = server.model.device
    ids = torch.tensor([facts["client"]], device=place)
    known = {n: v[None].to(place) for n, v in stats.items()}
    size, number, mean = facts["population"], facts["round"], facts["mean_examples"]
    parts = by_part(below("brief", arrays), fed.recipe.locals())
    brief = {part: {n: v[None].to(place) for n, v in own.items()} for part, own in parts.items()}
    return Cohort(server.layout, ids, known, server.model, size, number, mean), brief


def _score(fed: Federation, here: Holding, server: Server) -> Tree:
    """Sums of the loss and every metric over its examples, and how many there are."""
    place, kind = server.model.device, fed.task.layout.dtype
    sets = {"train": here.train} | ({"test": here.test} if here.test is not None else {})
    found: dict[str, Arrays] = {}
    for name, (x, y) in sets.items():
        x = x.to(place, kind if x.is_floating_point() else x.dtype)
        scores = score(fed.task, server.model, server.buffers, x, y.to(place))
        found[name] = {n: v.double().sum() for n, v in scores.items()} | {"examples": torch.tensor(len(y)).double()}
    return found


def _row(stacked: Mapping[str, Tensor]) -> Arrays:
    return {n: v[0] for n, v in stacked.items()}
