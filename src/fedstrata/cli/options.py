"""Options that several commands share, and a way to say many of them once."""

from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

MODELS = (
    "logreg", "mlp", "mlp200", "cnn", "cnn_bn", "simple_cnn", "layerwise_cnn", "moon_cnn", "har_mlp", "har_cnn",
    "resnet20", "resnet18", "wrn56_4", "densenet121", "vit", "textcnn",
)  # fmt: skip
"""Those of `fedstrata.models`, which cannot be asked without importing torch; a test compares."""

MODEL_HELP = f"{', '.join(MODELS)}; options as in resnet20(norm='group'); or your own, package.module:make."

CLIENTS = "20; of a deployment: its nodes"
"""What is shown of the default; the other defaults are those of `Experiment`, and a test compares them."""

File = Annotated[Path | None, Argument(help="A TOML file; the options below overrule it.")]
Method = Annotated[str | None, Option(help="A method, e.g. fedlws or 'fedlws(beta=0.05)'.", show_default="fedavg")]
Set = Annotated[
    list[str] | None, Option("--set", help="Any setting, e.g. training.lr=0.05; may be given more than once.")
]
Jobs = Annotated[int | None, Option(help="How many runs at a time; one a core unless given, or as many as fill a GPU.")]
RunFolder = Annotated[Path | None, Option("--out", help="The run folder; runs/... unless given.")]
RunsFolder = Annotated[Path | None, Option("--out", help="The folder of the runs; runs/... unless given.")]
Json = Annotated[bool, Option("--json", help="End with one JSON object on standard output.")]
JsonAlone = Annotated[bool, Option("--json", help="As one JSON object.")]


@dataclass(frozen=True, kw_only=True)
class Split:
    """Options about data, and who owns what of it."""

    data: Annotated[
        str | None, Option(help="A data set (fedstrata data list), or a file of yours.", show_default="digits")
    ] = None
    label: Annotated[str | None, Option(help="The column of the labels in a file of yours.", show_default="label")] = (
        None
    )
    client: Annotated[
        str | None, Option(help="The column of the clients in a file of yours.", show_default="client")
    ] = None
    without: Annotated[
        str | None, Option(help="Columns of a file of yours that are no features, with commas between.")
    ] = None
    clients: Annotated[int | None, Option(help="How many clients the data is split over.", show_default=CLIENTS)] = None
    alpha: Annotated[
        float | None, Option(help="Label skew of the Dirichlet split: small is strong.", show_default="0.1")
    ] = None
    seed: Annotated[int | None, Option(help="The seed of everything that is drawn.", show_default="0")] = None


@dataclass(frozen=True, kw_only=True)
class Work(Split):
    """Options about all of an experiment."""

    model: Annotated[str | None, Option(help=MODEL_HELP, show_default="mlp")] = None
    rounds: Annotated[int | None, Option(help="How many rounds.", show_default="30")] = None


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer, which reads signatures: each field of an argument like `given: Work` is an option."""
    mine = signature(command).parameters
    groups: dict[str, Any] = {n: p.annotation for n, p in mine.items() if is_dataclass(p.annotation)}
    fields = {n: signature(group).parameters for n, group in groups.items()}
    shown = [q for n, p in mine.items() for q in (fields[n].values() if n in fields else [p])]

    @wraps(command)
    def spread_out(**said: Any) -> None:
        given = {n: groups[n](**{f: said.pop(f) for f in fields[n]}) for n in groups}
        command(**said, **given)

    vars(spread_out)["__signature__"] = Signature([p.replace(kind=Parameter.KEYWORD_ONLY) for p in shown])
    return spread_out
