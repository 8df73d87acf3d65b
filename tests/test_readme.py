"""What the README shows is what happens."""

import re
import shlex
from pathlib import Path

import pytest

from fedstrata.cli import main
from fedstrata.recipes import METHODS

README = (Path(__file__).parent.parent / "README.md").read_text()
CODE = "\n".join(re.findall(r"```python\n(.*?)```", README, re.S))
COMMANDS = [line[2:] for line in README.splitlines() if line.startswith("$ fedstrata")]


def test_the_python_of_the_readme_runs_and_prints_what_it_says(capsys):
    exec(CODE, {})
    said = re.findall(r"It prints `(test accuracy 0\.\d)", README)[0]  # one digit: others may round differently
    assert capsys.readouterr().out.startswith(said)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_readme_run(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(shlex.split(command)[1:])
    assert stop.value.code == 0


def test_the_table_of_methods_is_complete():
    assert re.findall(r"^\| `(\w+)` \|", README, re.M) == list(METHODS)
