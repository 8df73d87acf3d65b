"""The files of a deployment, with @NAMES@ where something is filled in."""

import re
from pathlib import Path
from typing import Any


def filled(name: str, **values: Any) -> str:
    """A template with its names replaced; all of them must be given, and no others."""
    text = (Path(__file__).parent / name).read_text()
    wanted = set(re.findall(r"@([A-Z_]+)@", text))
    assert wanted <= values.keys(), f"{name} needs {sorted(wanted - values.keys())}"
    return re.sub(r"@([A-Z_]+)@", lambda found: str(values[found[1]]), text)
