"""When a run's checkpoints are written, and whether one belongs to the config at hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tinyproto.errors import CheckpointError
from tinyproto.storage.checkpoint import Position, UnderWay, save, sweep
from tinyproto.tracking.run_folder import RunFolder

FREE = ("train.parallel_cells", "train.workers", "train.client_memory", "train.max_left_out", "keep_models")
"""Keys that may change while a run is under way: they say how it is played, or when it ends early, and its records do
not depend on them.

(Where clients are stacked, the memory for them may change how sums are rounded.)
"""


class Checkpoints:
    """Writes the checkpoints of one run, no more often than told."""

    def __init__(
        self, folder: RunFolder, config: Mapping[str, Any], every_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._folder = folder
        self._config = config
        self._every = every_seconds
        self._clock = clock
        self._last = clock()

    def due(self) -> bool:
        """Whether enough seconds have passed since the last."""
        return self._clock() - self._last >= self._every

    def save(self, cell: int, next_round: int, simulation: UnderWay | None) -> None:
        """Write where the run stands now: `cell` cells done, the next one about to play `next_round`."""
        position = Position(
            cell=cell,
            next_round=next_round,
            rounds_bytes=self._folder.size("rounds.jsonl"),
            timings_bytes=self._folder.size("timings.jsonl"),
            config=self._config,
        )
        with self._folder.writing("checkpoint"):
            save(self._folder.checkpoints, position, simulation)
            self.sweep()
        self._last = self._clock()

    def sweep(self) -> None:
        """Remove the states of clients that no checkpoint speaks of, such as those that a killed run left behind."""
        sweep(self._folder.checkpoints, self._folder.clients)


def check_same_config(then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """A run goes on with the config it began with, or not at all."""
    changed = differences([then, now])
    for key in FREE:
        changed.pop(key, None)
    if changed:
        changes = ", ".join(f"{key}: {before!r} → {after!r}" for key, (before, after) in changed.items())
        raise CheckpointError(
            f"config.yaml was changed since the run began ({changes}); change it back, or start another run"
        )


def differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The dotted keys in which the configs are not all alike, with the value in each; None where there is none."""
    flats = [dict(_flat(config)) for config in configs]
    columns = {key: [values.get(key) for values in flats] for values in flats for key in values}
    return {key: values for key, values in columns.items() if any(value != values[0] for value in values)}


def _flat(values: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every single value with its dotted key."""
    if isinstance(values, Mapping) and values:
        for key, value in values.items():
            yield from _flat(value, f"{place}.{key}" if place else str(key))
    elif isinstance(values, list) and values:
        for index, value in enumerate(values):
            yield from _flat(value, f"{place}[{index}]")
    else:
        yield place, values
