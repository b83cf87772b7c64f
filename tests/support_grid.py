"""Runs of a small grid, and what of two of them has to be equal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from tinyproto import grid
from tinyproto.algorithms.base import Derived
from tinyproto.builder import Cell
from tinyproto.config import load_config
from tinyproto.experiment import Experiment
from tinyproto.tracking.summary import RoundResult


class StopsAfter(grid.Observer):
    """Wants to stop once, after so many rounds."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def stop_wanted(self) -> bool:
        self.left -= 1
        return self.left == 0


class Recording(grid.Observer):
    """Remembers all that it is told; wants to stop once a cell has played so many rounds."""

    def __init__(self, stop_at: tuple[int, int] | None = None) -> None:
        self.words: list[str] = []
        self.events: list[tuple[str, int, Any]] = []
        self.stop_at = stop_at
        self.wanted = False

    def told(self, words: str) -> None:
        self.words.append(words)

    def opens(self, left: int) -> None:
        self.events.append(("opens", -1, left))

    def started(self, cell: Cell, done: int) -> None:
        self.events.append(("started", cell.index, done))

    def played(self, cell: Cell, played: RoundResult) -> None:
        self.events.append(("played", cell.index, played))
        self.wanted = self.wanted or (cell.index, played.record.round) == self.stop_at

    def derived(self, cell: Cell, values: Derived, round_number: int) -> None:
        self.events.append(("derived", cell.index, (dict(values), round_number)))

    def finished(self, cell: Cell, result: dict[str, Any]) -> None:
        self.events.append(("finished", cell.index, result))

    def failed(self, cell: Cell, reason: str) -> None:
        self.events.append(("failed", cell.index, reason))

    def stop_wanted(self) -> bool:
        return self.wanted

    def of(self, event: str, cell: int) -> list[Any]:
        return [value for name, index, value in self.events if (name, index) == (event, cell)]


def make_experiment(folder: Path, config: str, *overrides: str) -> Experiment:
    path = folder / "trial.yaml"
    path.write_text(config)
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
    assert not (one / "cells").exists()
