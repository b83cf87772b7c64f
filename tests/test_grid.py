"""A grid that is stopped and resumed ends as if nothing had happened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import yaml

from tinyproto import grid
from tinyproto.config import load_config
from tinyproto.errors import CheckpointError, ClientStateError, RunFolderError
from tinyproto.experiment import Experiment
from tinyproto.simulation.checkpoint import SCHEMA_VERSION, load_newest

CONFIG = """\
name: trial
partition: {num_clients: 3, alpha: 0.5, min_samples: 20}
models: [small_cnn_b, small_cnn_c]
prototypes: {dim: 12, cps_dim: 3}
train: {rounds: 3, batch_size: 64, participation: 0.7}
checkpoint: {every_seconds: 1000}
algorithms: [local, {name: fedproto, prototype_source: running}, {name: tinyproto_ft, server_epochs: 2}]
seeds: [0, 1]
"""


class StopsAfter(grid.Silent):
    """Wants to stop once, after so many rounds."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def stop_wanted(self) -> bool:
        self.left -= 1
        return self.left == 0


def experiment(tmp_path: Path, *overrides: str) -> Experiment:
    path = tmp_path / "trial.yaml"
    path.write_text(CONFIG)
    return Experiment(load_config(path, overrides))


def lasting(folder: Path) -> tuple[bytes, Any, dict[str, torch.Tensor]]:
    """What has to be equal: the records, the results but for clocks and memory, the prototypes."""
    results = json.loads((folder / "summary.json").read_text())["results"]
    for result in results:
        del result["seconds_per_round"], result["peak_memory_bytes"]
    prototypes = safetensors.torch.load_file(folder / "prototypes.safetensors")
    return (folder / "rounds.jsonl").read_bytes(), results, prototypes


def assert_same(one: Path, other: Path) -> None:
    left, right = lasting(one), lasting(other)
    assert left[0] == right[0]
    assert left[1] == right[1]
    assert left[2].keys() == right[2].keys()
    assert all(torch.equal(left[2][name], right[2][name]) for name in left[2])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    return grid.run(experiment(folder), folder / "runs")


@pytest.mark.parametrize("rounds", [1, 2, 5, 9, 18])
def test_a_stopped_run_resumes_to_the_same_end(tmp_path: Path, undisturbed: Path, rounds: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        grid.run(experiment(tmp_path), tmp_path / "runs", observer=StopsAfter(rounds))
    folder = grid.resume(experiment(tmp_path), tmp_path / "runs" / "trial")
    assert_same(folder, undisturbed)


def test_what_was_written_after_the_checkpoint_is_cut_off(tmp_path: Path, undisturbed: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        grid.run(experiment(tmp_path), tmp_path / "runs", observer=StopsAfter(5))
    folder = tmp_path / "runs" / "trial"
    for name in ("rounds.jsonl", "timings.jsonl"):
        with (folder / name).open("a") as file:
            file.write('{"half a li')
    assert_same(grid.resume(experiment(tmp_path), folder), undisturbed)


def test_a_run_killed_before_its_first_checkpoint_begins_again(tmp_path: Path, undisturbed: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        grid.run(experiment(tmp_path), tmp_path / "runs", observer=StopsAfter(2))
    folder = tmp_path / "runs" / "trial"
    for file in (folder / "checkpoint").iterdir():
        file.unlink()
    (folder / "environment.json").unlink()
    assert_same(grid.resume(experiment(tmp_path), folder), undisturbed)
    assert json.loads((folder / "environment.json").read_text())["device"] == "cpu"


def test_a_finished_run_stays_as_it_is(tmp_path: Path) -> None:
    small = experiment(tmp_path, "algorithms=[local]", "seeds=[0]", "train.rounds=1")
    folder = grid.run(small, tmp_path / "runs")
    before = (folder / "rounds.jsonl").read_bytes(), (folder / "summary.json").read_bytes()
    grid.resume(small, folder)
    assert ((folder / "rounds.jsonl").read_bytes(), (folder / "summary.json").read_bytes()) == before


def test_a_finished_run_without_checkpoints_stays_as_it_is(tmp_path: Path) -> None:
    small = experiment(tmp_path, "algorithms=[local,fedproto]", "seeds=[0]", "train.rounds=1")
    folder = grid.run(small, tmp_path / "runs")
    for file in (folder / "checkpoint").iterdir():
        file.unlink()
    before = (folder / "rounds.jsonl").read_bytes(), (folder / "summary.json").read_bytes()
    grid.resume(small, folder)
    assert ((folder / "rounds.jsonl").read_bytes(), (folder / "summary.json").read_bytes()) == before

    summary = json.loads((folder / "summary.json").read_text())
    del summary["results"][1]
    (folder / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(CheckpointError, match="holds results but no checkpoint"):
        grid.resume(small, folder)
    assert (folder / "rounds.jsonl").read_bytes() == before[0]


class Counts(grid.Silent):
    """Counts the checkpoints, and the client states beside them, while a run goes on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found: list[tuple[int, int]] = []

    def stop_wanted(self) -> bool:
        if (self.folder / "checkpoint").is_dir():
            self.found.append(tuple(len(list((self.folder / name).glob("*"))) for name in ("checkpoint", "clients")))  # type: ignore[arg-type]
        return False


def test_checkpoints_and_client_states_are_bounded_in_number_and_gone_at_the_end(tmp_path: Path) -> None:
    often = experiment(tmp_path, "checkpoint.every_seconds=0", "algorithms=[fedproto]", "train.rounds=8")
    counts = Counts(tmp_path / "runs" / "trial")
    folder = grid.run(often, tmp_path / "runs", observer=counts)
    assert max(checkpoints for checkpoints, _ in counts.found) == 2
    assert max(clients for _, clients in counts.found) <= 3 + 2  # all, and the two that changed since the one before
    assert len(list((folder / "checkpoint").iterdir())) == 1
    assert not (folder / "clients").exists()


def stopped(tmp_path: Path) -> Path:
    with pytest.raises(KeyboardInterrupt):
        grid.run(experiment(tmp_path), tmp_path / "runs", observer=StopsAfter(2))
    return tmp_path / "runs" / "trial"


def test_a_changed_config_is_refused_with_the_difference(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["train"]["rounds"] = 9
    config["algorithms"][1]["proto_weight"] = 2.5
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    before = (folder / "rounds.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match=r"train\.rounds: 3 → 9, algorithms\[1\]\.proto_weight: 10\.0 → 2\.5"):
        grid.resume(Experiment(load_config(folder / "config.yaml")), folder)
    assert (folder / "rounds.jsonl").read_bytes() == before


def newest(folder: Path) -> Path:
    return max((folder / "checkpoint").iterdir())


def test_a_truncated_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    file = newest(folder)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=rf"{file.name} is damaged"):
        grid.resume(experiment(tmp_path), folder)


def test_a_foreign_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    safetensors.torch.save_file({"weights": torch.zeros(1)}, newest(folder))
    with pytest.raises(CheckpointError, match="is not a checkpoint of tinyproto"):
        grid.resume(experiment(tmp_path), folder)


def rewritten(folder: Path, **changes: Any) -> None:
    """The newest checkpoint with other facts."""
    file = newest(folder)
    with safetensors.safe_open(file, framework="pt") as opened:
        facts = {**json.loads(opened.metadata()["tinyproto"]), **changes}
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    safetensors.torch.save_file(tensors, file, metadata={"tinyproto": json.dumps(facts)})


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    rewritten(folder, schema_version=SCHEMA_VERSION + 1)
    with pytest.raises(CheckpointError, match=f"has schema version {SCHEMA_VERSION + 1}"):
        grid.resume(experiment(tmp_path), folder)


def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    checkpoint = load_newest(folder / "checkpoint", folder / "clients")
    assert checkpoint is not None
    trained = next(iter(checkpoint.clients))
    other = 1 if trained % 2 == 0 else 0  # client i has network i modulo 2
    rewritten(folder, clients={other: checkpoint.clients[trained]})
    with pytest.raises(ClientStateError, match=f"the state of client {other} does not fit this run: RuntimeError"):
        grid.resume(experiment(tmp_path), folder)


def test_a_client_state_that_is_gone_is_named_before_anything_is_trained(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    state = min((folder / "clients").iterdir())
    state.unlink()
    before = (folder / "rounds.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match=f"{state.name} is not there"):
        grid.resume(experiment(tmp_path), folder)
    assert (folder / "rounds.jsonl").read_bytes() == before


def test_a_client_state_that_is_damaged_is_refused(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    for state in (folder / "clients").iterdir():
        content = bytearray(state.read_bytes())
        content[-3] ^= 1
        state.write_bytes(content)
    with pytest.raises(ClientStateError, match="is damaged: it is not what was written"):
        grid.resume(experiment(tmp_path), folder)


def test_what_a_killed_run_left_beside_its_checkpoint_is_swept_away(tmp_path: Path, undisturbed: Path) -> None:
    folder = stopped(tmp_path)
    needed = {path.name for path in (folder / "clients").iterdir()}
    assert needed
    for name in ("000000-0123456789abcdef.safetensors", "000001-0123456789abcdef.partial"):
        (folder / "clients" / name).write_bytes(b"half a state")
    with pytest.raises(KeyboardInterrupt):
        grid.resume(experiment(tmp_path), folder, observer=StopsAfter(1))
    assert all("0123456789abcdef" not in path.name for path in (folder / "clients").iterdir())
    assert_same(grid.resume(experiment(tmp_path), folder), undisturbed)


@pytest.mark.parametrize("rounds", [2, 5, 9])
def test_a_budget_of_one_byte_changes_nothing_undisturbed_or_resumed(
    tmp_path: Path, undisturbed: Path, rounds: int
) -> None:
    tight = experiment(tmp_path, "train.client_memory=1B")
    with pytest.raises(KeyboardInterrupt):
        grid.run(tight, tmp_path / "runs", observer=StopsAfter(rounds))
    assert_same(grid.resume(tight, tmp_path / "runs" / "trial"), undisturbed)


def test_records_shorter_than_the_checkpoint_says_are_refused(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    (folder / "rounds.jsonl").write_text("")
    with pytest.raises(RunFolderError, match=r"rounds\.jsonl is shorter than the checkpoint says"):
        grid.resume(experiment(tmp_path), folder)


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is not a run folder"):
        grid.resume(experiment(tmp_path), tmp_path)
