"""A grid that is stopped and resumed ends as if nothing had happened."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import yaml

from paper.records_reader import finished_cells
from support_cli import tree
from support_grid import StopsAfter, assert_same, make_experiment
from tinyproto import grid
from tinyproto.builder import Cell
from tinyproto.config import Config, load_config
from tinyproto.engine.round import ClientRecord
from tinyproto.errors import CellsFailed, CheckpointError, RunFolderError
from tinyproto.experiment import Experiment
from tinyproto.report.runs import read_run
from tinyproto.storage.checkpoint import SCHEMA_VERSION, load_newest
from tinyproto.storage.tensor_files import load_sealed, save_sealed
from tinyproto.tracking.run_folder import RunFolder
from tinyproto.tracking.summary import RoundResult

CONFIG = """\
name: trial
data: {name: digits, first_classes: 3}
partition: {num_clients: 3, alpha: 0.5, min_samples: 20}
models: [small_cnn_b, small_cnn_c]
prototypes: {dim: 12, cps_dim: 3}
train: {rounds: 3, batch_size: 64, participation: 0.7}
checkpoint: {every_seconds: 1000}
algorithms: [local, {name: fedproto, prototype_source: running}, {name: tinyproto_ft, server_epochs: 2}]
seeds: [0, 1]
"""


def experiment(tmp_path: Path, *overrides: str) -> Experiment:
    return make_experiment(tmp_path, CONFIG, *overrides)


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


class HoldsClients(StopsAfter):
    """Counts the records of clients of earlier rounds that are still in memory."""

    def __init__(self, rounds: int) -> None:
        super().__init__(rounds)
        self.seen: list[weakref.ref[ClientRecord]] = []
        self.alive: list[int] = []

    def played(self, cell: Cell, played: RoundResult) -> None:
        self.alive.append(sum(found() is not None for found in self.seen))
        super().played(cell, played)
        self.seen += [weakref.ref(client) for client in played.record.clients.values()]


def test_a_run_and_a_resumed_one_keep_no_clients_of_earlier_rounds_in_memory(tmp_path: Path) -> None:
    first, second = HoldsClients(5), HoldsClients(1000)
    one = ("train.rounds=8", "algorithms=[fedproto]", "seeds=[0]")
    with pytest.raises(KeyboardInterrupt):
        grid.run(experiment(tmp_path, *one), tmp_path / "runs", observer=first)
    grid.resume(experiment(tmp_path, *one), tmp_path / "runs" / "trial", observer=second)
    assert len(first.seen) > 5
    assert len(second.seen) > 3
    assert max(first.alive + second.alive) <= 3  # those of the round before


def test_a_run_begun_before_there_were_types_and_budgets_goes_on(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = Config.resolved

    def older(config: Config) -> dict[str, Any]:
        values = resolved(config)
        del values["wire"], values["prototypes"]["byte_budget"], values["keep_models"], values["train"]["max_left_out"]
        for entry in values["algorithms"]:
            entry.pop("byte_budget", None)
        return values

    with monkeypatch.context() as then:
        then.setattr(Config, "resolved", older)
        with pytest.raises(KeyboardInterrupt):
            grid.run(experiment(tmp_path), tmp_path / "runs", observer=StopsAfter(5))
    folder = grid.resume(experiment(tmp_path), tmp_path / "runs" / "trial")
    assert (folder / "rounds.jsonl").read_bytes() == (undisturbed / "rounds.jsonl").read_bytes()


def test_what_was_written_after_the_checkpoint_is_cut_off(tmp_path: Path, undisturbed: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        grid.run(experiment(tmp_path), tmp_path / "runs", observer=StopsAfter(5))
    folder = tmp_path / "runs" / "trial"
    for place in (folder, folder / "cells" / "002-fedproto-0"):
        for name in ("rounds.jsonl", "timings.jsonl"):
            with (place / name).open("a") as file:
                file.write('{"half a li')
    assert_same(grid.resume(experiment(tmp_path), folder), undisturbed)


def test_a_run_killed_before_its_first_checkpoint_begins_again(tmp_path: Path, undisturbed: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        grid.run(experiment(tmp_path), tmp_path / "runs", observer=StopsAfter(2))
    folder = tmp_path / "runs" / "trial"
    for file in folder.rglob("*.safetensors"):
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


class Counts(grid.Observer):
    """Counts the checkpoints, and the client states beside them, while a run goes on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found: list[tuple[int, int]] = []

    def stop_wanted(self) -> bool:
        for cell in (self.folder / "cells").iterdir():
            checkpoints, clients = (len(list((cell / name).glob("*"))) for name in ("checkpoint", "clients"))
            self.found.append((checkpoints, clients))
        return False


def test_checkpoints_and_client_states_are_bounded_in_number_and_gone_at_the_end(tmp_path: Path) -> None:
    often = experiment(tmp_path, "checkpoint.every_seconds=0", "algorithms=[fedproto]", "train.rounds=8")
    counts = Counts(tmp_path / "runs" / "trial")
    folder = grid.run(often, tmp_path / "runs", observer=counts)
    assert max(checkpoints for checkpoints, _ in counts.found) == 2
    assert max(clients for _, clients in counts.found) <= 3 + 2  # all, and the two that changed since the one before
    assert not (folder / "cells").exists()
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
    before = tree(folder)
    with pytest.raises(CheckpointError, match=r"train\.rounds: 3 → 9, algorithms\[1\]\.proto_weight: 10\.0 → 2\.5"):
        grid.resume(Experiment(load_config(folder / "config.yaml")), folder)
    assert tree(folder) == before


def test_how_many_processes_there_are_may_change_on_the_way(tmp_path: Path, undisturbed: Path) -> None:
    folder = stopped(tmp_path)
    resumed = experiment(tmp_path, "train.workers=2", "seeds=[0, 1]")
    assert resumed.workers == 2
    assert_same(grid.resume(resumed, folder), undisturbed)


def test_cells_are_folded_in_when_they_are_done_and_leave_no_folder(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        grid.run(experiment(tmp_path), tmp_path / "runs", observer=StopsAfter(5))
    folder = tmp_path / "runs" / "trial"
    assert [path.name for path in (folder / "cells").iterdir()] == ["002-fedproto-0"]
    assert {json.loads(line)["label"] for line in (folder / "rounds.jsonl").read_text().splitlines()} == {"local"}
    grid.resume(experiment(tmp_path), folder)
    assert not (folder / "cells").exists()


def test_any_label_names_a_folder_inside_the_run(tmp_path: Path) -> None:
    labels = ["../../out", "a/b", "s=5, d=[20]", "ünï", "x" * 300, ".."]
    entries = ", ".join(f"{{name: local, label: {json.dumps(label)}}}" for label in labels)
    odd = experiment(tmp_path, f"algorithms=[{entries}]", "train.rounds=1", "seeds=[0]")
    folder = grid.run(odd, tmp_path / "runs")
    assert [result["label"] for result in json.loads((folder / "summary.json").read_text())["results"]] == labels
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "trial.yaml"]


class Killed(BaseException):
    """The process is no more."""


@pytest.mark.parametrize(
    ("step", "when"), [("append_file", 2), ("write_prototypes", 2), ("write_results", 1), ("remove", 2)]
)
def test_a_kill_while_a_cell_is_folded_in_changes_nothing(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, step: str, when: int
) -> None:
    real, calls = getattr(RunFolder, step), 0

    def killed(self: RunFolder, *arguments: Any) -> None:
        nonlocal calls
        if self.path.name == "trial" or step == "remove":
            calls += 1
            if calls == when:
                raise Killed
        real(self, *arguments)

    monkeypatch.setattr(RunFolder, step, killed)
    with pytest.raises(Killed):
        grid.run(experiment(tmp_path), tmp_path / "runs")
    monkeypatch.undo()
    assert_same(grid.resume(experiment(tmp_path), tmp_path / "runs" / "trial"), undisturbed)


def test_a_run_that_began_with_another_config_is_refused(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    last = max((folder / "checkpoint").iterdir())
    rewritten(last, position={"cell": 0, "next_round": 1, "rounds_bytes": 0, "timings_bytes": 0, "config": {}})
    with pytest.raises(CheckpointError, match=r"config\.yaml was changed"):
        grid.resume(experiment(tmp_path), folder)


def under_way(folder: Path) -> Path:
    """The folder of the first cell."""
    return folder / "cells" / "001-local-0"


def newest(folder: Path) -> Path:
    """Its newest checkpoint."""
    return max((under_way(folder) / "checkpoint").iterdir())


def test_a_truncated_checkpoint_is_refused_and_its_cell_can_start_again(tmp_path: Path, undisturbed: Path) -> None:
    folder = stopped(tmp_path)
    file = newest(folder)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CellsFailed, match=rf"{file.name} is damaged.*; delete {file.parent} to start again from round"):
        grid.resume(experiment(tmp_path), folder)
    shutil.rmtree(file.parent)
    assert_same(grid.resume(experiment(tmp_path), folder), undisturbed)


def test_a_foreign_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    safetensors.torch.save_file({"weights": torch.zeros(1)}, newest(folder))
    with pytest.raises(CellsFailed, match="is damaged, or not a file of tinyproto"):
        grid.resume(experiment(tmp_path), folder)


def rewritten(file: Path, **changes: Any) -> None:
    """A checkpoint with other facts."""
    facts, tensors = load_sealed(file)
    save_sealed(file, tensors, {**facts, **changes})


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    rewritten(newest(folder), schema_version=SCHEMA_VERSION + 1)
    with pytest.raises(CellsFailed, match=f"has schema version {SCHEMA_VERSION + 1}"):
        grid.resume(experiment(tmp_path), folder)


def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    checkpoint = load_newest(under_way(folder) / "checkpoint", under_way(folder) / "clients")
    assert checkpoint is not None
    trained = next(iter(checkpoint.clients))
    other = 1 if trained % 2 == 0 else 0  # client i has network i modulo 2
    rewritten(newest(folder), clients={other: checkpoint.clients[trained]})
    with pytest.raises(CellsFailed, match=f"the state of client {other} does not fit this run: RuntimeError"):
        grid.resume(experiment(tmp_path), folder)


def test_a_client_state_that_is_gone_is_named_before_anything_is_trained(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    state = min((under_way(folder) / "clients").iterdir())
    state.unlink()
    before = (under_way(folder) / "rounds.jsonl").read_bytes()
    with pytest.raises(CellsFailed, match=f"{state.name}, the state of client .*, is missing"):
        grid.resume(experiment(tmp_path), folder)
    assert (under_way(folder) / "rounds.jsonl").read_bytes() == before


def test_a_client_state_that_is_damaged_is_refused(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    for state in (under_way(folder) / "clients").iterdir():
        content = bytearray(state.read_bytes())
        content[-3] ^= 1
        state.write_bytes(content)
    with pytest.raises(CellsFailed, match=r"the state of client .* is damaged"):
        grid.resume(experiment(tmp_path), folder)


def test_what_a_killed_run_left_beside_its_checkpoint_is_swept_away(tmp_path: Path, undisturbed: Path) -> None:
    folder = stopped(tmp_path)
    needed = {path.name for path in (under_way(folder) / "clients").iterdir()}
    assert needed
    for name in ("000000-0123456789abcdef.safetensors", "000001-0123456789abcdef.partial"):
        (under_way(folder) / "clients" / name).write_bytes(b"half a state")
    with pytest.raises(KeyboardInterrupt):
        grid.resume(experiment(tmp_path), folder, observer=StopsAfter(1))
    assert all("0123456789abcdef" not in path.name for path in (under_way(folder) / "clients").iterdir())
    assert_same(grid.resume(experiment(tmp_path), folder), undisturbed)


@pytest.mark.parametrize("rounds", [2, 5, 9])
def test_a_budget_of_one_byte_changes_nothing_undisturbed_or_resumed(
    tmp_path: Path, undisturbed: Path, rounds: int
) -> None:
    tight = experiment(tmp_path, "train.client_memory=1B")
    with pytest.raises(KeyboardInterrupt):
        grid.run(tight, tmp_path / "runs", observer=StopsAfter(rounds))
    assert_same(grid.resume(tight, tmp_path / "runs" / "trial"), undisturbed)


def test_the_memory_for_clients_may_change_on_the_way(tmp_path: Path, undisturbed: Path) -> None:
    folder = stopped(tmp_path)
    assert_same(grid.resume(experiment(tmp_path, "train.client_memory=1B"), folder), undisturbed)


class SecondComer(grid.Observer):
    """Tries to play in the folder of the run that it observes, in each way."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.refusals: list[str] = []

    def stop_wanted(self) -> bool:
        runs, again = self.tmp_path / "runs", experiment(self.tmp_path)
        before = tree(runs)
        attempts: list[Callable[[], Path]] = [
            lambda: grid.run(again, runs), lambda: grid.run(again, runs, overwrite=True),
            lambda: grid.resume(again, runs / "trial"),
        ]  # fmt: skip
        for attempt in attempts:
            with pytest.raises(RunFolderError) as refused:
                attempt()
            self.refusals.append(str(refused.value))
        assert tree(runs) == before
        return True


def test_nobody_else_plays_in_the_folder_of_a_run_under_way(tmp_path: Path, undisturbed: Path) -> None:
    second = SecondComer(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        grid.run(experiment(tmp_path), tmp_path / "runs", observer=second)
    folder = tmp_path / "runs" / "trial"
    with pytest.raises(KeyboardInterrupt):
        grid.resume(experiment(tmp_path), folder, observer=second)
    assert second.refusals == [f"another process is running in {folder}; wait for it, or end it first"] * 6
    assert_same(grid.resume(experiment(tmp_path), folder), undisturbed)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["trial"]


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:200])


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("summary.json", cut_short, r"summary\.json cannot be read: JSONDecodeError"),
        ("summary.json", lambda file: file.write_text("[]"), r"summary\.json cannot be read: TypeError"),
        ("summary.json", Path.unlink, r"summary\.json has 0 of the 1 results that "),
        ("prototypes.safetensors", cut_short, r"prototypes\.safetensors cannot be read: SafetensorError"),
    ],
)
@pytest.mark.parametrize("done", [True, False])
def test_a_damaged_run_is_named_and_not_gone_on_with(
    tmp_path: Path, name: str, damage: Callable[[Path], object], words: str, done: bool
) -> None:
    small = experiment(tmp_path, f"algorithms=[{'local' if done else 'local,fedproto'}]", "seeds=[0]")
    with nullcontext() if done else pytest.raises(KeyboardInterrupt):
        grid.run(small, tmp_path / "runs", observer=StopsAfter(5))
    folder = tmp_path / "runs" / "trial"
    damage(folder / name)
    before = tree(folder)
    with pytest.raises(RunFolderError, match=words):
        grid.resume(small, folder)
    assert tree(folder) == before


@pytest.mark.parametrize("name", ["rounds.jsonl", "timings.jsonl"])
def test_a_damaged_record_of_a_cell_under_way_is_named(tmp_path: Path, name: str) -> None:
    folder = stopped(tmp_path)
    file = under_way(folder) / name
    file.write_bytes(file.read_bytes().replace(b'{"algorithm"', b'["algorithm"'))
    with pytest.raises(CellsFailed, match=f"{name} cannot be read: JSONDecodeError"):
        grid.resume(experiment(tmp_path), folder)


def test_records_shorter_than_the_checkpoint_says_are_refused(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    (folder / "cells" / "001-local-0" / "rounds.jsonl").write_text("")
    with pytest.raises(CellsFailed, match=r"rounds\.jsonl is shorter than the checkpoint says"):
        grid.resume(experiment(tmp_path), folder)


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is not a run folder"):
        grid.resume(experiment(tmp_path), tmp_path)


DIVERGES = "algorithms=[local, {name: fedproto, proto_weight: 1.0e9}, {name: tinyproto_ft, server_epochs: 2}]"


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_cell_that_diverges_is_named_and_the_others_are_played(tmp_path: Path, workers: int) -> None:
    asked = experiment(tmp_path, DIVERGES, f"train.workers={workers}", "train.max_left_out=0")
    for play in (partial(grid.run, asked, tmp_path / "runs"), partial(grid.resume, asked, tmp_path / "runs" / "trial")):
        with pytest.raises(CellsFailed) as caught:
            play()
        assert str(caught.value).startswith("2 cells failed (FedProto, seed 0: round 2 left out ")
        assert "resume" not in str(caught.value)
        assert [(one["label"], one["seed"]) for one in caught.value.failed] == [("fedproto", 0), ("fedproto", 1)]
        run = read_run(tmp_path / "runs" / "trial")
        assert run.unfinished == 2
        assert [(result["label"], result["seed"]) for result in run.results] == [
            ("local", 0), ("tinyproto_ft", 0), ("local", 1), ("tinyproto_ft", 1),
        ]  # fmt: skip
        assert {len(records) for records in run.rounds.values()} == {4}


def test_a_failed_cell_that_a_resume_plays_ends_where_it_would_have_ended(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = RunFolder.append_round

    def full(self: RunFolder, identity: dict[str, Any], played: RoundResult) -> None:
        if identity["label"] == "fedproto" and played.record.round == 2:
            raise RunFolderError("cannot write: no space left")
        real(self, identity, played)

    with monkeypatch.context() as then:
        then.setattr(RunFolder, "append_round", full)
        with pytest.raises(CellsFailed, match=r"FedProto, seed 0, FedProto, seed 1: cannot write: no space left"):
            grid.run(experiment(tmp_path), tmp_path / "runs")
    folder = tmp_path / "runs" / "trial"
    assert len(read_run(folder).results) == 4
    assert len(finished_cells(folder)) == 4
    with pytest.raises(KeyboardInterrupt):
        grid.resume(experiment(tmp_path), folder, observer=StopsAfter(1))
    assert [result["label"] for result in read_run(folder).results] == ["local"]  # and no word of what was cut off
    assert_same(grid.resume(experiment(tmp_path), folder), undisturbed)


def test_what_is_out_of_memory_in_turn_fails_alone_and_a_fault_names_its_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, error = RunFolder.append_round, Exception()

    def mishap(self: RunFolder, identity: dict[str, Any], played: RoundResult) -> None:
        if identity["label"] == "local":
            raise error
        real(self, identity, played)

    monkeypatch.setattr(RunFolder, "append_round", mishap)
    asked = experiment(tmp_path, "algorithms=[local, fedproto]", "seeds=[0]")
    error = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(CellsFailed, match=r"1 cell failed \(Local, seed 0: out of memory \(OutOfMemoryError: CUDA"):
        grid.run(asked, tmp_path / "runs")
    assert [result["label"] for result in read_run(tmp_path / "runs" / "trial").results] == ["fedproto"]
    error = RuntimeError("a fault")
    with pytest.raises(RuntimeError, match="a fault") as caught:
        grid.run(asked, tmp_path / "faulty")
    assert caught.value.__notes__ == ["in the cell Local, seed 0"]
