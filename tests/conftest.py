import os
import signal

import pytest
import torch

from fedstrata import fused

torch.set_num_threads(1)  # two threads on tiny work collapse when the machine is shared

os.environ["COLUMNS"] = "100"  # tables look the same wherever the tests run


@pytest.fixture(params=["torch", "numba"])
def arithmetic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice: the server works with torch alone, and with the compiled loops however small the model."""
    if request.param == "numba":
        pytest.importorskip("numba")
        monkeypatch.setattr(fused, "SMALLEST", 0)


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script, and what we start inherits it
    signal.signal(signal.SIGINT, signal.default_int_handler)
