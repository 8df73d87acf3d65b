"""The server's end: a Flower ServerApp that plays an experiment's rounds over the nodes that are there.

The round is the simulator's; the waiting is here. After every round all that it takes to go on is on disk, so that a
server that was killed is started again with resume = true and goes on, bit for bit.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from logging import getLogger
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import Tensor, nn

from fedstrata.core import Recipe
from fedstrata.data import held_out, load_own
from fedstrata.data.examples import Examples
from fedstrata.descent import Federation
from fedstrata.errors import FedstrataError, SettingError, check
from fedstrata.experiment import Experiment, read_toml
from fedstrata.flower.build import federation, made_up
from fedstrata.flower.engine import OnFlower, Told, rehearsal
from fedstrata.flower.gate import Gate, known_of
from fedstrata.flower.post import Post
from fedstrata.flower.roster import Roster
from fedstrata.flower.settings import Network
from fedstrata.layout import Arrays
from fedstrata.precision import multiplying
from fedstrata.record import Recorder, finished
from fedstrata.runtimes import Vault
from fedstrata.server import Server
from fedstrata.simulate import evaluate, finish, finish_line, first_model, first_server, offered, play, trained_model
from fedstrata.trial import check_classifier, try_out

log = getLogger("flwr")  # whose lines `flwr run --stream` shows

FEW = 50
"""Examples whose mean and spread say little of those of others."""

SCALED = (
    "scores on so few, or on one class, say little of the model: test on more, or on .npz files of one agreed scale"
)


def server_app(experiment: str | Path) -> ServerApp:
    """A ServerApp that runs the experiment of a TOML file; Flower's run-config says the rest."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            serve(grid, Experiment.of(read_toml(experiment)), Network.of(context.run_config))
        except FedstrataError as e:
            log.error("%s", e)
            raise

    return app


def serve(grid: Grid, exp: Experiment, net: Network, on_round: Callable[[dict[str, Any]], None] | None = None) -> Path:
    """Run an experiment over a grid's nodes; its run folder."""
    check(exp.faults is None, "[faults] are for simulations; a network has its own")
    folder = Path(net.out).expanduser() if net.out else _new_folder(exp)
    if net.resume and finished(folder):
        return folder
    resumed = Roster.read(folder) if net.resume else None
    begin = "say out = ... as when it began, or leave resume out to begin one"
    check(not net.resume or resumed is not None, f"there is no run in {folder} to go on with; {begin}")
    roster = resumed or Roster(closed=bool(net.names))
    roster.names += [n for n in net.names if n not in roster.names]
    gate = Gate(Post(grid, net.poll), exp, net, roster)
    gate.gather()
    session = Session.of(exp, net, gate, folder)
    with closing(session.recorder), multiplying(exp.precision):
        session.begin(resume=resumed is not None)
        session.rounds(on_round)
    return folder


@dataclass
class Session:
    """One run on a network, from its first round to its model."""

    exp: Experiment
    net: Network
    gate: Gate
    folder: Path
    fed: Federation
    model: nn.Module
    engine: OnFlower
    recorder: Recorder
    server: Server
    held: Examples | None
    moved: dict[str, float] = field(default_factory=dict)  # how far clients did, in the last round that had replies

    @classmethod
    def of(cls, exp: Experiment, net: Network, gate: Gate, folder: Path) -> "Session":
        """Once the first clients are there, and it is known what their data looks like."""
        agreed = gate.roster.facts
        sets, held, vocabulary = _own_sets(exp, net, agreed)
        fake = made_up(tuple(agreed["shape"]), agreed["words"])
        fed, model = federation(exp, fake, agreed["classes"], vocabulary, exp.device)
        exp.recipe.check(offered(fed.task, fake.y, agreed["classes"], held is not None))
        agreed["settled"] = True
        check_classifier(fed.task, *first_model(fed.task, model), fed.clients.x, exp.recipe.needs)
        server = first_server(fed, model, known_of(gate.news(), gate.roster, agreed["classes"]))
        place = server.model.device, fed.task.layout.dtype
        sets = {n: _at(s, *place) for n, s in sets.items()}
        for name, examples in sets.items():
            try_out(fed.task, server.model, server.buffers, *examples, f"the {name} set")
        common = gate.post, gate.roster, gate.members, net, exp.settings(), agreed["classes"]
        engine = OnFlower(fed, sets, *common, rehearsal(fed, server))
        recorder = Recorder(folder, exp.recipe, exp.settings(), fed.task.layout, Vault({}))
        return cls(exp, net, gate, folder, fed, model, engine, recorder, server, held and _at(held, *place))

    def begin(self, resume: bool) -> None:
        """Make the run folder, or go on in it."""
        if resume:
            self.exp.refuse_other(self.folder)
            last = self.recorder.resume(self.server, self.exp.rounds)
            self.server = joined(self.exp.recipe, last, self.server.stats)
        else:
            self.recorder.begin()
        self.gate.roster.write(self.folder)

    def rounds(self, on_round: Callable[[dict[str, Any]], None] | None) -> None:
        """Round after round until all are played, or enough is reached; then the model."""
        with self.recorder.recording():
            stopped = any("stopped" in line for line in self.recorder.lines)
            for number in range(self.server.number, self.server.number if stopped else self.exp.rounds):
                line = self.round(number)
                self.gate.roster.write(self.folder)
                self.recorder.checkpoint(self.server)
                if on_round is not None:
                    on_round(line)
                if "stopped" in line:
                    break
            self.finish()
        self.recorder.finish(trained_model(self.exp.recipe, self.model, self.server))

    def round(self, number: int) -> dict[str, Any]:
        """One round, recorded."""
        began, self.engine.told = perf_counter(), Told()
        there = self.gate.gather()
        known = known_of(self.gate.news(), self.gate.roster, self.engine.classes)
        self.server = joined(self.exp.recipe, self.server, known)
        present = torch.zeros(self.server.population, dtype=torch.bool)
        present[there] = True
        spare = self.net.over_select - 1
        self.server, line, notes = play(
            self.fed, self.engine, self.server, self.held, self.exp.on_nonfinite, present=present, spare=spare
        )
        self._doubt(line, notes)
        if (number + 1) % self.exp.evaluate_every == 0 or number + 1 == self.exp.rounds:
            line |= self.scores(there)
        line |= self.engine.told.line() | {"online": len(there), "seconds": round(perf_counter() - began, 4)}
        if self.gate.refused:
            line["refused"] = {str(n): why for n, why in self.gate.refused.items()}
        if (why := enough([*self.recorder.lines, line], self.net)) is not None:
            line["stopped"] = why
        self.recorder.round(line, notes)
        log.info("round %d: %s", number, _in_words(line))
        return line

    def _doubt(self, line: dict[str, Any], notes: Arrays) -> None:
        """Where all replies have NaN, the model itself may be broken: say who moved it most when it last changed."""
        if "drift" in notes:
            self.moved = dict(zip(self.engine.sound, notes["drift"].norm(dim=1).tolist(), strict=False))
        elif line["dropped"] and not self.engine.sound and len(self.moved) > 1:
            first, second, *_ = sorted(self.moved, key=self.moved.__getitem__, reverse=True)
            far, next_ = self.moved[first], self.moved[second]
            said = f"{first} moved it by {far:.3g} when it last changed, {second} by {next_:.3g}"
            line["warnings"].append(f"every reply had NaN, so the global model itself may be broken: {said}")
            log.warning("round %d: %s", line["round"], line["warnings"][-1])

    def scores(self, ids: list[int]) -> dict[str, Any]:
        """On the server's own sets, and on the clients' data."""
        line = evaluate(self.fed, self.engine, self.server)
        if self.exp.evaluate_train:
            shown = self.exp.recipe.shown(self.server.state, self.server.model)
            line = self.engine.evaluate(self.server, shown, ids) | line  # the server's own test set counts first
        return line

    def finish(self) -> None:
        """What the recipe does once, in the end."""
        if self.exp.recipe.finish:
            began, self.engine.told = perf_counter(), Told()
            self.server = finish(self.fed, self.engine, self.server)
            line = finish_line(self.server) | self.scores(self.gate.present())
            self.recorder.round(line | self.engine.told.line() | {"seconds": round(perf_counter() - began, 4)})


def joined(recipe: Recipe, server: Server, known: Arrays) -> Server:
    """The server with what some clients newly said of themselves, [N, ...] each, and seats for those who are new."""
    count = len(known["examples"])
    state = server.state
    if count > server.population:
        fresh = recipe.init(server.layout, count)
        state = recipe.joined(state, server.population / count)
        state = {part: {n: _grown(v, fresh[part].get(n, v)) for n, v in own.items()} for part, own in state.items()}
    here = known["examples"] > 0
    stats: Arrays = {}
    for name, old in server.stats.items():
        none = old.new_full((count - len(old), *old.shape[1:]), 0.0 if name in known else torch.nan)
        stats[name] = torch.cat([old, none])
        if name in known:
            stats[name][here] = known[name][here].to(old)
    return replace(server, state=state, stats=stats)


def _grown(old: Tensor, fresh: Tensor) -> Tensor:
    """A table of the clients with rows for those who are new; anything else as it is."""
    if old.dim() == 0 or len(old) == len(fresh) or old.shape[1:] != fresh.shape[1:]:
        return old
    return torch.cat([old, fresh[len(old) :].to(old)])


def enough(lines: list[dict[str, Any]], net: Network) -> str | None:
    """Why a run ends before its last round, if it does."""
    shown = [s for line in lines if (s := _watched(line)) is not None]
    if not shown:
        return None
    if net.stop_target and shown[-1] >= net.stop_target:
        return f"stopped: the accuracy is {shown[-1]:.4f}, and {net.stop_target} was wanted"
    best = shown.index(max(shown))
    if net.stop_patience and len(shown) - 1 - best >= net.stop_patience:
        return f"stopped: the accuracy has not become better than {shown[best]:.4f} in {net.stop_patience} evaluations"
    return None


def _watched(line: Mapping[str, Any]) -> float | None:
    """The accuracy that tells when to stop: on the validation set, else on the test set, else on the clients' data."""
    there = next((line[n] for n in ("val", "test", "train") if n in line), {})
    return there.get("accuracy")


def _own_sets(exp: Experiment, net: Network, agreed: Mapping[str, Any]) -> tuple[dict[str, Examples], Any, int | None]:
    """(what the server tests and validates on, what it has for recipes that need some, the number of words)."""
    if agreed["parts"]:
        data = exp.dataset()
        test, val, vocabulary = data.test, data.val, data.vocabulary
    else:
        test, val, vocabulary = _test_file(net, exp, agreed), None, None
    held = None
    if exp.proxy is not None:
        check(test is not None, f"proxy = {exp.proxy} takes examples from a test set; give the server one, test = FILE")
        assert test is not None
        held, test = held_out(test, exp.proxy, exp.proxy_tail)
    sets = {"val": val, "test": test}
    return {n: s for n, s in sets.items() if s is not None}, held, vocabulary


def _test_file(net: Network, exp: Experiment, agreed: Mapping[str, Any]) -> Examples | None:
    """All examples of the server's own file; words for labels are numbered and columns taken as on the nodes."""
    if not net.test:
        return None
    path, how = Path(net.test).expanduser(), {"classes": agreed["names"] or (), "without": exp.left_out}
    how["features"] = agreed.get("columns", ())
    data = load_own(path, exp.label, exp.client, alone=True, **how)
    x, y = torch.cat([data.train[0], data.test[0]]), torch.cat([data.train[1], data.test[1]])
    if data.scaled and (len(y) < FEW or len(y.unique()) < 2):
        log.warning("%s is scaled by its own %d examples of %d classes; %s", path, len(y), len(y.unique()), SCALED)
    return x, y


def _at(examples: Examples, device: torch.device, dtype: torch.dtype) -> Examples:
    x, y = examples
    return x.to(device, dtype if x.is_floating_point() else x.dtype), y.to(device)


def _new_folder(exp: Experiment) -> Path:
    root = Path("~/fedstrata/runs").expanduser()
    folder = root / f"{datetime.now():%Y%m%d-%H%M%S}-{exp.recipe.fingerprint}"
    if folder.exists():
        raise SettingError(f"{folder} is there already; say where the run goes, out = ...")
    return folder


def _in_words(line: Mapping[str, Any]) -> str:
    seen = _watched(line)
    bad = [f"{n} {', '.join(line[n])}" for n in ("quarantined", "failed", "silent", "lost") if n in line]
    said = [f"accuracy {seen:.4f}"] if seen is not None else []
    return "; ".join(
        [f"{len(line['cohort'])} clients asked", *said, *bad, *([line["stopped"]] if "stopped" in line else [])]
    )
