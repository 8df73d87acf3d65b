"""The user's own files: from file to trained model, and a sentence for every wrong one."""

import csv
import json

import numpy as np
import pytest
import torch

import fedstrata as fs
from fedstrata.data import dataset
from fedstrata.errors import DataError, SettingError
from tests.cli.test_cli import fedstrata, last_json

CLIENTS = 30


def write_csv(path, clients=CLIENTS, label="label", client="client", seed=0):
    """Hospitals with two measurements; one class is high in both."""
    draw = np.random.default_rng(seed)
    lines = [f"age,{label},pressure,{client}"]
    for k in range(clients):
        for _ in range(draw.integers(8, 20)):
            y = draw.integers(0, 2)
            a, b = 50 + 20 * y + 5 * draw.standard_normal() + k / 3, 120 + 30 * y + 5 * draw.standard_normal()
            lines.append(f"{a:.3f},{y},{b:.3f},hospital {k:02d}")
    path.write_text("\n".join(lines) + "\n")


def test_a_csv_goes_from_file_to_trained_model_by_one_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "mine.csv")
    assert fedstrata("run", "--data", "mine.csv", "--model", "logreg", "--rounds", "10", "--json") == 0
    said = last_json(capsys)
    assert said["test"]["accuracy"] > 0.95
    recorded = json.loads((tmp_path / said["run"] / "rounds.jsonl").read_text().splitlines()[0])
    assert len(recorded["cohort"]) == CLIENTS


def test_a_folder_here_does_not_hide_the_public_data_set_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    assert dataset("digits").shape == (1, 8, 8)
    with pytest.raises(DataError, match="needs pictures"):
        dataset("./digits")


def test_a_file_may_have_brackets_in_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "mine (1).csv")
    assert dataset("mine (1).csv").shape == (2,)


def test_square_brackets_in_names_are_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "mine[v2].csv")
    args = ["run", "--data", "mine[v2].csv", "--model", "logreg", "--rounds", "1", "--out", "out[new]"]
    assert fedstrata(*args) == 0
    told = capsys.readouterr().out
    assert "fedavg on mine[v2].csv" in told
    assert "The run folder is out[new]" in told


def test_no_name_is_no_data_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match="'' is not a data set"):
        dataset("")


def test_clients_of_the_file_that_do_not_count_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "mine.csv")
    args = ["run", "--data", "mine.csv", "--model", "logreg", "--rounds", "1"]
    said = "mine.csv says whose examples are whose, but Dirichlet(clients=5, "
    assert fedstrata(*args) == 0
    assert said not in " ".join(capsys.readouterr().err.split())
    assert fedstrata(*args, "--clients", "5") == 0
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_column_that_numbers_the_rows_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [f"{1000 + i},{i % 7},{i % 2},{'ab'[i % 3 == 0]}" for i in range(60)]
    (tmp_path / "mine.csv").write_text("\n".join(["patient,age,label,client", *rows]))
    assert fedstrata("run", "--data", "mine.csv", "--model", "logreg", "--rounds", "1") == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "The column 'patient' has another whole number in every row, and is a feature like the others" in told
    assert "'age'" not in told


def test_the_picture_of_a_split_names_the_classes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{i % 7},{kind},{site}" for i in range(20) for kind in ("ill", "well") for site in ("Oslo", "Bern")]
    (tmp_path / "mine.csv").write_text("\n".join(["age,label,client", *rows]))
    assert fedstrata("partition", "--data", "mine.csv", "--plot", "split.svg") == 0
    assert "<!-- well -->" in (tmp_path / "split.svg").read_text()


def test_columns_can_have_other_names(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "mine.csv", label="ill", client="site")
    args = ["run", "--data", "mine.csv", "--label", "ill", "--client", "site", "--rounds", "1", "--model", "logreg"]
    assert fedstrata(*args, "--json") == 0
    assert "30 clients have" in " ".join(capsys.readouterr().err.split())


def test_labels_that_leave_classes_out_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [f"{i % 7},{i % 3 + 1}" for i in range(60)]
    (tmp_path / "mine.csv").write_text("\n".join(["age,label", *rows]))
    assert fedstrata("run", "--data", "mine.csv", "--model", "logreg", "--rounds", "1", "--clients", "3") == 0
    assert "No example is of class 0, and the model has an output" in " ".join(capsys.readouterr().err.split())


def test_a_fifth_of_every_client_is_for_the_test_and_always_the_same(tmp_path):
    write_csv(tmp_path / "mine.csv")
    one, again = (dataset(str(tmp_path / "mine.csv")) for _ in range(2))
    assert one.owner is not None
    assert torch.equal(one.test[0], again.test[0])
    assert len(np.unique(one.owner)) == CLIENTS
    whole = len(one.train[1]) + len(one.test[1])
    assert 0.17 < len(one.test[1]) / whole < 0.23


def test_classes_too_rare_to_give_a_fifth_give_one_together(tmp_path):
    y = np.arange(40) // 2
    np.savez(tmp_path / "a.npz", x=np.zeros((40, 2)), y=y)
    data = dataset(str(tmp_path / "a.npz"))
    assert (len(data.train[1]), len(data.test[1]), data.classes) == (32, 8, 20)


def test_npz_with_and_without_clients_and_test(tmp_path):
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((40, 1, 4, 4)), np.arange(40) % 4
    np.savez(tmp_path / "a.npz", x=x, y=y)
    plain = dataset(str(tmp_path / "a.npz"))
    assert plain.owner is None
    assert plain.classes == 4
    assert (len(plain.train[1]), len(plain.test[1])) == (32, 8)
    np.savez(tmp_path / "b.npz", x=x, y=y, client=np.arange(40) // 10, x_test=x[:5], y_test=np.array([0, 1, 2, 3, 4]))
    given = dataset(str(tmp_path / "b.npz"))
    assert given.owner is not None
    assert given.owner.tolist() == [k for k in range(4) for _ in range(10)]
    assert given.classes == 5
    torch.testing.assert_close(given.test[0], torch.from_numpy(x[:5]).float())
    run = fs.Experiment.of({"data": str(tmp_path / "b.npz"), "rounds": 1, "method": "fedavg"}).run()
    assert run.rounds[0]["cohort"] == [0, 1, 2, 3]


def test_dates_of_a_parquet_file_are_no_numbers(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow, an extra, is not installed")
    from pyarrow import parquet

    when = np.datetime64("2026-01-01") + np.arange(40).astype("timedelta64[D]")
    table = pa.table({"age": np.arange(40.0), "when": when, "label": np.arange(40) % 2})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"the column 'when' is not of numbers \(e.g. '2026-01-01'\); leave it out"):
        dataset(str(tmp_path / "a.parquet"))


def test_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow, an extra, is not installed")
    from pyarrow import parquet

    n = 30
    columns = {"a": np.arange(n, dtype=float), "label": np.arange(n) % 3, "client": [f"c{i % 2}" for i in range(n)]}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    data = dataset(str(tmp_path / "a.parquet"))
    assert data.classes == 3
    assert data.owner is not None
    assert set(data.owner) == {"c0", "c1"}
    (tmp_path / "b.parquet").write_text("no")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        dataset(str(tmp_path / "b.parquet"))


def test_a_hugging_face_folder(tmp_path):
    datasets = pytest.importorskip("datasets", reason="datasets, an extra, is not installed")
    n = 20
    rows = {"a": [float(i) for i in range(n)], "label": [i % 2 for i in range(n)], "client": [i % 4 for i in range(n)]}
    datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "hf"))
    assert dataset(str(tmp_path / "hf")).classes == 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "needs a line of column names and lines of values; it has 0 lines"),
        ("a,label\n", "it has 1 line"),
        ("a,b\n1,2\n3,4\n", "has no column 'label' for the labels; say which by --label: choose from a, b"),
        ("a,labels\n1,2\n3,4\n", "did you mean 'labels'"),
        ("label,client\n1,2\n", "has no column of features"),
        ("a,label\n1,cat\n2,dog\n", "the labels are 2 different words in 2 rows, which are no classes"),
        ("a,label\n1,cat\n2,cat\n3,?\n", "example 2 has '?' for a label, that is none (1 have none); fill in"),
        ("a,label\n" + "1,cat\n" * 10, "all 10 labels are 'cat'; a classifier needs two classes or more"),
        ("a,label\n" + "1,1\n" * 10, "all 10 labels are 1; a classifier needs two classes or more"),
        ("a,b,c,label\n1,x,y,0\n2,x,y,1\n", "2 columns are not of numbers, 'b' (e.g. 'x'), 'c' (e.g. 'y'); leave them"),
        (
            "a,b,label\n1,,0\n,2,1\n",
            "example 0 has no number in the column 'b' (1 have none, 1 none in 'a'); fill in",
        ),
        ("a,label\n1,0.5\n2,1\n", "the labels must be whole numbers from 0, one an example; got 0.5"),
        ("a,label\n1,-1\n2,1\n", "the labels must be whole numbers from 0, one an example; got -1.0"),
        ("a,label\n1,0\n2,inf\n", "the labels must be whole numbers from 0, one an example; got inf"),
        ('a,label\n1,cat\n2,"dog\n3,cat\n', "line 3: cannot be read as CSV: a quotation mark opens here and never"),
        ("a,label\n1,\n2,1\n", "example 0 has '' for a label, that is none (1 have none)"),
        ("a,label,client\n1,0,x\n2,1,x\n", "has one client only, 'x'; a federation needs two or more"),
        ("a,label\n1,0\nnan,1\n", "example 1 has no number in the column 'a' (1 have none); fill in"),
        ("a,label\n1,0\n,1\n", "example 1 has no number in the column 'a'"),
        ("a,b,label\n1,2,0\n1,NA,1\n", "example 1 has no number in the column 'b'"),
        ("a;label\n1;0\n2;1\n", "has ';' between its values; save it with commas"),
        ("a,ward,label\n1,x,0\n2,y,1\n", "if it says whose examples these are, give --client ward"),
        ("a,label\n1,0\nred,1\n", "the column 'a' is not of numbers"),
        ("a,label,client\n1,0,x\n2,1,\n3,1,y\n", "example 1 does not say which client it is of (1 do not)"),
        ("a,label\n1,0\n2,4915551234\n", "the labels go up to 4915551234; number the classes from 0, without gaps"),
        ("a,label\n1,0\n1,2,3\n", "line 3: 3 values where there are 2 columns"),
        ("a,label\n\n1,0\n\n1,2,3\n", "line 5: 3 values where there are 2 columns"),
        ("a,a,label\n1,2,0\n3,4,1\n", "has two columns called 'a'; give them different names"),
        ("a,label\n1,0\nred,1\n", "(e.g. 'red')"),
        ("a,label\n1,0\n2,dog\n", "got 'dog'"),
    ],
)
def test_a_wrong_csv_is_a_sentence(text, sentence, tmp_path):
    (tmp_path / "wrong.csv").write_text(text)
    with pytest.raises(DataError) as refused:
        dataset(str(tmp_path / "wrong.csv"))
    assert sentence in str(refused.value)
    assert "wrong.csv" in str(refused.value)


def test_a_csv_in_another_encoding_is_a_sentence(tmp_path):
    for encoding in ("latin-1", "utf-16"):
        (tmp_path / "a.csv").write_text("größe,label\n1,0\n2,1\n", encoding=encoding)
        with pytest.raises(DataError, match=r"is not in UTF-8; save it as CSV in UTF-8"):
            dataset(str(tmp_path / "a.csv"))


def test_a_csv_that_python_cannot_read_is_a_sentence(tmp_path):
    (tmp_path / "a.csv").write_text("a,label\n123456789,0\n")
    before = csv.field_size_limit(8)  # of the whole process, and the news raise it
    try:
        with pytest.raises(DataError, match="cannot be read as CSV: field larger than field limit"):
            dataset(str(tmp_path / "a.csv"))
    finally:
        csv.field_size_limit(before)


def test_blank_lines_of_a_csv_do_not_count(tmp_path):
    write_csv(tmp_path / "a.csv")
    text = (tmp_path / "a.csv").read_text()
    (tmp_path / "b.csv").write_text(text.replace("\n", "\r\n\r\n", 3) + "  \n,,,\n")
    assert torch.equal(*(dataset(str(tmp_path / f"{n}.csv")).train[0] for n in "ab"))


def test_other_wrong_files_are_sentences(tmp_path):
    (tmp_path / "a.npz").write_text("no")
    (tmp_path / "b.xlsx").write_text("no")
    (tmp_path / "empty").mkdir()
    np.savez(tmp_path / "c.npz", x=np.zeros((3, 2)))
    np.savez(tmp_path / "d.npz", x=np.zeros((3, 2)), y=np.zeros(4))
    for name, sentence in (
        ("a.npz", "cannot be read as arrays"),
        ("b.xlsx", "is not a file that can be read as data"),
        ("empty", "needs pictures as client/class/picture"),
        ("none.csv", "there is no file or folder"),
        ("c.npz", "needs the arrays x and y; it has x"),
        ("d.npz", "has 3 examples, 4 labels; they must be as many"),
    ):
        with pytest.raises(DataError, match=sentence):
            dataset(str(tmp_path / name))


X, Y = np.arange(20.0).reshape(10, 2), np.arange(10) % 2


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": X.astype(str), "y": Y}, "x must be real numbers, [examples, ...]; got <U32 of shape (10, 2)"),
        ({"x": X + 1j, "y": Y}, "x must be real numbers, [examples, ...]; got complex128"),
        ({"x": X[:, 0], "y": Y}, "x must be real numbers, [examples, ...]; got float64 of shape (10,)"),
        ({"x": X[:0], "y": Y[:0]}, "has no examples: the labels are empty"),
        ({"x": X, "y": Y, "client": X}, "needs one client for each example; got clients of shape (10, 2)"),
        (
            {"x": X, "y": Y, "client": np.where(Y, np.nan, X[:, 0])},
            "example 1 does not say which client it is of (5 do",
        ),
        ({"x": X, "y": Y, "x_test": X[:, :1], "y_test": Y}, "the test examples do not fit those of shape (2,)"),
        ({"x": X, "y": Y, "x_test": X}, "has x_test alone; give both x_test and y_test, or neither"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y[:9]}, "got 10 of shape (2,) with 9 labels"),
        ({"x": X, "y": Y, "x_test": X[:0], "y_test": Y[:0]}, "has no examples: y_test are empty"),
    ],
)
def test_wrong_arrays_are_a_sentence(arrays, sentence, tmp_path):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError) as refused:
        dataset(str(tmp_path / "a.npz"))
    assert sentence in str(refused.value)


def test_a_file_that_is_no_archive_of_arrays_is_a_sentence(tmp_path):
    (tmp_path / "a.npz").touch()
    with pytest.raises(DataError, match="cannot be read as arrays"):
        dataset(str(tmp_path / "a.npz"))
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, X)
    with pytest.raises(DataError, match="holds a single array; it needs x and y"):
        dataset(str(tmp_path / "a.npz"))


def test_a_proxy_that_cannot_be_had_says_what_can(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, y=Y, x_test=X, y_test=Y)
    for proxy in (1, 200):
        with pytest.raises(
            DataError, match=f"proxy = {proxy} cannot be had, .* 10 test examples; choose it from 2 to 10"
        ):
            fs.Experiment.of({"data": str(tmp_path / "a.npz"), "method": "fedlaw", "proxy": proxy}).run()


def test_a_record_of_a_relative_path_runs_from_another_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "mine.csv")
    args = ["--rounds", "1", "--model", "logreg"]
    assert fedstrata("run", "--data", "mine.csv", *args, "--out", "one") == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert fedstrata("run", "../one/experiment.toml", "--out", "two") == 0
    one, two = (tmp_path / f / "model.safetensors" for f in ("one", "elsewhere/two"))
    assert one.read_bytes() == two.read_bytes()
