"""The command: what can be said to it. Errors are one sentence on standard error and exit code 2.

Nothing here imports torch, so that help is quick; what commands do is in `fedstrata.commands`.
"""

import os
import sys
import warnings
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

from typer import Abort, Exit, Option, Typer, echo
from typer.core import TyperGroup

from fedstrata.cli import about, data, deploy, experiments
from fedstrata.errors import ClientError, FedstrataError, PartError
from fedstrata.stopping import Stopped
from fedstrata.version import __version__


class _Ended(Exception):
    """A run that was asked to stop has: the sentence about it, and the exit code."""

    def __init__(self, stopped: Stopped):
        super().__init__(str(stopped))
        self.code = stopped.code


class _Commands(TyperGroup):
    """All commands. Typer takes every KeyboardInterrupt for a bare Ctrl-C, and would lose the sentence of a Stopped."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Stopped as e:
            raise _Ended(e) from None


app = Typer(
    cls=_Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Federated learning on data that differs from client to client.",
)
app.command()(experiments.demo)
app.command()(experiments.run)
app.command()(experiments.compare)
app.command()(experiments.advise)
app.command()(experiments.partition)
app.command()(about.methods)
app.command()(about.explain)
app.command()(about.cite)
app.command()(about.report)
app.command()(about.reproduce)
app.add_typer(data.app, name="data")
app.add_typer(deploy.app, name="deploy")

STOPPED = 130
"""The exit code after Ctrl-C, as of every command."""


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, Option("--version", help="Show the version and exit.")] = False) -> None:
    if version:
        echo(f"fedstrata {__version__}")
        raise Exit


def main(args: list[str] | None = None) -> None:
    """The entry point: whatever goes wrong is one sentence and an exit code above 0."""
    if "" not in sys.path:
        sys.path.append("")  # this folder may hold a model of one's own; last, so that it hides nothing installed
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # a sign that is missing there must not cost what was worked out
    warnings.formatwarning = _warned
    try:
        code: Any = app(args, standalone_mode=False)
    except FedstrataError as e:
        if isinstance(e, (ClientError, PartError)) and (e.__cause__ or hasattr(e, "__notes__")):
            _failed(e, str(e))
        _stop(str(e))
    except _Ended as e:
        _stop(str(e), e.code)
    except (Abort, KeyboardInterrupt):
        _stop("stopped; what was finished is in the run folder", STOPPED)
    except Exception as e:
        if said := getattr(e, "format_message", None):  # click's own, which newer typers carry within themselves
            words = said().strip().rstrip(".")  # none where help was shown
            _stop(_with_advice(e, words) if words else "")
        _failed(e, f"{type(e).__name__}: {e}")
    else:
        if code == STOPPED:
            _stop("stopped; what was finished is in the run folder", STOPPED)
        sys.exit(code if isinstance(code, int) else 0)


def _asked(error: Exception) -> str:
    """The command that click found fault with, e.g. fedstrata run."""
    at, words = getattr(error, "ctx", None), []
    while at is not None and at.parent is not None:
        words, at = [at.info_name, *words], at.parent
    return " ".join(["fedstrata", *words])


def _with_advice(error: Exception, words: str) -> str:
    """What click found fault with, and what to do about it."""
    helped, option, at = f"{_asked(error)} --help", getattr(error, "option_name", None), getattr(error, "ctx", None)
    if option and at is not None and any("--set" in p.opts for p in at.command.params):
        name, guesses = option.strip("-").replace("-", "_"), " or ".join(getattr(error, "possibilities", None) or [])
        said = f"No such option: {option}" + f" (did you mean {guesses}?)" * bool(guesses)
        return f"{said}; if that is a setting, write --set {name}=VALUE, else try {helped}"
    return f"{words} Try {helped}" if words.endswith("?") else f"{words}; try {helped}"


def _failed(error: Exception, sentence: str) -> None:
    """The end after an error that came out of somebody's code, whose place can be shown."""
    if os.environ.get("FEDSTRATA_DEBUG"):
        raise error
    _stop(f"{sentence} (set FEDSTRATA_DEBUG=1 to see where)")


def _warned(message: Warning | str, category: type[Warning], filename: str, line: int, code: str | None = None) -> str:
    """A warning of ours is a sentence like all others; those of other packages say where they are from."""
    if Path(filename).is_relative_to(Path(__file__).parents[1]):
        return f"fedstrata: {message}\n"
    return _usual(message, category, filename, line, code)


_usual = warnings.formatwarning


def _stop(sentence: str, code: int = 2) -> None:
    if sentence:
        print(f"fedstrata: {' '.join(sentence.split())}", file=sys.stderr)  # noqa: T201
    sys.exit(code)
