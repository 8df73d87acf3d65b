"""`fedstrata deploy init`, `add` and `renew`, as a person types them."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedstrata.deploy import pki
from fedstrata.deploy.folder import Deployment
from fedstrata.errors import SettingError
from tests.cli.test_cli import fedstrata

pytest.importorskip("cryptography")

NODES = "hospital-a,hospital-b,hospital-c"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert fedstrata("deploy", "init", "d", "--nodes", NODES, "--host", "fl.example.org", "--method", "scaffold") == 0
    return tmp_path / "d"


def texts(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_everything_is_there_and_filled_in(folder: Path):
    there = texts(folder)
    assert {n.split("/")[0] for n in there} == {"README.md", "deployment.toml", "app", "pki", "server", "nodes"}
    assert not [n for n, text in there.items() if "@HOST@" in text or "@P" in text]
    assert "--superlink fl.example.org:443 " in there["nodes/hospital-b/node.sh"]
    assert tomllib.loads(there["nodes/hospital-c/node.toml"]) == {
        "client": "hospital-c", "partition-id": 2, "device": "cpu",
    }  # fmt: skip
    app = tomllib.loads(there["app/fedstrata_app/experiment.toml"])
    assert app["recipe"]["local"][0]["kind"] == "Scaffold"
    assert app["partition"]["clients"] == 3
    assert tomllib.loads(there["app/pyproject.toml"])["tool"]["flwr"]["app"]["config"]["clients"] == NODES


def test_a_node_gets_its_own_key_and_nobody_elses(folder: Path):
    there = texts(folder)
    keys = {n: text for n, text in there.items() if "PRIVATE KEY" in text}
    assert set(keys) == {"pki/ca.key", "server/tls/server.key", *(f"nodes/{n}/node.key" for n in NODES.split(","))}
    assert len(set(keys.values())) == 5
    assert all(len([n for n in there if n.startswith(f"nodes/{name}/")]) == 7 for name in NODES.split(","))


def test_the_superlink_listens_to_its_own_machine_alone_and_asks_for_keys(folder: Path):
    said = (folder / "server" / "superlink.sh").read_text()
    assert "--host 127.0.0.1 --port 8000 " in said
    assert "--enable-supernode-auth" in said
    assert "--insecure" not in said


def test_a_trial_on_one_machine_is_not_open_to_others(folder: Path):
    assert "listen 443 ssl" in (folder / "server" / "nginx.conf").read_text()
    assert fedstrata("deploy", "init", "t", "--nodes", "a", "--host", "localhost", "--port", "8443") == 0
    assert "listen 127.0.0.1:8443 ssl" in Path("t/server/nginx.conf").read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="a shell is needed")
def test_the_scripts_are_shell(folder: Path):
    scripts = list(folder.rglob("*.sh"))
    assert len(scripts) == 9
    for script in scripts:
        subprocess.run(["sh", "-n", script], check=True)


def test_nothing_is_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]):
    before = texts(folder)
    assert fedstrata("deploy", "init", "d", "--nodes", "a", "--host", "fl.example.org") == 2
    assert "d is not an empty folder" in capsys.readouterr().err
    assert texts(folder) == before


def test_data_of_ones_own_stays_on_the_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("lab.csv").write_text("a,b,sick\n1,2,0\n3,4,1\n")
    args = ["--nodes", "a,b", "--host", "fl.example.org", "--data", "lab.csv", "--label", "sick"]
    assert fedstrata("deploy", "init", "d", *args) == 0
    node = tomllib.loads(Path("d/nodes/a/node.toml").read_text())
    assert node == {"client": "a", "data": "/path/to/data.csv", "label": "sick", "device": "cpu"}
    assert str(tmp_path) not in "".join(texts(Path("d")).values())


def test_words_for_labels_have_the_labs_order_on_every_node(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [f"{i % 7},{['well', 'ill'][i % 2]},{'ab'[i % 3 == 0]}" for i in range(60)]
    table = "\n".join(["age,label,client", *rows])
    (tmp_path / "lab.csv").write_text(table)
    args = ["--nodes", "a,b", "--host", "localhost", "--data", "lab.csv"]
    assert fedstrata("deploy", "init", "d", *args) == 0
    assert fedstrata("deploy", "add", "d", "c") == 0
    for name in "abc":
        assert tomllib.loads(Path(f"d/nodes/{name}/node.toml").read_text())["classes"] == "ill, well"
    (tmp_path / "lab.csv").write_text(table.replace("ill", '"ill, badly"'))
    capsys.readouterr()
    assert fedstrata("deploy", "init", "e", *args) == 2
    assert "the label 'ill, badly' has a comma" in capsys.readouterr().err
    assert not Path("e").exists()


def test_a_node_is_added(folder: Path, capsys: pytest.CaptureFixture[str]):
    before = texts(folder)
    assert fedstrata("deploy", "add", "d", "hospital-d") == 0
    assert "server/register.sh" in capsys.readouterr().out
    after = texts(folder)
    changed = {n for n in before if before[n] != after[n]}
    assert changed == {"README.md", "deployment.toml", "app/pyproject.toml"}
    assert {n.rpartition("/")[0] for n in after.keys() - before.keys()} == {"nodes/hospital-d", "server/keys"}
    assert f'"{NODES},hospital-d"' in after["app/pyproject.toml"]
    assert Deployment.read(folder).nodes == (*NODES.split(","), "hospital-d")
    assert 'data = "/path/to/data.csv"' in after["nodes/hospital-d/node.toml"]  # the split has no fourth part
    assert fedstrata("deploy", "add", "d", "hospital-d") == 2
    assert "has a node hospital-d already" in capsys.readouterr().err


def test_a_node_may_make_its_own_key(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pki.make_node_key(tmp_path / "own", tmp_path / "own.pub")
    assert fedstrata("deploy", "add", "d", "clinic", "--key", "own.pub") == 0
    assert (folder / "server" / "keys" / "clinic.pub").read_text() == (tmp_path / "own.pub").read_text()
    assert not (folder / "nodes" / "clinic" / "node.key").exists()
    (tmp_path / "bad.pub").write_text("ssh-ed25519 AAAA")
    assert fedstrata("deploy", "add", "d", "other", "--key", "bad.pub") == 2
    assert "bad.pub cannot be read as a public key" in capsys.readouterr().err
    assert Deployment.read(folder).nodes[-1] == "clinic"
    before = texts(folder)
    shutil.copy(folder / "server" / "keys" / "hospital-b.pub", "again.pub")
    assert fedstrata("deploy", "add", "d", "other", "--key", "again.pub") == 2
    assert "again.pub is the key of hospital-b already" in capsys.readouterr().err
    assert texts(folder) == before


def test_a_certificate_is_renewed(folder: Path, capsys: pytest.CaptureFixture[str]):
    before = texts(folder)
    assert fedstrata("deploy", "renew", "d", "--days", "50") == 0
    assert "systemctl reload fedstrata-proxy" in capsys.readouterr().out
    after = texts(folder)
    assert {n for n in before if before[n] != after[n]} == {
        "README.md", "server/tls/server.crt", "server/tls/server.key",
    }  # fmt: skip
    assert round(pki.days_left(pki.read_certificate(folder / "server" / "tls" / "server.crt"))) == 50


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--nodes", "a"], "say where the server is"),
        (["--host", "h"], "at least one node"),
        (["--nodes", "a,a", "--host", "h"], "two nodes called a"),
        (["--nodes", "A b", "--host", "h"], "small letters, digits and hyphens"),
        (["--nodes", "superlink", "--host", "h"], "small letters, digits and hyphens"),
        (["--nodes", "a", "--host", "https://h"], "--host must be a name"),
        (["--nodes", "a", "--host", "h", "--port", "70000"], "from 1 to 65535"),
        (["--nodes", "a", "--host", "h", "--port", "8000"], "cannot both have port 8000"),
        (["--nodes", "a", "--host", "h", "--prefix", "$HOME"], "--prefix must be a plain path"),
        (["--nodes", "a", "--host", "h", "--method", "fedavgg"], "did you mean 'fedavg'"),
        (["--nodes", "a", "--host", "h", "--days", "0"], "at least 1 day"),
        (["--nodes", "a", "--host", "h", "--days", "3650"], "can be valid for 3,649 days"),
    ],
)
def test_what_is_wrong_is_a_sentence(args, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert fedstrata("deploy", "init", "d", *args) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert not Path("d").exists()  # so that the same command, corrected, works


def test_a_folder_that_is_no_deployment_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for args in (["add", str(tmp_path), "a"], ["renew", str(tmp_path)], ["check", str(tmp_path)]):
        assert fedstrata("deploy", *args) == 2
        assert "is not a deployment: it has no deployment.toml" in capsys.readouterr().err


def test_without_flower_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert fedstrata("deploy", "local", "--nodes", "2") == 2
    assert "pip install 'fedstrata[flower]'" in capsys.readouterr().err


def test_nginx_takes_the_configuration(folder: Path, tmp_path: Path):
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if nginx is None:
        pytest.skip("nginx is not installed")
    (tmp_path / "tmp").mkdir()
    call = [nginx, "-t", "-e", "stderr", "-p", str(tmp_path), "-c", str(folder / "server" / "nginx.conf")]
    done = subprocess.run(call, capture_output=True, text=True)
    assert "syntax is ok" in done.stderr
    assert done.returncode == 0, done.stderr


def test_names_make_a_deployment_or_a_sentence():
    assert Deployment("10.0.0.1", ("a",)).hosts == ["10.0.0.1", "localhost", "127.0.0.1"]
    with pytest.raises(SettingError, match="a port is a number"):
        Deployment("h", ("a",), port=0)
