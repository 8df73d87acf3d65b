"""Parts of other packages: registered through an entry point, they work in text recipes."""

import json
import os
import subprocess
import sys

import pytest

OUTSIDE = '''
from dataclasses import dataclass
import torch
import fedstrata as fs

@dataclass(frozen=True)
class Heaviest(fs.Weigh):
    """All weight to the client with most examples."""
    bibtex = "@misc{heaviest}"
    def weights(self, state, round):
        best = round.share == round.share.max()
        return (best.double() / best.sum())[:, None], state
'''


@pytest.fixture
def installed(tmp_path) -> dict[str, str]:
    """An environment in which another package has registered a part."""
    (tmp_path / "outside.py").write_text(OUTSIDE)
    info = tmp_path / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedstrata.parts]\nHeaviest = outside:Heaviest\n")
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def test_a_registered_part_is_found_by_its_name(installed):
    code = "import fedstrata as fs; print(fs.parse_recipe('fedprox + heaviest').weigh)"
    found = subprocess.run([sys.executable, "-c", code], env=installed, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "Heaviest()"
    without = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "no method is called 'heaviest'" in without.stderr


def test_a_registered_part_is_found_in_a_run_folder_and_brings_its_reference(installed, tmp_path):
    recipe = {"kind": "Recipe", "select": {"kind": "Everyone"}, "weigh": {"kind": "Heaviest"}}
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    command = [sys.executable, "-m", "fedstrata", "cite", str(tmp_path)]
    found = subprocess.run(command, env=installed, capture_output=True, text=True, check=True)
    assert "@misc{heaviest}" in found.stdout
