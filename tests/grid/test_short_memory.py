"""Runs whose memory is short: what is chosen and told before the first step, and what happens in a later round."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from support_cli import jsonl
from support_grid import Recording, make_experiment
from tinyproto import experiment as experiments
from tinyproto import grid
from tinyproto.builder import Cell
from tinyproto.core.task import FitResult, Task, TensorData
from tinyproto.engine.graphed import CapturedTask
from tinyproto.engine.training import WithPrecision
from tinyproto.experiment import Experiment
from tinyproto.grid.capacity import Capacity
from tinyproto.grid.mps import Sharing
from tinyproto.grid.parallel import Job, _JobPool
from tinyproto.stacked import features, step_loop
from tinyproto.stacked.step_loop import gather
from tinyproto.stacked.trainer import StackedTrainer
from tinyproto.subprocesses import Parcel
from tinyproto.tracking.run_folder import RunFolder

MIB = 2**20
CONFIG = """\
name: trial
data: {name: digits, first_classes: 4}
partition: {num_clients: 6, alpha: 1.0, min_samples: 20}
models: [small_cnn_b, small_cnn_c]
prototypes: {dim: 12, cps_dim: 3}
train: {rounds: 4, batch_size: 32, trainer: stacked}
checkpoint: {every_seconds: 0}
algorithms: [fedproto]
"""


def test_memory_that_runs_out_in_round_three_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = grid.run(make_experiment(tmp_path, CONFIG, "train.trainer=eager"), tmp_path / "enough")
    told = Recording()

    def scarce(data: TensorData, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        if len(told.of("played", 0)) >= 2 and rows.shape[0] > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return gather(data, rows, dtype)

    monkeypatch.setattr(step_loop, "gather", scarce)
    monkeypatch.setattr(features, "gather", scarce)
    found = grid.run(make_experiment(tmp_path, CONFIG), tmp_path / "short", observer=told)
    notes = [played.notes for played in told.of("played", 0)]
    assert notes[:2] == [(), ()]
    assert notes[2][-1].startswith("from now on clients of a network run 1 at a time, since memory ran out: OutOfMemor")
    for mine, other in zip(jsonl(found / "rounds.jsonl"), jsonl(expected / "rounds.jsonl"), strict=True):
        assert mine["round"] == other["round"]
        assert mine["loss"] == pytest.approx(other["loss"], rel=1e-3)


def test_a_lack_of_memory_in_the_server_s_fit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = CapturedTask.fit

    def scarce(self: CapturedTask, task: Task) -> FitResult:
        if self.epoch_at_once:  # a task without a network
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, task)

    monkeypatch.setattr(CapturedTask, "fit", scarce)
    told, entry = Recording(), "algorithms=[{name: tinyproto_ft, server_epochs: 2}]"
    grid.run(make_experiment(tmp_path, CONFIG, entry, "train.rounds=2"), tmp_path / "runs", observer=told)
    notes = [note for played in told.of("played", 0) for note in played.notes]
    assert len(notes) == 1
    assert notes[0].endswith("run without graphs: OutOfMemoryError: CUDA out of memory")


def with_room(
    folder: Path, monkeypatch: pytest.MonkeyPatch, room: float, *overrides: str, no_kernels: str | None = None
) -> Experiment:
    """An experiment on a GPU with so many free bytes."""
    monkeypatch.setattr(experiments, "resolve_device", lambda name: "cuda")
    monkeypatch.setattr(experiments, "client_budget", lambda asked, device, processes: 500 * MIB)
    monkeypatch.setattr(experiments, "gpu_room", lambda device, shared: 8000 * MIB if shared else room)
    monkeypatch.setattr(experiments, "why_no_kernels", lambda device: no_kernels)
    return make_experiment(folder, CONFIG, *overrides)


@pytest.mark.parametrize("trainer", ["stacked", "auto"])
def test_the_estimate_and_the_way_to_run_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainer: str
) -> None:
    found = with_room(tmp_path, monkeypatch, 8000 * MIB, f"train.trainer={trainer}", "train.rounds=2000")
    assert found.execution()["trainer"] == "stacked"
    assert found.execution()["trainer_because"].endswith(" of 7.8 GiB")
    assert found.choice[2:] == (None, 512)


def test_a_run_that_does_not_fit_gets_a_trainer_with_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = with_room(tmp_path, monkeypatch, 0).needs()
    room = needs.stacked(2, 512)
    found = with_room(tmp_path, monkeypatch, room)
    assert (found.choice.trainer, found.choice.width) == ("stacked", None)  # smaller batches for features suffice
    assert found.choice.feature_batch == 128
    found = with_room(tmp_path, monkeypatch, needs.stacked(1, 128))
    trainer = found._trainer()
    assert isinstance(trainer, WithPrecision)
    assert isinstance(trainer.trainer, StackedTrainer)
    assert (trainer.trainer.width, trainer.trainer.feature_batch, trainer.trainer.shared) == (*found.choice[2:], False)
    assert "do not fit, so stacked with at most" in found.execution()["trainer_because"]


def test_an_estimate_counts_the_networks_that_an_algorithm_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = with_room(tmp_path, monkeypatch, 0).needs()
    both = with_room(tmp_path, monkeypatch, 0, "algorithms=[fedproto, fml]").needs()
    for mine, more in zip(own.kinds, both.kinds, strict=True):
        assert all(added > size for added, size in zip(more.size[:2], mine.size[:2], strict=True))
    assert [kind.trained for kind in own.kinds] == [3, 3]
    half = with_room(tmp_path, monkeypatch, 0, "train.participation=0.3").needs()
    assert [(kind.trained, kind.evaluated) for kind in half.kinds] == [(2, 3), (2, 3)]


def test_cells_at_once_count_on_the_whole_card_and_raise_a_lack_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = with_room(tmp_path, monkeypatch, 0, "train.parallel_cells=2", "seeds=[0, 1]")
    assert found.choice[2:] == (None, 512)
    trainer = found._trainer()
    assert isinstance(trainer, WithPrecision)
    assert isinstance(trainer.trainer, StackedTrainer)
    assert trainer.trainer.shared


def test_a_stack_that_was_asked_for_and_has_no_kernels_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Recording()
    found = with_room(tmp_path, monkeypatch, 8000 * MIB, no_kernels="Triton is not installed")
    monkeypatch.setattr(grid, "_run_in_turn", lambda *_: None)
    folder = grid.run(found, tmp_path / "runs", observer=told)
    (words,) = told.words
    assert words.startswith(
        "trainer: graphed, since stacked is set in the config, but stacks need our kernels: Triton is not installed; "
        "an estimated"
    )
    assert json.loads((folder / "environment.json").read_text())["trainer"] == "graphed"


def test_a_first_round_that_compiles_kernels_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "_run_in_turn", lambda *_: None)
    for trainer, announced in (("stacked", True), ("graphed", False)):
        told = Recording()
        found = with_room(tmp_path, monkeypatch, 8000 * MIB, f"train.trainer={trainer}")
        grid.run(found, tmp_path / trainer, observer=told)
        assert any("the first round compiles kernels" in words for words in told.words) == announced


class Pool(_JobPool):
    """A pool that starts no process, and notes what it asks for."""

    def __init__(self, limit: int, device: str, observer: Recording) -> None:
        self.asked: list[Mapping[str, Any]] = []
        self.gone: list[str] = []
        super().__init__(
            deque(), limit, device, Sharing({}, ""), observer, lambda *_: None,
            lambda _job, reason, _again: self.gone.append(reason), Capacity(limit),
        )  # fmt: skip


@pytest.mark.parametrize(("device", "limit", "attempts"), [("cuda", 3, 2), ("cuda", 1, 1), ("cpu", 3, 1)])
def test_a_cell_without_memory_that_ran_alone_runs_once_more_in_a_slower_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, limit: int, attempts: int
) -> None:
    class Silent:
        def __init__(self, *_: Any) -> None:
            pass

        def ask(self, request: Parcel) -> None:
            pool.asked.append(request.head)

        def answers(self) -> list[Parcel]:
            return []

        def close(self) -> None:
            pass

    monkeypatch.setattr("tinyproto.grid.parallel.Child", Silent)
    monkeypatch.setattr(_JobPool, "_listen", lambda *_: None)
    told = Recording()
    pool = Pool(limit, device, told)
    entry: Any = SimpleNamespace(title="Local")
    shared: Any = SimpleNamespace()
    pool.waiting.append(Job(Cell(0, entry, 0), {}, 0, RunFolder(tmp_path), lambda: shared))
    lacking = Parcel({"event": "failed", "kind": "memory", "error": "CUDA out of memory", "place": ""})
    while pool.waiting:
        pool._start(pool.waiting.popleft())
        (child,) = pool.running
        pool._take(child, lacking)
    assert [asked["alone"] for asked in pool.asked] == [*[False] * (attempts - 1), attempts == 2 or limit == 1]
    assert pool.gone == ["out of memory although nothing ran beside it (CUDA out of memory)"]
    assert len(told.words) == attempts - 1
