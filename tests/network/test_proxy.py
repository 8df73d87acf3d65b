"""Through nginx a federation works as without it, and `fedstrata deploy check` sees that nothing else comes through."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedstrata.deploy.check_server import check_server
from fedstrata.deploy.folder import Deployment
from fedstrata.deploy.follow import play
from fedstrata.deploy.local import LINK, Federation
from fedstrata.deploy.outside import FLEET, PROTOBUF, Outside
from tests.flower.federation import equal, experiment, lines, model
from tests.network.federation import only_networked
from tests.network.proxied import proxied, proxy_of
from tests.patience import eventually

pytestmark = only_networked


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Federation, Outside]]:
    with proxied(tmp_path_factory.mktemp("proxy"), nodes=2) as both:
        yield both


def test_registered_nodes_work_through_the_proxy_as_in_the_simulator(both: tuple[Federation, Outside], tmp_path: Path):
    fed, _ = both
    exp = experiment("scaffold", rounds=1, evaluate_train=False, partition={"clients": 2, "alpha": 0.5})
    told: list[dict] = []
    assert play(fed, exp, tmp_path / "net", told.append) == told == lines(tmp_path / "net")
    assert [line["cohort"] for line in told] == [[0, 1]]
    exp.run(tmp_path / "sim")
    assert equal(model(tmp_path / "net"), model(tmp_path / "sim"))
    log = (proxy_of(fed) / "state" / "access.log").read_text()
    assert log.count("/v1/fleet/push-object") >= 2  # it did go through it
    assert "/v1/fleet/activate-node" in log


def test_no_request_is_larger_than_one_object(both: tuple[Federation, Outside]):
    _, outside = both
    assert outside.ask(FLEET, PROTOBUF, bytes(6 << 20)).status in (
        400,
        401,
    )  # Flower's are of 5 MB; the SuperLink says no
    with_limit = outside.ask(FLEET, PROTOBUF, bytes(33 << 20))
    assert (with_limit.status, with_limit.code) == (413, None)


def as_deployment(folder: Path, fed: Federation, port: int) -> None:
    """What `deploy check` looks at, for a federation of this machine."""
    Deployment("localhost", tuple(fed.nodes), port, fed.port).write(folder)
    for place in ("pki", "server/tls"):
        shutil.copytree(fed.keys, folder / place)


def test_the_check_passes_through_the_proxy_and_fails_without(both: tuple[Federation, Outside], tmp_path: Path):
    fed, outside = both
    as_deployment(tmp_path, fed, outside.port)
    through = {c.what: c for c in check_server(tmp_path, f"https://localhost:{outside.port}")}
    assert [c for c in through.values() if c.fine is False] == []
    assert len(through) == 7
    direct = check_server(tmp_path, f"https://localhost:{fed.port}")
    assert [c.what for c in direct if c.fine is False] == ["control and runtime paths", "pages"]


def test_nodes_outlast_a_superlink_that_is_started_again(both: tuple[Federation, Outside]):
    fed, outside = both
    log = proxy_of(fed) / "state" / "access.log"

    def answered() -> int:
        return log.read_text().count('POST /v1/fleet/pull-messages HTTP/1.1" 200')

    assert outside.ask(FLEET, PROTOBUF).status == 401
    fed.kill(LINK)
    assert outside.ask(FLEET, PROTOBUF).status == 502  # for which Flower tries again
    before = answered()
    fed.start_superlink()
    assert eventually(lambda: answered() >= before + 4)
    assert all(fed.processes[name].poll() is None for name in fed.nodes)
