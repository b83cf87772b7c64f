"""Three thousand rounds in one process: memory and the time of a round stay as they were after the first hundred.

A tiny federation on made-up images runs through a run folder, so records are appended, played rounds are kept for the
summary and checkpoints are written.
"""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.soak import Line, Verdict
from tinyproto import grid
from tinyproto.builder import Cell
from tinyproto.config import parse_config
from tinyproto.experiment import Experiment
from tinyproto.tracking.summary import RoundResult

ROUNDS = 3000
WARM = 100
"""Rounds after which memory and time must be flat."""

WINDOW = 500
MOST_GROWTH = 0.05
MOST_SLOWER = 0.20
STATM = Path("/proc/self/statm")
METHODS = ("tinyproto_ft", "tinyproto_fp")


class Watcher(grid.Observer):
    """Reads memory and clock after every round."""

    def __init__(self, method: str) -> None:
        self.memory: list[int] = []
        self.clock: list[float] = []
        self.work: list[float] = []  # processor seconds, which other processes hardly change
        self._line = Line(f"rounds ({method})")

    def played(self, cell: Cell, played: RoundResult) -> None:  # noqa: ARG002
        """Take one sample."""
        self.memory.append(int(STATM.read_text().split()[1]) * resource.getpagesize())
        self.clock.append(time.perf_counter())
        self.work.append(time.process_time())
        self._line.show(f"{played.record.round} rounds, {self.memory[-1] / 1e6:.1f} MB")


def config(folder: Path, method: str, rounds: int, seed: int) -> dict[str, Any]:
    """Return a federation of which a round takes milliseconds, and write its images."""
    draws = np.random.default_rng(seed)
    labels = np.arange(120) % 3
    images = (draws.integers(0, 60, (120, 8, 8)) + 60 * labels[:, None, None]).astype(np.uint8)
    np.savez(folder / "images.npz", x_train=images[:60], y_train=labels[:60], x_test=images[60:], y_test=labels[60:])
    entry: dict[str, Any] = {"name": method, "server_epochs": 2} if method == "tinyproto_ft" else {"name": method}
    return {
        "name": "rounds", "data": {"name": "npz", "root": str(folder / "images.npz")},
        "partition": {"kind": "iid", "num_clients": 3}, "models": ["small_cnn_a"],
        "prototypes": {"dim": 8, "cps_dim": 4},
        "train": {"rounds": rounds, "batch_size": 40, "workers": 1, "parallel_cells": 1, "device": "cpu"},
        "checkpoint": {"every_seconds": 1}, "algorithms": [entry], "seeds": [seed],
    }  # fmt: skip


def watched(method: str, rounds: int, seed: int) -> dict[str, Any]:
    """Run one method in this process; return its figures."""
    with tempfile.TemporaryDirectory(prefix="tinyproto-soak-") as folder:
        watcher = Watcher(method)
        experiment = Experiment(parse_config(config(Path(folder), method, rounds, seed), "the soak's config"))
        run = grid.run(experiment, Path(folder), observer=watcher)
        lines = len((run / "rounds.jsonl").read_bytes().splitlines())
    warm = watcher.memory[WARM - 1]
    clock, work = (np.diff(series) * 1000 for series in (watcher.clock, watcher.work))
    early, late = (slice(WARM, WARM + WINDOW), slice(-WINDOW, None))
    return {
        "rounds": lines - 1, "memory after round 100, MB": round(warm / 1e6, 1),
        "memory at most later, MB": round(max(watcher.memory[WARM:]) / 1e6, 1),
        "growth": round(max(watcher.memory[WARM:]) / warm - 1, 4),
        **{f"median {name}, rounds {WARM} to {WARM + WINDOW}": round(median(series[early]), 2) for name, series in
           (("ms", clock), ("processor ms", work))},
        **{f"median {name}, last {WINDOW} rounds": round(median(series[late]), 2) for name, series in
           (("ms", clock), ("processor ms", work))},
        "slower": round(median(work[late]) / median(work[early]) - 1, 4),
    }  # fmt: skip


def soak(seed: int, rounds: int = ROUNDS) -> Verdict:
    """Run the part, both methods at once, each in a process of its own."""
    if not STATM.is_file():
        return Verdict(skipped=f"{STATM} is missing: this system does not tell how much memory a process has")
    verdict = Verdict()
    with ProcessPoolExecutor(len(METHODS), multiprocessing.get_context("spawn")) as processes:
        waiting = {method: processes.submit(watched, method, rounds, seed) for method in METHODS}
        verdict.figures = {method: future.result() for method, future in waiting.items()}
    for method, figures in verdict.figures.items():
        if figures["rounds"] != rounds:
            verdict.failures.append(f"{method}: {figures['rounds']} rounds recorded instead of {rounds}")
        if figures["growth"] >= MOST_GROWTH:
            verdict.failures.append(f"{method}: memory grew by {figures['growth']:.1%} after round {WARM}")
        if figures["slower"] >= MOST_SLOWER:
            verdict.failures.append(f"{method}: rounds became {figures['slower']:.1%} slower")
    return verdict
