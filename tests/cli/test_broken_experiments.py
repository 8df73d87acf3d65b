"""Experiment files with something wrong in them: one sentence that names the file and the place, and exit code 2."""

from pathlib import Path

import pytest

from fedstrata.commands.settings import Options
from fedstrata.errors import SettingError
from tests.cli.test_cli import fedstrata

BROKEN = {
    # not TOML at all
    "two equals signs": ("rounds = = 3", "line 1"),
    "an open text": ('method = "fedavg\nrounds = 3', "line 1"),
    "a key twice": ("rounds = 3\nrounds = 4\nseed = 1", "line 2"),
    "an open table": ("[training\nlr = 0.1", "line 1"),
    # unknown names
    "an unknown key": ("roundz = 3", "'roundz'; did you mean 'rounds'?"),
    "an unknown table": ("[trainig]\nlr = 0.1", "'trainig'; did you mean 'training'?"),
    "an unknown key of the training": ("[training]\nlearning_rate = 0.1", "[training] SGD has no setting"),
    "an unknown key of the partition": ("[partition]\nalpa = 0.1", "[partition] Dirichlet has no setting 'alpa'"),
    "an unknown kind of partition": ('[partition]\nkind = "dirichlet"', "did you mean 'Dirichlet'?"),
    "an unknown kind of training": ('[training]\nkind = "Adm"', "[training] no training is called 'Adm'"),
    "an unknown method": ('method = "fedprocs"', "method: no method is called 'fedprocs'; did you mean 'fedproc'?"),
    "an unknown setting of a method": ('method = "fedprox(mmu=1)"', "method: fedprox has no setting 'mmu'"),
    "an unknown part": ('[recipe]\nselect = {kind = "Evryone"}\nweigh = {kind = "BySize"}', "'Evryone'"),
    "an unknown key of a part": (
        '[recipe]\nselect = {kind = "Everyone"}\nweigh = {kind = "Angle", alfa = 3}',
        "[recipe] Angle has no setting 'alfa'",
    ),
    "an unknown data set": ('data = "digitz"', "no data set is called 'digitz' (a file of yours"),
    "an unknown model": ('model = "mlpp"', "no model is called 'mlpp'"),
    "an unknown option of a model": ('model = "resnet20(nurm=1)"', "'nurm'"),
    "an unknown device": ('device = "warp"', "the device 'warp' cannot be used"),
    "an unknown engine": ('engine = "steam"', "engine must be one of"),
    # wrong types
    "a text for a number": ('rounds = "ten"', "rounds must be a whole number; got 'ten'"),
    "a fraction for a whole number": ("rounds = 2.5", "rounds must be a whole number; got 2.5"),
    "true for a number": ("seed = true", "seed must be a whole number; got True"),
    "a date for a number": ("seed = 2026-01-01", "seed must be a whole number"),
    "a number for a text": ("data = 3", "data must be a text; got 3"),
    "a number for a method": ("method = 3", "method must be a text"),
    "a list for a method": ('method = ["fedavg", "fedprox"]', "method must be a text"),
    "a text for a table": ('training = "SGD"', "training must be a Training; got 'SGD'"),
    "a list of tables for a table": ("[[training]]\nlr = 0.1", "training must be a Training"),
    "a table for a number": ("[rounds]\nmany = 3", "rounds must be a whole number"),
    "a number for true or false": ("evaluate_train = 1", "evaluate_train must be true or false; got 1"),
    "a text in the training": ('[training]\nlr = "fast"', "[training] SGD.lr must be a number; got 'fast'"),
    "infinity": ("[training]\nlr = inf", "[training] SGD.lr must be a number; got inf"),
    # impossible values
    "no rounds": ("rounds = 0", "rounds must be at least 1; got 0"),
    "a negative seed": ("seed = -1", "seed must not be negative; got -1"),
    "a negative rate": ("[training]\nlr = -0.1", "SGD.lr must be above 0; got -0.1"),
    "an empty batch": ("[training]\nbatch = 0", "SGD.batch must be at least 1; got 0"),
    "no clients": ("[partition]\nclients = 0", "Dirichlet.clients must be at least 1; got 0"),
    "too many clients": ("[partition]\nclients = 5000", "5000 clients"),
    "a zero alpha": ("[partition]\nalpha = 0", "Dirichlet.alpha must be above 0; got 0"),
    "all data to validate on": ("val = 1.0", "val must be in (0, 1); got 1.0"),
    "a proxy that cannot be had": ("proxy = 3", "proxy = 3 cannot be had"),
    "a file that is not there": ('data = "nowhere/mine.csv"', "there is no file or folder"),
    # contradictions
    "a method and a recipe": ('method = "fedavg"\n[recipe]\nselect = {}', "give either method or recipe, not both"),
    "two weighings": ('method = "fedadp + feddisco"', "method: a recipe has one weigh part"),
    "half a recipe": ('[recipe]\nselect = {kind = "Everyone"}', "[recipe] Recipe needs a value for weigh"),
    "a recipe made in Python": ('made_in_python = "a model"', "cannot be run from its file alone"),
    # sweeps
    "a sweep that is no table": ("sweep = 3", "[sweep] must be a table of lists; got 3"),
    "an empty sweep": ("[sweep]", "[sweep] is empty"),
    "a swept value alone": ("[sweep]\nseed = 3", "[sweep] seed must be a list of values; got 3"),
    "an empty list": ("[sweep]\nseed = []", "[sweep] seed is an empty list"),
    "a value twice": ("[sweep]\nseed = [1, 2, 1]", "[sweep] seed has 1 twice"),
    "an unknown key in a sweep": ("[sweep]\nseeds = [1, 2]", "[sweep] seeds = 1: Experiment has no setting 'seeds'"),
    "a wrong value in a sweep": ('[sweep]\n"training.lr" = [0.1, -1]', "[sweep] training.lr = -1: [training] SGD.lr"),
    "a wrong method in a sweep": ('[sweep]\nmethod = ["fedavg", "fedprx"]', "[sweep] method = fedprx: method: no"),
    "a setting of a number in a sweep": ("rounds = 3\n[sweep]\n\"rounds.x\" = [1]", "'rounds.x' is not a setting"),
    "a setting twice in a sweep": ('[sweep]\n"training.lr" = [1]\ntraining.lr = [2]', "[sweep] has training.lr twice"),
    "a sweep without end": (f"[sweep]\nseed = {list(range(200))}\nrounds = {list(range(1, 101))}", "20,000 exp"),
    "an unknown model in a sweep": ('[sweep]\nmodel = ["mlp", "mlpp"]', "no model is called 'mlpp'"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "place"), BROKEN.values(), ids=BROKEN)
def test_a_broken_experiment_is_one_sentence_that_names_the_file_and_the_place(
    text, place, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    Path("broken.toml").write_text(text)
    assert fedstrata("run", "broken.toml") == 2
    said = capfd.readouterr()
    assert said.out == ""
    [sentence] = said.err.splitlines()
    assert sentence.startswith("fedstrata: ")
    assert sentence.count("broken.toml") == 1
    assert place in sentence
    assert not list(tmp_path.glob("runs/*"))


def test_there_are_thirty_of_them_and_more():
    assert len(BROKEN) >= 30


def test_what_an_option_did_is_not_blamed_on_the_file_alone(tmp_path):
    file = tmp_path / "fine.toml"
    file.write_text("rounds = 3")
    options = Options(file, None, {"rounds": 0})
    _, settings = options.read()
    with (
        pytest.raises(SettingError, match=r"fine.toml and the options given: rounds") as wrong,
        options.blamed(),
    ):
        raise SettingError("rounds must be at least 1")
    assert settings["rounds"] == 0
    assert str(wrong.value).count(str(file)) == 1


def test_a_setting_that_is_swept_cannot_be_an_option_too(tmp_path, capsys):
    file = tmp_path / "sweep.toml"
    file.write_text("[sweep]\nseed = [0, 1]\ntraining.lr = [0.1, 0.2]")
    for more in (("--seed", "3"), ("--set", "training.lr=1")):
        assert fedstrata("run", str(file), *more) == 2
        assert "is in [sweep]; leave out the option that sets it too" in capsys.readouterr().err
