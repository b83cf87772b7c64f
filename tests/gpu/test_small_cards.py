"""Cards with less memory, by a limit on what torch may allocate; cards without our kernels."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import tinyproto as tp
from support_cli import jsonl
from support_grid import Recording, make_experiment
from tinyproto import grid
from tinyproto.builder import Cell
from tinyproto.memory import ROOM
from tinyproto.stacked import capture
from tinyproto.tracking.summary import RoundResult

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
GIB = 2**30
CONFIG = """\
name: trial
data: {name: npz, root: images.npz}
partition: {num_clients: 20, alpha: 1.0, min_samples: 40}
models: [resnet8, mobilenet_v2, shufflenet_v2, efficientnet_b0]
prototypes: {dim: 500, cps_dim: 50}
train: {rounds: 4, participation: 0.6, device: cuda, trainer: stacked}
evaluate: {clients: all}
checkpoint: {every_seconds: 0}
algorithms: [{name: tinyproto_ft, server_epochs: 5}]
"""
Limit = Callable[[float], None]


@pytest.fixture
def limit() -> Iterator[Limit]:
    """Limit what torch may allocate, in GiB."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    total = torch.cuda.get_device_properties(0).total_memory
    yield lambda size: torch.cuda.set_per_process_memory_fraction(min(1.0, size * GIB / total))
    torch.cuda.set_per_process_memory_fraction(1.0)


def drawn(samples: int, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Draw noisy images that are brighter for a higher class."""
    labels = np.arange(samples) % classes
    noise = np.random.default_rng(0).integers(0, 64, (samples, 3, 32, 32), dtype=np.uint8)
    return noise + (labels * (190 // classes)).astype(np.uint8)[:, None, None, None], labels


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pixels, labels = drawn(4000, 10)
    np.savez(tmp_path / "images.npz", images=pixels, labels=labels)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def completed(folder: Path) -> list[int]:
    return [line["round"] for line in jsonl(folder / "rounds.jsonl")]


def lacks(told: Recording) -> list[str]:
    return [note for played in told.of("played", 0) for note in played.notes if "memory ran out" in note]


@pytest.mark.parametrize("size", [16, 8, 4, 2])
def test_the_paper_s_networks_train_on_a_small_card(project: Path, limit: Limit, size: float) -> None:
    limit(size)
    told = Recording()
    folder = grid.run(make_experiment(project, CONFIG), project / "runs", observer=told)
    assert completed(folder) == [1, 2, 3, 4, 5]
    assert torch.cuda.max_memory_reserved() <= size * GIB
    assert size < 8 or lacks(told) == []


def test_what_a_run_reserves_is_less_than_the_estimate_and_not_much_less(project: Path, limit: Limit) -> None:
    limit(1000)
    experiment, told = make_experiment(project, CONFIG), Recording()
    assert experiment.choice[2:] == (None, 512)
    estimated, before = next(experiment.needs().ways("stacked")).bytes, torch.cuda.memory_reserved()
    limit((before + 1.1 * estimated) / GIB)  # with more, torch would keep at hand what it does not need
    grid.run(experiment, project / "runs", observer=told)
    assert lacks(told) == []
    assert 0.25 < (torch.cuda.max_memory_reserved() - before) / estimated < 1.1


class Narrowing(Recording):
    """Takes the memory away after a round."""

    def __init__(self, limit: Limit, after: int) -> None:
        super().__init__()
        self.limit, self.after = limit, after

    def played(self, cell: Cell, played: RoundResult) -> None:
        super().played(cell, played)
        if played.record.round == self.after:
            torch.cuda.empty_cache()
            left = max(torch.cuda.memory_allocated() + 0.8 * GIB, torch.cuda.memory_reserved() + ROOM)
            self.limit(left / GIB)  # graphs hold more than is allocated, and nobody else can take that


@pytest.mark.parametrize("trainer", ["stacked", "graphed"])
def test_memory_that_another_process_takes_in_a_later_round_ends_no_run(
    project: Path, limit: Limit, trainer: str
) -> None:
    told = Narrowing(limit, after=2)
    folder = grid.run(make_experiment(project, CONFIG, f"train.trainer={trainer}"), project / "runs", observer=told)
    assert completed(folder) == [1, 2, 3, 4, 5]
    assert all(value == value for line in jsonl(folder / "rounds.jsonl") for value in line["loss"].values())


def small(trainer: str) -> tp.Result:
    train = {"device": "cuda", "batch_size": 16, "trainer": trainer, "precision": "exact"}
    images = tp.data.from_arrays(*drawn(400, 4))
    networks = ["resnet8", "small_cnn_c"]
    return tp.simulate(
        data=images, algorithm="fedtgp", models=networks, num_clients=4, rounds=3, settings={"train": train}
    )


def assert_same_losses(mine: tp.Result, other: tp.Result) -> None:
    for one, two in zip(mine.rounds, other.rounds, strict=True):
        assert one.loss == pytest.approx(two.loss, rel=1e-2, abs=1e-4)


def test_memory_that_runs_out_inside_a_capture_leaves_a_device_that_trains_on(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, real = small("eager"), capture.Branch.fork
    failed: list[bool] = []

    def fork(self: capture.Branch, *read: Tensor) -> AbstractContextManager[None]:
        if torch.cuda.is_current_stream_capturing() and self._read and not failed:  # a branch is open
            failed.append(True)
            raise torch.OutOfMemoryError("tried to allocate")
        return real(self, *read)

    monkeypatch.setattr(capture.Branch, "fork", fork)
    assert_same_losses(small("stacked"), expected)
    assert failed


@pytest.mark.parametrize("capability", [None, (7, 5)])
def test_without_our_kernels_a_run_gives_the_reference_s_numbers(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None
) -> None:
    expected = small("eager")
    if capability is None:
        monkeypatch.setattr(capture, "why_no_triton", lambda: "Triton is not installed")
    else:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert_same_losses(small("stacked"), expected)
