"""Two reproductions at the quick scale: the direction, not the digits. `make test-reproduce` runs these."""

import os
from pathlib import Path

import pytest

from fedstrata.reproduce import judge, read, reproduce, results_of

pytestmark = pytest.mark.skipif("FEDSTRATA_QUICK" not in os.environ, reason="make test-reproduce runs these")


def verdicts(name: str, tmp_path: Path, **how) -> dict[str, str]:
    made, file = read(name, "quick"), tmp_path / "results.jsonl"
    reproduce(made, runs=tmp_path / "runs", results=file, **how)
    return {f.claim.says: f.verdict for f in judge(made, results_of(made, file))}


def test_on_logistic_regression_adaptive_mu_is_constant_mu(tmp_path):
    found = verdicts("fedprox-adaptive-mu", tmp_path, rows=["adaptive mu", "constant mu"])
    assert found["it is constant mu but for the bias (D-04): within 0.1 points"] == "reproduced"
    assert found["adaptive mu is better than constant mu"] != "reproduced"


@pytest.mark.real
def test_layer_wise_weights_beat_plain_averaging_where_few_clients_are_alike(tmp_path, real):
    found = verdicts("fedlayerwise-table1", tmp_path, seeds=1, rows=["FedLayerWise", "FedAvg"])
    assert found["FedLayerWise is better than FedAvg in the last five rounds"] == "direction reproduced"
