"""Parts of other packages: registered through an entry point, they work in text recipes."""

import os
import subprocess
import sys

OUTSIDE = '''
from dataclasses import dataclass
import torch
import fedstrata as fs

@dataclass(frozen=True)
class Heaviest(fs.Weigh):
    """All weight to the client with most examples."""
    def weights(self, state, round):
        best = round.share == round.share.max()
        return (best.double() / best.sum())[:, None], state
'''


def test_a_registered_part_is_found_by_its_name(tmp_path):
    (tmp_path / "outside.py").write_text(OUTSIDE)
    info = tmp_path / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedstrata.parts]\nHeaviest = outside:Heaviest\n")
    code = "import fedstrata as fs; print(fs.parse_recipe('fedprox + heaviest').weigh)"
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "Heaviest()"
    without = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "no method is called 'heaviest'" in without.stderr
