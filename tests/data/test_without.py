"""Columns of a table that are no features are left out by name."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedstrata.data import load_own
from fedstrata.errors import DataError
from tests.cli.test_cli import fedstrata

ROWS = [f"{i},2026-01-{i % 28 + 1:02d},{i % 7},{'xy'[i % 2]},{i % 3}" for i in range(60)]
MESSY = "\n".join(["patient,admitted,age,client,label", *ROWS])


@pytest.fixture
def messy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("messy.csv").write_text(MESSY)
    return Path("messy.csv")


def test_what_is_left_is_as_if_they_had_never_been_there(messy: Path):
    rows = [line.split(",") for line in MESSY.splitlines()]
    Path("clean.csv").write_text("\n".join(",".join(r[2:]) for r in rows))
    data, clean = load_own(messy, without=("patient", "admitted")), load_own(Path("clean.csv"))
    assert data.shape == (1,)
    assert all(map(torch.equal, (*data.train, *data.test), (*clean.train, *clean.test)))


def test_messages_say_how_and_the_command_does_it(messy: Path, capsys: pytest.CaptureFixture[str]):
    args = ["run", "--data", "messy.csv", "--model", "logreg", "--rounds", "2"]
    assert fedstrata(*args) == 2
    assert "leave it out (--without admitted)" in " ".join(capsys.readouterr().err.split())
    assert fedstrata(*args, "--without", "admitted") == 0
    assert "leave it out (--without patient)" in " ".join(capsys.readouterr().err.split())
    assert fedstrata(*args, "--without", "admitted, patient", "--out", "one") == 0
    assert "--without" not in capsys.readouterr().err
    assert fedstrata("run", "one/experiment.toml", "--out", "two") == 0
    assert Path("one/model.safetensors").read_bytes() == Path("two/model.safetensors").read_bytes()


def test_a_column_that_is_not_there_is_a_sentence_but_not_on_a_single_node(messy: Path):
    with pytest.raises(DataError, match=r"no column 'admited' to leave out; did you mean 'admitted'\?"):
        load_own(messy, without=("admited",))
    assert load_own(messy, without=("admitted", "elsewhere"), alone=True).shape == (2,)


def test_only_tables_have_columns(tmp_path: Path):
    np.savez(tmp_path / "a.npz", x=np.zeros((30, 2)), y=np.arange(30) % 2)
    with pytest.raises(DataError, match="is no table: it has no columns to leave out"):
        load_own(tmp_path / "a.npz", without=("b",))


def test_names_with_commas_and_columns_without_a_name_are_left_out_as_messages_say(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [f'{i},"Bern, BE",{i % 7},{i % 2}' for i in range(60)]
    (tmp_path / "a.csv").write_text("\n".join([',"city, country",age,label', *rows]))
    args = ["run", "--data", "a.csv", "--model", "logreg", "--rounds", "1", "--clients", "3"]
    city, both = """'"city, country"'""", """'"city, country",'"""
    assert fedstrata(*args) == 2
    assert f"leave it out (--without {city})" in " ".join(capsys.readouterr().err.split())
    assert fedstrata(*args, "--without", city.strip("'")) == 0
    assert """leave it out (--without '""')""" in " ".join(capsys.readouterr().err.split())
    assert fedstrata(*args, "--without", both.strip("'"), "--out", "one") == 0
    assert "--without" not in capsys.readouterr().err
    assert load_own(Path("a.csv"), without=("", "city, country")).shape == (1,)
