"""Bad clients, tiny clients, nobody at all: as the specification says in 1.4 and 1.5."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import fedstrata as fs
from fedstrata import closed
from fedstrata.core import Recipe
from fedstrata.descent import Federation
from fedstrata.errors import NeedError, NotFiniteError
from fedstrata.parts import Calmest, Sample
from fedstrata.runtimes import Stacked, Vault
from fedstrata.server import Server
from fedstrata.simulate import first_server, first_stats, play
from fedstrata.task import Task
from tests.federations import PLAIN, final_model, flat, mlp, unequal_clients

R = fs.recipes


@dataclass(frozen=True)
class Saboteur(fs.Local):
    """A client of three examples returns NaN, and would remember it."""

    size: int = 3

    @property
    def additive(self):
        return True

    def enroll(self, task, buffers):
        return {"turns": task.layout.zeros()[0]}

    def correct(self, grad, w, turn):
        return torch.where(turn.stats["examples"] == self.size, torch.nan, grad)

    def report(self, w, turn):
        return {"turns": turn.memory["turns"] + 1}, {"turns": turn.memory["turns"] + 1}

    def absorb(self, state, proposal, round):
        round.note(turns=round.uploads["turns"])
        return proposal, state


def with_saboteur(recipe: Recipe, size: int = 3) -> Recipe:
    return replace(recipe, local=(*recipe.local, Saboteur(size)))


@pytest.mark.parametrize(
    "name", [n for n in PLAIN if n not in ("feddc", "ccvr")]
)  # whose mean of n counts client 1's examples, and whose last survey counts it
def test_a_client_that_returns_nan_counts_for_nothing(name):
    """The run is that of a federation in which this client has no data, but for FedDyn and SCAFFOLD's 1/N."""
    recipe = R.METHODS[name]()
    run = fs.simulate(with_saboteur(recipe), mlp(), unequal_clients(), rounds=3, training=fs.SGD(lr=0.1, batch=5))
    assert [r["dropped"] for r in run.rounds] == [[1]] * 3
    assert all("client 1 returned" in r["warnings"][0] for r in run.rounds)
    clients = unequal_clients()
    rows = [r[:0] if i == 1 else r for i, r in enumerate(clients.rows)]
    without = fs.simulate(
        recipe, mlp(), fs.Clients.split(clients.x, clients.y, rows), rounds=3, training=fs.SGD(lr=0.1, batch=5)
    )
    torch.testing.assert_close(flat(run.model), flat(without.model), rtol=0, atol=1e-10)


def test_a_dropped_client_keeps_its_memory_as_it_was():
    run = fs.simulate(with_saboteur(R.fedavg()), mlp(), unequal_clients(), rounds=3)
    assert run.notes[-1]["turns"].tolist() == [3.0] * 6  # six clients of seven had their third turn


@dataclass(frozen=True)
class BadUpload(fs.Local):
    """The client of three examples trains well and uploads infinity."""

    def enroll(self, task, buffers):
        return {"turns": task.layout.zeros()[0]}

    def report(self, w, turn):
        turns = turn.memory["turns"] + 1
        return {"turns": turns}, {"said": torch.where(turn.stats["examples"] == 3, torch.inf, turns)}


def test_a_client_whose_upload_alone_is_not_finite_is_dropped_and_keeps_its_memory():
    fed, vault, server = parts_of(R.fedavg(local=BadUpload()))
    for _ in range(2):
        server, line, _ = play(fed, Stacked(fed, vault, {}), server, None, "drop")
        assert line["dropped"] == [1]
    turns = {k: float(m["local.0"]["turns"]) for k, m in vault.memories.items()}
    assert turns == dict.fromkeys([0, 2, 3, 4, 5, 6], 2.0)


def parts_of(recipe: Recipe) -> tuple[Federation, Vault, Server]:
    task = Task.of(mlp())
    fed = Federation(recipe, task, unequal_clients(), fs.SGD(lr=0.1, batch=5))
    return fed, Vault(recipe.enroll(task, {})), first_server(fed, mlp(), first_stats(fed))


class Overflowing(torch.nn.Module):
    """Its losses overflow for large examples in evaluation mode, where variances are measured; training is fine."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 3, dtype=torch.float64)

    def forward(self, x):
        return self.layer(x if self.training else x.exp().exp() * 0 + x)


@pytest.mark.parametrize("recipe", [R.fedpbs(), R.fedpbs(aggregation="sat"), R.fedbs(select=Sample(k=7))], ids=str)
def test_a_client_whose_variance_is_not_finite_is_left_out(recipe):
    clients = unequal_clients()
    clients.x[clients.rows[2]] += 50.0
    run = fs.simulate(recipe, Overflowing(), clients, rounds=3, training=fs.SGD(lr=0.01, batch=5))
    assert [r["dropped"] for r in run.rounds] == [[2]] * 3
    assert all(n["variance"].isfinite().all() for n in run.notes)
    assert all(v.isfinite().all() for v in run.model.state_dict().values())


def test_moon_needs_no_model_that_is_finite_at_zero():
    torch.manual_seed(0)
    first = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(6, 5, dtype=torch.float64))
    model = torch.nn.Sequential(first, torch.nn.ReLU(), torch.nn.Linear(5, 3, dtype=torch.float64))
    run = fs.simulate(R.moon(), model, unequal_clients(), rounds=2, engine="apart")
    assert [r["dropped"] for r in run.rounds] == [[], []]


def test_nonfinite_replies_can_be_an_error():
    with pytest.raises(NotFiniteError, match="round 0: client 1 returned"):
        fs.simulate(with_saboteur(R.fedavg()), mlp(), unequal_clients(), rounds=1, on_nonfinite="raise")


@pytest.mark.parametrize("name", [n for n in PLAIN if n != "ccvr"])
def test_a_round_without_a_usable_client_changes_nothing(name):
    clients = unequal_clients(sizes=(3, 3))
    run = fs.simulate(with_saboteur(R.METHODS[name]()), mlp(), clients, rounds=2, training=fs.SGD(lr=0.1, batch=2))
    assert torch.equal(flat(run.model), flat(R.METHODS[name]().adapt(mlp(), fs.SGD(), 0)[0]))
    assert run.rounds[-1]["dropped"] == [0, 1]
    assert run.notes[-1] == {}
    assert run.rounds[-1]["empty"]
    assert "nothing changed" in run.rounds[-1]["warnings"][-1]


def test_a_client_with_one_example_trains_on_it():
    assert final_model(R.fedavg(), clients=unequal_clients(sizes=(1, 5))).isfinite().all()
    clients, one = unequal_clients(sizes=(1,)), mlp()
    run = fs.simulate(R.fedavg(), one, clients, rounds=1, training=fs.SGD(lr=0.1, batch=20))
    torch.nn.functional.cross_entropy(one(clients.x), clients.y).backward()
    want = torch.cat([(p.detach() - 0.1 * p.grad).reshape(-1) for p in one.parameters() if p.grad is not None])
    torch.testing.assert_close(flat(run.model), want)


@pytest.mark.parametrize("name", PLAIN)
def test_a_client_without_examples_is_never_asked(name):
    run = fs.simulate(R.METHODS[name](), mlp(), unequal_clients(sizes=(8, 0, 5, 0, 9)), rounds=2)
    assert all(r["cohort"] == [0, 2, 4] for r in run.rounds)
    assert run.final["train"]["accuracy"] >= 0


@pytest.mark.parametrize("select", [Sample(k=1), Sample(fraction=0.01), Calmest(1)])
def test_a_cohort_may_be_one_client(select):
    run = fs.simulate(R.fedlayerwise(select=select), mlp(), unequal_clients(), rounds=3)
    assert all(len(r["cohort"]) == 1 for r in run.rounds)


def test_a_diverged_server_stops_with_a_sentence():
    @dataclass(frozen=True)
    class Explode(fs.Step):
        def step(self, state, proposal, round):
            return proposal * torch.inf, state

    with pytest.raises(NotFiniteError, match="lower the learning rate"):
        fs.simulate(R.fedavg(server=Explode()), mlp(), unequal_clients(), rounds=1)


def test_needs_are_checked_before_anything_runs(tmp_path):
    @dataclass(frozen=True)
    class NeedsProxy(fs.Step):
        @property
        def needs(self):
            return frozenset({"proxy"})

        def step(self, state, proposal, round):
            assert round.proxy is not None
            round.note(proxy_loss=round.proxy.loss(proposal))
            return proposal, state

    recipe, clients = R.fedavg(server=NeedsProxy()), unequal_clients()
    with pytest.raises(NeedError, match=r"NeedsProxy needs .* give the experiment some, e.g. proxy = 200"):
        fs.simulate(recipe, mlp(), clients, rounds=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    run = fs.simulate(recipe, mlp(), clients, rounds=1, proxy=(clients.x[:9], clients.y[:9]))
    assert run.notes[0]["proxy_loss"] > 0


def test_moon_says_what_kind_of_model_it_needs():
    class NoLinear(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(6, 3, dtype=torch.float64))

        def forward(self, x):
            return x @ self.w

    logreg = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 3)).double()
    with pytest.raises(NeedError, match="comes after other layers"):
        fs.simulate(R.moon(), logreg, unequal_clients(), rounds=1)
    with pytest.raises(NeedError, match="Moon needs features: give a model whose linear classifier"):
        fs.simulate(R.moon(), NoLinear(), unequal_clients(), rounds=1)
    assert fs.simulate(R.fedavg(), NoLinear(), unequal_clients(), rounds=1).final["train"]["loss"] > 0


def test_a_recipe_may_be_a_text_and_a_method_needs_its_brackets():
    text = fs.simulate("fedprox(mu=0.3) + lws(beta=0.2)", mlp(), unequal_clients(), rounds=2)
    assert text.recipe == fs.recipes.combine(R.fedprox(mu=0.3), R.fedlws(beta=0.2))
    with pytest.raises(fs.FedstrataError, match="recipe must be a Recipe; got <function fedavg"):
        fs.simulate(R.fedavg, mlp(), unequal_clients(), rounds=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(fs.FedstrataError, match="a recipe has no setting 'shrnk'; did you mean 'shrink'"):
        R.fedavg(shrnk=fs.parts.LWS())


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        (torch.zeros(5, 6), torch.zeros(5), "needs whole-number labels below 3, one an example; got torch.float64"),
        (torch.zeros(5, 6), torch.full((5,), 7), r"needs whole-number labels below 3.* up to 7"),
        (torch.zeros(5, 6), torch.zeros(5, 1).long(), r"one an example; got torch.int64 targets of shape \(10, 1\)"),
        (torch.zeros(5, 4), torch.zeros(5).long(), r"the model does not take examples of shape \(4,\)"),
        (torch.zeros(5, 6), torch.full((5,), torch.nan), "targets that are NaN or infinite"),
    ],
)
def test_data_that_does_not_fit_is_a_sentence_before_anything_runs(x, y, sentence):
    with pytest.raises(fs.FedstrataError, match=sentence):
        fs.simulate(R.fedavg(), mlp(), [(x, y), (x, y)], rounds=1)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"rounds": 0}, "rounds must be at least 1"), ({"seed": -1}, "seed must not be negative"),
        ({"loss": "cross_entropi"}, "did you mean 'cross_entropy'"),
        ({"engine": "cloud"}, "engine must be one of 'auto', 'stacked', 'pool', 'apart'"),
        ({"buffers": "averege"}, "buffers must be one of"), ({"on_nonfinite": "Raise"}, "on_nonfinite must be one of"),
        ({"rounds": 2.5}, "rounds must be a whole number"), ({"device": "warp"}, "the device 'warp' cannot be used"),
        ({"loss": torch.nn.CrossEntropyLoss(weight=torch.tensor([99.0, 1, 1]).double())}, "reduction='none'"),
        ({"loss": "squared_error"}, "puts out 3 numbers an example but the targets have 1"),
        ({"metrics": {"mean": lambda o, y: o.mean()}}, "metric 'mean' must give one number an example"),
        ({"val": (torch.zeros(0, 6), torch.zeros(0))}, "the val set is empty"),
        ({"chunk": 0}, "chunk must be at least 1"), ({"test": (torch.zeros(3, 6), torch.zeros(2))}, "3 examples but 2"),
        ({"evaluate_every": 0}, "evaluate_every must be"),
    ],
)  # fmt: skip
def test_wrong_settings_get_a_sentence(settings, sentence):
    with pytest.raises(fs.FedstrataError, match=sentence):
        fs.simulate(R.fedavg(), mlp(), unequal_clients(), **({"rounds": 1} | settings))


@pytest.mark.parametrize("engine", ["stacked", "pool", "apart"])
@pytest.mark.parametrize("name", ["test", "val", "proxy"])
@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        (torch.zeros(4, 6), [0, 1, 2, 7], "needs whole-number labels below 3, .* up to 7"),
        (torch.zeros(4, 6), [0.0, 1.0, 2.0, 1.0], "needs whole-number labels below 3"),
        (torch.zeros(4, 5), [0, 1, 2, 1], r"does not take examples of shape \(5,\)"),
    ],
)
def test_other_sets_that_do_not_fit_are_a_sentence_too(x, y, sentence, name, engine, monkeypatch):
    monkeypatch.setattr(closed, "PAYS", 0)  # compiled loops would read beyond the end of memory
    model = torch.nn.Linear(6, 3, dtype=torch.float64)
    given: dict[str, Any] = {"rounds": 1, "engine": engine, name: (x, y)}
    with pytest.raises(fs.FedstrataError, match=f"the {name} set: .*{sentence}"):
        fs.simulate(R.fedavg(), model, unequal_clients(), **given)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("engine", ["stacked", "apart", "pool"])
def test_a_client_whose_examples_are_not_finite_is_dropped(bad, engine):
    clients = unequal_clients()
    x = clients.x.clone()
    x[torch.from_numpy(clients.rows[2])] = bad
    run = fs.simulate("fedavg", mlp(), replace(clients, x=x), rounds=2, engine=engine)
    assert [r["dropped"] for r in run.rounds] == [[2], [2]]
    assert all(p.isfinite().all() for p in run.model.parameters())


class Masked(torch.nn.Module):
    """Nobody has a label of the last class, which its mask rules out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(6, 4, dtype=torch.float64)
        self.register_buffer("mask", torch.tensor([0.0, 0, 0, -torch.inf]).double())

    def forward(self, x):
        return self.layer(x) + self.get_buffer("mask")


@pytest.mark.parametrize("policy", ["average", "global", "local"])
@pytest.mark.parametrize("how", [{"engine": e} for e in ("stacked", "apart", "pool")] + [{"memory": 1e-9}], ids=str)
def test_a_mask_of_minus_infinity_condemns_nobody_and_stays(how, policy):
    clients = unequal_clients()
    clients.x[clients.rows[1]] = torch.nan  # who is still found out
    run = fs.simulate("fedavg", Masked(), clients, rounds=2, buffers=policy, **how)
    assert [r["dropped"] for r in run.rounds] == [[1], [1]]
    assert run.model.get_buffer("mask").tolist() == [0, 0, 0, -torch.inf]
    assert not torch.equal(flat(run.model), flat(Masked()))


@pytest.mark.parametrize("recipe", ["fedlws_official", "ldawa_official", "feddisco(a=9.0) + lws"])
def test_a_mask_survives_parts_that_look_at_buffers_and_clients_that_weigh_nothing(recipe):
    run = fs.simulate(recipe, Masked(), unequal_clients(), rounds=4)
    assert run.model.get_buffer("mask").tolist() == [0, 0, 0, -torch.inf]
    assert flat(run.model).isfinite().all()
