"""One page about some runs."""

import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import fedstrata as fs
from fedstrata.cli import main
from fedstrata.errors import DataError
from fedstrata.papers import PAPERS
from fedstrata.report import draw_figures
from fedstrata.report.again import Again
from fedstrata.report.folders import find, read_run
from fedstrata.report.markup import citation, formed
from fedstrata.report.page import page
from fedstrata.report.plots import short_names, split_figure
from fedstrata.report.sections import SECTIONS
from tests.federations import mlp, unequal_clients
from tests.report.runs import compared, run_into

VOID = {"meta", "link", "line", "br", "input"}


class Tags(HTMLParser):
    """Collects ids, and fails where tags do not match."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.ids += [v for k, v in attrs if k == "id" and v]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.ids += [v for k, v in attrs if k == "id" and v]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        run_into(folder / f"lws{seed}", "fedlws", seed=seed)
    run_into(folder / "layerwise", "fedlayerwise")
    return folder


def figures_of(text: str) -> dict:
    return json.loads(re.findall(r'id="figures">(.*?)</script>', text, re.S)[0])


def test_every_section_is_there_and_every_tag_is_closed(folder):
    text = page(find([folder]), "")
    assert set(SECTIONS) <= set(Tags(text).ids)
    assert not re.search(r"(src|href)=[\"']http|url\(|@import", text)


def test_bands_are_drawn_where_there_are_several_seeds(folder):
    choice = figures_of(page(find([folder]), ""))["curves-accuracy"]["choices"][0]
    filled = [t["legendgroup"] for t in choice["data"] if "fill" in t]
    assert choice["title"] == "test"
    assert len(filled) == 1
    assert [t["name"] for t in choice["data"] if t["line"]["width"]] == ["fedlayerwise", "fedlws"]


def test_the_slider_has_a_picture_for_every_round(folder):
    maps = figures_of(page(find([folder]), ""))["clients-0"]["choices"]
    frames = next(c for c in maps if c["title"] == "weight")["frames"]
    assert [f["name"] for f in frames] == [1, 2, 3]
    assert frames[0]["x"] == list("012345")
    assert frames[0]["z"] != frames[2]["z"]


def test_the_scores_of_clients_are_those_of_the_run(folder):
    run = read_run(folder / "layerwise")
    again = Again().scores(run)
    assert again is not None
    scores, sizes = again
    assert sizes.sum() == 1257
    assert np.mean(scores) == pytest.approx(run.final["clients"]["mean"], abs=1e-6)
    assert np.std(scores) == pytest.approx(run.final["clients"]["std"], abs=1e-6)


def test_the_table_of_a_comparison_is_shown(folder):
    names = sorted(p.name for p in folder.iterdir())
    (folder / "compare.json").write_text(json.dumps(compared({"one": names[:1], "two": names[1:]})))
    text = page(find([folder]), "")
    (folder / "compare.json").unlink()
    assert "accuracy, last round" in text
    assert '50.0 %<span class="interval">45.0 \u2013 55.0</span>' in text
    assert '<span class="interval">0.0 \u2013 100.0</span>' in text  # where Student's t goes beyond
    assert "2.86 MiB" in text
    assert "1 of 2 do" in text
    assert '<span class="badge noise">noise</span>' in text
    assert "The second &lt;method&gt; is not better than the first." in text


def test_data_that_is_not_at_hand_is_said_and_not_downloaded(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSTRATA_DATA", str(tmp_path / "empty"))
    run = read_run(folder / "layerwise")
    run.settings["data"] = "mnist"
    split = Again().split(run)
    assert split.clients is None
    assert split.why_not == "mnist is not on this machine; `fedstrata data get mnist` downloads it"


def test_the_split_of_a_table_has_the_names_that_the_table_has(tmp_path):
    rows = [f"{i % 7},{kind},{site}" for i in range(40) for kind in ("ill", "well") for site in ("Oslo", "Bern & Co")]
    (tmp_path / "mine.csv").write_text("\n".join(["age,kind,site", *rows]))
    run_into(
        tmp_path / "r", data=str(tmp_path / "mine.csv"), label="kind", client="site", partition={"kind": "ByOwner"}
    )
    figure = split_figure(Again().split(read_run(tmp_path / "r")))
    assert [trace["name"] for trace in figure["data"]] == ["class ill", "class well"]
    assert figure["layout"]["xaxis"]["ticktext"] == ["0 Bern &amp; Co", "1 Oslo"]


def test_a_run_made_in_python_says_why_it_has_no_split(tmp_path):
    fs.simulate("fedavg", mlp(), unequal_clients(), rounds=2, out=tmp_path / "r")
    text = page(find([tmp_path / "r"]), "")
    assert "its model and data were given in Python" in text
    assert "distribution" not in figures_of(text)


def test_what_was_dropped_is_told_with_its_reason(tmp_path):
    clients = unequal_clients()
    clients.x[clients.rows[2]] *= 1e200  # whose gradients overflow
    fs.simulate("fedavg", mlp(), clients, rounds=2, out=tmp_path / "r")
    text = page(find([tmp_path / "r"]), "")
    assert "2 replies did not count." in text
    assert "client 2 returned values that are NaN or infinite and did not count" in text


def test_faults_on_purpose_are_told_and_those_who_did_not_answer_have_no_column(folder, tmp_path):
    shutil.copytree(folder / "layerwise", tmp_path / "r")
    lines = [json.loads(line) for line in (tmp_path / "r/rounds.jsonl").read_text().splitlines()]
    lines[1] |= {"faults": {"dropout": [2], "late": [4], "garbage": [0]}}
    (tmp_path / "r/rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with np.load(tmp_path / "r/notes.npz") as notes:
        kept = {n: v[[0, 1, 3, 5]] if n.endswith("/00001") else v for n, v in notes.items()}
    np.savez(tmp_path / "r/notes.npz", **kept)
    text = page(find([tmp_path / "r"]), "")
    assert "2 replies did not count." in text
    assert "never answered: 2; came too late: 4; sent garbage: 0" in text
    assert figures_of(text)["clients-0"]["choices"][0]["frames"][1]["x"] == ["0", "1", "3", "5"]


def test_a_run_that_is_not_at_its_end_says_how_far_it_is(folder, tmp_path):
    shutil.copytree(folder / "layerwise", tmp_path / "r")
    lines = (tmp_path / "r/rounds.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "r/rounds.jsonl").write_text("".join(lines[:2]))
    (tmp_path / "r/model.safetensors").unlink()
    text = page(find([tmp_path / "r"]), "")
    assert "2 of 3" in text
    assert "distribution" not in figures_of(text)


def test_a_regression_has_losses_and_no_accuracy(tmp_path):
    clients = fs.Clients.of([(np.random.default_rng(k).random((8, 6)), np.full((8, 3), k / 4)) for k in range(4)])
    fs.simulate("fedlws", mlp(), clients, rounds=2, loss="squared_error", out=tmp_path / "r")
    figures = figures_of(page(find([tmp_path / "r"]), ""))
    assert {"curves-loss", "fairness"} <= figures.keys()
    assert "curves-accuracy" not in figures


def test_the_command_writes_the_page_and_figures(folder, tmp_path, capsys):
    pytest.importorskip("plotly")
    with pytest.raises(SystemExit) as stop:
        main(["report", str(folder), "-o", str(tmp_path / "sub/page.html"), "--figures", str(tmp_path / "figures")])
    assert stop.value.code == 0
    assert (tmp_path / "sub/page.html").as_uri() in capsys.readouterr().out
    text = (tmp_path / "sub/page.html").read_text()
    assert text.count("plotly.js v") <= 2
    assert len(text) > 1e6
    names = {p.name for p in (tmp_path / "figures").iterdir()}
    stems = "curves", "clients", "split", "layers-fedlws", "layers-fedlayerwise"
    assert names == {f"{s}.{kind}" for s in stems for kind in ("pdf", "png")}
    assert (tmp_path / "figures/curves.pdf").read_bytes().startswith(b"%PDF")


def test_python_writes_the_same_page(folder, tmp_path):
    pytest.importorskip("plotly")
    made = fs.report([folder / "layerwise"], tmp_path / "page.html", "My <title>")
    assert "<title>My &lt;title&gt;</title>" in made.read_text()


def test_without_plotly_it_says_what_to_install(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(DataError, match="pip install plotly"):
        fs.report(folder, tmp_path / "page.html")


def test_a_place_that_cannot_be_written_to_is_a_sentence(folder, tmp_path):
    pytest.importorskip("plotly")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="give another file by -o"):
        fs.report(folder / "lws0", tmp_path / "file/page.html")
    with pytest.raises(DataError, match="cannot be made"):
        draw_figures([folder / "lws0"], tmp_path / "file/figures")


@pytest.mark.parametrize("entry", PAPERS.values(), ids=list(PAPERS))
def test_every_paper_has_a_line_to_read(entry):
    line = citation(entry)
    assert "<cite>" in line
    assert not set("{}\\") & set(line)
    assert re.search(r"(\d{4}|<cite>.*</cite>).*\.$", line)


def test_numbers_are_told_as_people_read_them():
    assert formed(0.8889, "percent") == "88.9 %"
    assert formed(0.0031, "points") == "+0.31"
    assert formed(2048, "bytes") == "2 KiB"
    assert formed(500, "bytes") == "500 B"
    assert formed(1234.5, "seconds") == "1,234 s"
    assert formed(12, "rounds") == "12"
    assert formed(0.000123456, "number") == "0.0001235"


def test_long_names_of_layers_keep_their_ends_while_these_differ():
    names = [f"features.denseblock1.layer{i}.conv" for i in (1, 2)]
    assert short_names(names) == ["…nseblock1.layer1.conv", "…nseblock1.layer2.conv"]
    same = [f"block{i}.{'x' * 40}" for i in (1, 2)]
    assert short_names(same) == same


def test_the_style_and_the_script_are_in_the_package():
    for name in ("page.css", "page.js"):
        assert (Path(fs.__file__).parent / "report" / name).is_file()
