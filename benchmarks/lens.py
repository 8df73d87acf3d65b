"""The figure of docs/lens.md and the sentence below it: `python -m benchmarks.lens`, or `make figures`."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import fedstrata as fs
from fedstrata.report import draw_figures
from fedstrata.report.folders import find
from fedstrata.report.lens import in_words, lens

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- lens, written by `make figures` -->", "<!-- end of lens -->"
SETTINGS = {
    "method": "fedlayerwise + lws(beta=0.1)",
    "data": "digits",
    "model": "cnn",
    "rounds": 20,
    "partition": {"clients": 20, "alpha": 0.1},
}


def main() -> None:
    """Run it, draw its layers, and say where clients disagree."""
    with TemporaryDirectory() as place:
        run = fs.Experiment.of(SETTINGS).run(Path(place) / "run")
        drawn = draw_figures([Path(place) / "run"], Path(place) / "figures")
        layers = next(p for p in drawn if p.name.startswith("layers-") and p.suffix == ".png")
        shutil.copyfile(layers, DOCS / "figures" / "lens.png")
        said = in_words(lens(find([Path(place) / "run"]).groups[0].runs[0]))
    page = DOCS / "lens.md"
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    accuracy = f"The run ends at {100 * run.final['test']['accuracy']:.1f} % on the test set."
    page.write_text(f"{before}{BEGIN}\n\n> {said} {accuracy}\n\n{END}{after}")


if __name__ == "__main__":
    main()
