"""`tinyproto join --offline`: a device alone does what its client does in a simulation, and sends nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tinyproto.cli.main import app
from tinyproto.config import parse_config
from tinyproto.experiment import Experiment
from tinyproto.federation.member import MemberFiles
from tinyproto.federation.offline import train_offline
from tinyproto.storage.client_files import parts_of

CONFIG = {
    "name": "alone", "data": {"name": "digits"}, "partition": {"num_clients": 3, "alpha": 10.0},
    "models": ["small_cnn_a"], "prototypes": {"dim": 20, "cps_dim": 4},
    "train": {"rounds": 3, "batch_size": 64, "workers": 1}, "algorithms": ["anchors"],
}  # fmt: skip


def join(tmp_path: Path, *more: str, algorithm: str = "anchors") -> tuple[int, str, Path]:
    file, folder = tmp_path / "alone.yaml", tmp_path / "client"
    file.write_text(json.dumps({**CONFIG, "algorithms": [algorithm]}))
    words = ["join", "--client-id", "1", "--share", str(file), "--model", "small_cnn_a", "--folder", str(folder), *more]
    done = CliRunner().invoke(app, [*words, *(() if more else ("--offline", str(file), "--json"))])
    return done.exit_code, done.output if done.exception is None else str(done.exception), folder


def test_a_device_alone_ends_as_its_client_does_in_a_simulation(tmp_path: Path) -> None:
    code, _, folder = join(tmp_path)
    assert code == 0
    (state,) = (folder / "state").iterdir()
    saved = MemberFiles(state, 1).load("small_cnn_a")
    assert saved is not None
    experiment = Experiment(parse_config(CONFIG))
    host = experiment.loopback(experiment.cells[0])
    list(experiment.simulation(experiment.cells[0], host).rounds())
    simulated = parts_of(host.store[1])
    for part in ("model", "local"):
        assert saved.parts[part].keys() == simulated[part].keys()
        for name, tensor in simulated[part].items():
            assert tensor.equal(saved.parts[part][name]), (part, name)


def test_a_device_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    _, told, folder = join(tmp_path)
    whole = json.loads(told[told.index("{") :])["accuracy"]
    stopped = tmp_path / "stopped"
    stopped.mkdir()
    (stopped / "join.json").write_text((folder / "join.json").read_text())
    assert next(train_offline(stopped, 1, parse_config(CONFIG))).round == 1
    resumed = list(train_offline(stopped, 1, parse_config(CONFIG)))
    assert [record.round for record in resumed] == [2, 3, 4]
    assert resumed[-1].accuracy == whole
    ends = [MemberFiles(next((place / "state").iterdir()), 1).load("small_cnn_a") for place in (folder, stopped)]
    assert ends[0] is not None
    assert ends[1] is not None
    for part, tensors in ends[0].parts.items():
        assert all(tensor.equal(ends[1].parts[part][name]) for name, tensor in tensors.items())
    assert [record.closing for record in train_offline(stopped, 1, parse_config(CONFIG))] == [True]


@pytest.mark.parametrize("algorithm", ["tinyproto_ft", "lg_fedavg", "input_means"])
def test_a_method_that_needs_others_is_refused_with_those_that_do_not(tmp_path: Path, algorithm: str) -> None:
    code, told, _ = join(tmp_path, algorithm=algorithm)
    assert code
    assert "algorithms=[anchors]" in told


def test_one_of_server_and_offline_is_needed(tmp_path: Path) -> None:
    for more in (["--quiet"], ["--server", "localhost:1", "--offline", "x.yaml"]):
        code, told, _ = join(tmp_path, *more)
        assert code
        assert "--offline" in told
