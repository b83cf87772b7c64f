"""A tracker that remembers what it is told, in place of a package."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tinyproto.tracking import tracker_packages, trackers
from tinyproto.tracking.trackers import TrackedCell

TRIAL = """\
name: trial
partition: {num_clients: 2, alpha: 0.5, min_samples: 20}
models: [small_cnn_c]
prototypes: {dim: 12, cps_dim: 3}
train: {rounds: 3, batch_size: 64, workers: 1}
checkpoint: {every_seconds: 1000}
"""


class Remembering:
    """The run of one cell; it fails at one round if it is asked to."""

    def __init__(self, cell: TrackedCell, fails_at: int | None) -> None:
        self.cell = cell
        self.fails_at = fails_at
        self.logged: list[tuple[int, Mapping[str, float]]] = []
        self.closed: list[bool] = []

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if step == self.fails_at:
            raise OSError("the disk is full")
        self.logged.append((step, values))

    def close(self, completed: bool) -> None:
        self.closed.append(completed)

    @property
    def steps(self) -> list[int]:
        return [step for step, values in self.logged if "payload_bytes/up" in values]


def remember(patch: pytest.MonkeyPatch, name: str, *, fails_at: int | None = None) -> list[Remembering]:
    """Replace a package; return the list of its runs, which grows."""
    runs: list[Remembering] = []

    def open_(cell: TrackedCell) -> Remembering:
        if fails_at == 0:
            raise PermissionError("no place to write")
        runs.append(Remembering(cell, fails_at))
        return runs[-1]

    patch.setitem(tracker_packages.OPEN, name, open_)
    patch.setitem(trackers.PACKAGES, name, ("json",))
    return runs
