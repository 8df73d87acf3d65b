"""An experiment: everything a run depends on, as one value that is read from and written to TOML."""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, final, get_type_hints

from torch import nn

from fedstrata.augment import Augment
from fedstrata.clients import Clients
from fedstrata.core import Recipe
from fedstrata.data import Dataset, dataset, held_out, is_own
from fedstrata.data.columns import named
from fedstrata.errors import SettingError, check
from fedstrata.faults import Faults
from fedstrata.models import model
from fedstrata.optim import SGD, Training
from fedstrata.parse import load_outside, parse_recipe
from fedstrata.partition import ByOwner, Dirichlet, Partition
from fedstrata.record import refuse_other
from fedstrata.simulate import Plan, Run, offered, simulate, usable_device
from fedstrata.task import Task
from fedstrata.values import Value, fit, load, sibling


@final
@dataclass(frozen=True, kw_only=True)
class Experiment(Plan):
    """A plan, and what it is about: data, its partition, a model, how clients train, the recipe."""

    recipe: Recipe
    data: str = "digits"  # a name, or the path of a file of one's own
    label: str = "label"  # the column of the labels in such a file, and that of the clients
    client: str = "client"
    without: str | None = None  # its columns that are no features, with commas between
    val: float | None = None  # this share of the training examples is set aside to validate on
    train_share: float = 1.0  # of its examples, each client trains on this share; the others it holds back
    partition: Partition | None = None  # by client where a file of one's own says whose examples they are; else SPLIT
    model: str = "mlp"
    training: Training = field(default_factory=lambda: SGD(lr=0.1, batch=20, epochs=4))
    augment: Augment | None = None  # random crops and flips of the training images
    rounds: int = 30
    proxy: int | None = None  # examples for the server, taken out of the test set, as many of each class
    proxy_tail: float = 1.0  # below 1 it is long-tailed: the last class has this share of the first one's examples

    def validate(self) -> None:
        super().validate()
        check(self.val is None or 0 < self.val < 1, f"val must be in (0, 1); got {self.val}")
        check(0 < self.train_share <= 1, f"train_share must be in (0, 1]; got {self.train_share}")
        check(self.proxy is None or self.proxy >= 1, f"proxy must be at least 1; got {self.proxy}")
        check(0 < self.proxy_tail <= 1, f"proxy_tail must be in (0, 1]; got {self.proxy_tail}")
        text = self.data.encode("utf-8", "replace").decode()  # a byte of a path that is none is a lone surrogate
        check(text == self.data, f"data = {text!r} is no UTF-8, in which it would be written down; rename it")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Experiment":
        """From a nested dictionary, as a TOML file has it; what it leaves out takes its default."""
        load_outside()
        settings = dict(settings)
        if "made_in_python" in settings:
            made = f"its model and data were given in Python ({settings['made_in_python']})"
            raise SettingError(f"this experiment cannot be run from its file alone: {made}; run it from there")
        if "method" in settings:
            check("recipe" not in settings, "give either method or recipe, not both")
            settings["recipe"] = _method(settings.pop("method"))
        many = "[sweep] makes many experiments; `fedstrata run` runs them all, and this takes one without it"
        check("sweep" not in settings, many)
        split = settings.get("partition")
        if isinstance(split, Mapping) and split.get("kind", "Dirichlet") == "Dirichlet":
            settings["partition"] = merged(SPLIT.to_dict(), split)
        settings = merged(DEFAULTS, settings)
        for key, kind in TABLES.items():
            if isinstance(settings.get(key), Mapping):
                with _said_of(f"[{key}]"):
                    settings[key] = load(settings[key], kind)
            elif key in settings:
                _refuse_no_table(key, settings[key])
        _refuse_out_of_place(settings)
        return cls.from_dict(settings)

    def dataset(self) -> Dataset:
        """What it trains and tests on."""
        data = dataset(self.data, self.label, self.client, self.left_out)
        return data if self.val is None else data.with_val(self.val)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The columns that are no features."""
        return named(self.without or "")

    @property
    def source(self) -> tuple[Any, ...]:
        """All that its data depends on."""
        return self.data, self.label, self.client, self.left_out, self.val

    def network(self, data: Dataset) -> nn.Module:
        """The model before the first round."""
        return model(self.model, data.shape, data.classes, self.seed, vocabulary=data.vocabulary)

    def with_proxy(self) -> "Experiment":
        """The same with data on the server, where its recipe needs some and nobody said how much."""
        return replace(self, proxy=PROXY) if "proxy" in self.recipe.needs and self.proxy is None else self

    def rehearse(self, data: Dataset) -> None:
        """Raise now what a run would find wrong with model, device, proxy and needs before its first round."""
        usable_device(self.device)
        network, _ = self.recipe.adapt(self.network(data), self.training, self.seed)
        if self.proxy is not None:
            held_out(data.test, self.proxy, self.proxy_tail)
        self.recipe.check(offered(Task.of(network), data.train[1], data.classes, self.proxy is not None))

    def settled(self, data: Dataset) -> "Experiment":
        """The same with its partition said, where nobody said one."""
        if self.partition is not None:
            return self
        return replace(self, partition=ByOwner() if is_own(self.data) and data.owner is not None else SPLIT)

    def clients(self, data: Dataset | None = None) -> Clients:
        """Who owns which training examples."""
        data = data or self.dataset()
        partition = self.settled(data).partition
        assert partition is not None
        return partition.split(*data.train, seed=self.seed, owner=data.owner).thinned(self.train_share, self.seed)

    def run(
        self,
        out: str | Path | None = None,
        on_round: Callable[[dict[str, Any]], None] | None = None,
        data: Dataset | None = None,
        resume: bool = False,
    ) -> Run:
        """Run it, or go on with it in its folder; the data can be given where it was loaded already."""
        data = data or self.dataset()
        self = self.settled(data)
        if resume and out is not None:
            self.refuse_other(Path(out), data)
        proxy, test = held_out(data.test, self.proxy, self.proxy_tail) if self.proxy is not None else (None, data.test)
        return simulate(
            self.recipe,
            self.network(data),
            self.clients(data),
            training=self.training,
            augment=self.augment,
            test=test,
            val=data.val,
            proxy=proxy,
            out=out,
            resume=resume,
            settings=self.settings(),
            on_round=on_round,
            **{f.name: getattr(self, f.name) for f in fields(Plan)},
        )

    def refuse_other(self, folder: Path, data: Dataset | None = None) -> None:
        """Refuse to go on where another one was begun; what its file leaves out takes its default."""
        if (file := folder / "experiment.toml").exists():
            begun = Experiment.of(read_toml(file)).with_proxy()
            refuse_other(self.settings(), (begun if data is None else begun.settled(data)).settings(), folder)


SPLIT = Dirichlet(clients=20, alpha=0.1)
"""How examples are dealt out where nobody says how."""

PROXY = 200
"""Examples that the server gets where a method needs some and nobody says how many."""

TABLES: dict[str, type[Value]] = {"recipe": Recipe, "partition": Partition, "training": Training}
TABLES |= {"augment": Augment, "faults": Faults}
"""The settings that are tables, and what they describe."""

LINES = {"partition": "kind = 'IID'", "training": "lr = 0.1", "augment": "crop = 4", "faults": "dropout = 0.1"}
"""What is written in a table, for instance."""

DEFAULTS = Experiment(recipe=parse_recipe("fedavg")).settings()
"""What an experiment says unless told otherwise."""


def read_toml(path: str | Path) -> dict[str, Any]:
    """A TOML file as a nested dictionary."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise SettingError(f"there is no file {path}") from None
    except (tomllib.TOMLDecodeError, OSError, UnicodeDecodeError) as e:
        raise SettingError(f"{path} cannot be read as TOML: {e}") from None


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Tables merge key by key; one of another kind keeps what both kinds know, but for the learning rate.

    Everything else is replaced, and so is the recipe.
    """
    both = dict(old)
    for key, value in new.items():
        was = old.get(key)
        if key == "recipe" or not (isinstance(value, Mapping) and isinstance(was, Mapping)):
            both[key] = value
            continue
        kind = value.get("kind", was.get("kind"))
        if kind != was.get("kind"):
            cls = sibling(str(kind), str(was.get("kind")))
            known = {f.name for f in fields(cls)} - {"lr"} if cls else set()  # pyright: ignore[reportArgumentType]
            was = {k: v for k, v in was.items() if k in known}
        both[key] = merged(was, value)
    return both


def put(settings: dict[str, Any], assignment: str) -> None:
    """Carry out `key=value` on a nested dictionary; the key may be dotted, the value is TOML or else a text."""
    path, equals, text = assignment.partition("=")
    check(bool(equals and path.strip()), f"--set {assignment!r} must read key=value, e.g. training.lr=0.1")
    try:
        value = tomllib.loads(f"v = {text.strip()}")["v"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    with _said_of(f"--set {assignment!r}:"):
        set_at(settings, path, value)


def set_at(settings: dict[str, Any], path: str, value: Any) -> None:
    """Set what a dotted name says in a nested dictionary; a number in it counts the items of a list from 0."""
    *tables, last = (p.strip() for p in path.split("."))
    at: Any = settings
    for table in tables:
        at = at[int(table)] if isinstance(at, list) and table.isdigit() and int(table) < len(at) else _table(at, table)
    check(isinstance(at, dict), f"{path.strip()!r} is not a setting")
    at[last] = value


def _table(at: Any, name: str) -> Any:
    check(isinstance(at, dict), f"{name!r} is not a table")
    return at.setdefault(name, {})


def _refuse_out_of_place(settings: Mapping[str, Any]) -> None:
    """Say of a setting that belongs into a table which one that is: `lr` is `training.lr`."""
    tables = {"training": settings.get("training"), "partition": settings.get("partition") or SPLIT}
    for name in sorted(settings.keys() - {f.name for f in fields(Experiment)}):
        where = [t for t, value in tables.items() if isinstance(value, Value) and name in value.to_dict()]
        check(not where, f"Experiment has no setting {name!r}; did you mean '{''.join(where[:1])}.{name}'?")


def _refuse_no_table(name: str, value: Any) -> None:
    """Say how a table is written where something else is given for it."""
    try:
        fit(get_type_hints(Experiment)[name], value, name)
    except SettingError as e:
        how = "give a method by its name as method = 'fedavg'"
        how = how if name == "recipe" else f"write the table [{name}] with lines like {LINES[name]}"
        raise SettingError(f"{e}; {how}") from None


def _method(text: Any) -> dict[str, Any]:
    """The recipe that a method's text means."""
    check(isinstance(text, str), f"method must be a text, e.g. 'fedprox(mu=0.1)'; got {text!r}")
    with _said_of("method:"):
        return parse_recipe(text).to_dict()


@contextmanager
def _said_of(where: str) -> Iterator[None]:
    """What is wrong within this block is said with its place."""
    try:
        yield
    except SettingError as e:
        raise SettingError(f"{where} {e}") from None
