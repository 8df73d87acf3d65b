import pytest

from fedstrata.core import Recipe
from fedstrata.errors import SettingError
from fedstrata.parse import parse_recipe
from fedstrata.parts import LWS, Angle, BySize, Equal, Everyone, FixedShrink, PerLayer, Prox, Sample, Scaffold
from fedstrata.recipes import METHODS, fedavg, fedbs, fedlws, fedpbs, fedprox, scaffold


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_named_by_its_name(name: str):
    assert parse_recipe(name) == parse_recipe(f"{name}()") == METHODS[name]()


@pytest.mark.parametrize(
    ("text", "recipe"),
    [
        ("fedprox(mu=0.1)", fedprox(mu=0.1)),
        ("  fedprox( mu = 1e-1 )\n", fedprox(mu=0.1)),
        ("fedprox(mu=1)", fedprox(mu=1.0)),
        ("fedavg(weighting='uniform')", fedavg("uniform")),
        ('fedavg(weighting="uniform")', fedavg("uniform")),
        ("fedbs(k=None)", fedbs(k=None)),
        ("fedbs(k=3, tau=2)", fedbs(k=3, tau=2.0)),
        ("fedpbs(threshold='median', aggregation='sat')", fedpbs(aggregation="sat")),
        ("fedprox(mu=0.1, select=Sample(k=10))", fedprox(mu=0.1, select=Sample(k=10))),
        ("fedprox(mu=PerLayer(values=(0.1, 1)))", fedprox(mu=PerLayer((0.1, 1.0)))),
        ("fedprox(mu=PerLayer(values=[0.1, 1]))", fedprox(mu=PerLayer((0.1, 1.0)))),
        ("fedavg(local=Prox(mu=PerLayer(values=2)))", fedavg(local=Prox(PerLayer((2.0,))))),
        ("fedavg(local=(Prox(mu=0.1), Scaffold()))", fedavg(local=(Prox(0.1), Scaffold()))),
        ("fedavg(local=[Prox(mu=0.1), Scaffold()])", fedavg(local=(Prox(0.1), Scaffold()))),
        ("fedavg(shrink=(LWS(grain='model'), FixedShrink()))", fedavg(shrink=(LWS(grain="model"), FixedShrink()))),
        ("scaffold(shrink=LWS(beta=2))", scaffold(shrink=LWS(2.0))),
        ("fedlws(mode='fixed', variant='only_opt')", fedlws(mode="fixed", variant="only_opt")),
        ("fedavg(weigh=Angle(sign=-1, alpha=2))", fedavg(weigh=Angle(alpha=2.0))),
        ("fedavg(server=())", fedavg()),
    ],
)  # fmt: skip
def test_a_text_is_the_recipe_it_reads_like(text: str, recipe: Recipe):
    assert parse_recipe(text) == recipe
    assert parse_recipe(text).fingerprint == recipe.fingerprint


def test_slots_given_replace_those_of_the_method():
    assert parse_recipe("fedprox(mu=1, weigh=Equal())").weigh == Equal()
    assert parse_recipe("fedprox(mu=1, local=())").local == ()
    assert parse_recipe("fedavg") == Recipe(Everyone(), BySize())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("fedprx", "no method is called 'fedprx'; did you mean 'fedprox'?"),
        ("FedProx(mu=1)", "no method is called 'FedProx'; did you mean 'fedprox'?"),
        ("qqq", "no method is called 'qqq'; choose from adadecay, adagrad"),
        (
            "fedlws(mode='fixed', beta=9.0)",
            "fedlws(mode='fixed') shrinks by given factors: leave out beta and skip_norm",
        ),
        ("fedlws(mode='fixed', skip_norm=True)", "fedlws(mode='fixed') shrinks by given factors: leave out beta"),
        ("feddyn + fedlayerwise + lws", "say which in a method's brackets, as in feddyn(weigh=Angle()) + lws"),
        ("fedbs + fedavg(select=Sample(k=3))", "as in fedbs(select=Sample(k=10)) + lws"),
        ("fedprox(mmu=1)", "fedprox has no setting 'mmu'; did you mean 'mu'?"),
        (
            "fedavg(mu=1)",
            "fedavg has no setting 'mu'; choose from finish, local, lr, select, server, shrink",
        ),
        ("fedavg(selekt=Everyone())", "fedavg has no setting 'selekt'; did you mean 'select'?"),
        ("fedavg(slots=1)", "fedavg has no setting 'slots'"),
        ("fedavg(local=Proks(mu=1))", "no part is called 'Proks'; did you mean 'Prox'?"),
        ("fedavg(local=scaffold())", "no part is called 'scaffold'; did you mean 'Scaffold'?"),
        ("fedavg(local=SGD(lr=1))", "no part is called 'SGD'; choose from"),
        ("fedavg(local=Prox(mmu=1))", "Prox has no setting 'mmu'; did you mean 'mu'?"),
        ("fedavg(local=Prox(rate=1))", "Prox has no setting 'rate'; choose from mu"),
        ("fedavg(weighting='sample')", "weighting cannot be 'sample'; did you mean 'samples'?"),
        ("fedlws(mode='layers')", "mode cannot be 'layers'; did you mean 'layer'?"),
        ("fedlws(mode='xyz')", "mode cannot be 'xyz'; choose from fixed, layer, model, tensor"),
        ("fedpbs(aggregation='xyz')", "aggregation cannot be 'xyz'; choose from samples, sat, uniform"),
        ("fedavg(weighting=samples)", "'samples' in 'fedavg(weighting=samples)' is neither a number, a text in quotes"),
        ("fedavg(select=Everyone)", "'Everyone' in 'fedavg(select=Everyone)' is neither a number"),
    ],
)
def test_a_near_miss_is_pointed_out(text: str, sentence: str):
    with pytest.raises(SettingError) as error:
        parse_recipe(text)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("fedprox(mu='a')", "Prox.mu must be a number or a PerLayer; got 'a'"),
        ("fedprox(mu=-1)", "Prox.mu must not be negative; got -1.0"),
        ("fedprox(mu=True)", "Prox.mu must be a number or a PerLayer; got True"),
        ("fedprox(mu=Scaffold())", "Prox.mu must be a number or a PerLayer; got Scaffold(option=2)"),
        ("fedavg(select=Prox(mu=1))", "Recipe.select must be a Select; got Prox(mu=1.0, plain_sgd=False)"),
        ("fedavg(local=(Prox(mu=1), 3))", "Recipe.local[1] must be a Local; got 3"),
        ("fedavg(select=Sample())", "Sample needs either k or fraction"),
        ("fedavg(select=None)", "Recipe.select must be a Select; got None"),
    ],
)
def test_a_wrong_value_is_a_sentence(text: str, sentence: str):
    with pytest.raises(SettingError) as error:
        parse_recipe(text)
    assert sentence in str(error.value)


@pytest.mark.parametrize("text", ["fedprox(0.1)", "fedprox(*x)", "fedprox(**x)", "fedavg(local=Prox(0.1))"])
def test_positional_arguments_are_refused(text: str):
    with pytest.raises(SettingError, match=r"settings in .* need their names, e\.g\. fedprox\(mu=0\.1\)"):
        parse_recipe(text)


def test_a_part_of_ones_own_is_not_given_as_a_model_is():
    said = (
        r"'mine\.parts:Capped' in 'fedprox \+ mine\.parts:Capped\(cap=2\)' is not a part: .* called 'Capped', once its"
    )
    with pytest.raises(SettingError, match=said):
        parse_recipe("fedprox + mine.parts:Capped(cap=2)")


@pytest.mark.parametrize(
    "text",
    [
        "", "  ", "fedprox(", "fedprox mu=1", "1", "'fedprox'", "fedprox - fedavg", "x.fedprox", "x.fedprox(mu=1)",
        "fedprox()()", "fedprox, fedavg", "fedprox; fedavg", "a = fedprox", "[fedprox]", "lambda: fedprox", "\0",
        "__import__('os').getcwd()",
    ],
)  # fmt: skip
def test_what_is_not_a_recipe_is_refused(text: str):
    with pytest.raises(SettingError, match=r"is not a recipe; write e\.g\. fedprox or fedprox\(mu=0\.1\)"):
        parse_recipe(text)


@pytest.mark.parametrize(
    "value",
    ["1 + 1", "2 ** 3", "[x for x in (1,)]", "1 if True else 2", "f'{1}'", "mu", "not True", "(lambda: 1)", "a[0]"],
)
def test_expressions_are_refused(value: str):
    with pytest.raises(SettingError, match="is neither a number, a text in quotes nor a part"):
        parse_recipe(f"fedprox(mu={value})")


@pytest.mark.parametrize("value", ["print(end='')", "__import__(name='os')", "os.system(command='')", "open(file='x')"])
def test_nothing_is_ever_called_but_parts(value: str):
    with pytest.raises(SettingError, match=r"no part is called|is not a recipe"):
        parse_recipe(f"fedprox(mu={value})")


def test_a_setting_given_twice_is_refused():
    with pytest.raises(SettingError, match="mu"):
        parse_recipe("fedprox(mu=1, mu=2)")


def test_a_dictionary_that_python_itself_refuses_is_a_sentence():
    with pytest.raises(SettingError):
        parse_recipe("fedprox(mu={[]: 1})")
