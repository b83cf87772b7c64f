"""Trackers of experiments: each round of a cell is also told to TensorBoard, Weights & Biases, trackio or MLflow.

A tracker only ever repeats what the record has. Where a cell starts or resumes, its tracker's run is made anew from the
rounds recorded so far, so no step is there twice. Everything is written into the run folder, `tracking/NAME`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tinyproto.config.load import flat
from tinyproto.config.schema import ConfigModel
from tinyproto.errors import ConfigError, one_line
from tinyproto.tracking.run_folder import RunFolder, cell_name
from tinyproto.tracking.summary import RoundResult, round_values

FOLDER = "tracking"
PACKAGES = {
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
    "mlflow": ("mlflow", "alembic"),
}
"""The packages that each tracker imports; the extra that installs them has the tracker's name."""

Warn = Callable[[str], None]


@dataclass(frozen=True)
class TrackedCell:
    """A cell as a tracker knows it before the first round."""

    folder: Path  # for this tracker, shared by the cells of the run
    run: str  # the name of the run folder
    name: str  # label and seed, unique in the run
    settings: Mapping[str, str | int | float | bool]  # the config of this cell, by dotted key


class Tracker(Protocol):
    """The run of one cell in one tracker; its functions may raise anything."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add values, by names such as accuracy/head, to a step; steps never decrease."""
        ...

    def close(self, completed: bool) -> None:
        """Write everything out, and note whether the cell was completed."""
        ...


class Trackers:
    """The open trackers of one cell; one that fails is reported once and left out from then on."""

    def __init__(self, opened: Mapping[str, Tracker] | None = None, warn: Warn = print) -> None:
        self._open = dict(opened or {})
        self._warn = warn
        self._step = 0

    def log(self, result: RoundResult) -> None:
        """Tell all trackers one round, under its number."""
        self._step = result.record.round
        self._tell(_numbers(round_values(result)))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Tell all trackers the cell's entry of summary.json, and close them."""
        self._tell(_numbers({"summary": summary}))
        self.close(completed=True)

    def close(self, *, completed: bool = False) -> None:
        """Close all trackers; no-op if they are closed."""
        for name, tracker in list(self._open.items()):
            self._try(name, partial(tracker.close, completed))
        self._open.clear()

    def _tell(self, values: Mapping[str, float]) -> None:
        for name, tracker in list(self._open.items()):
            self._try(name, partial(tracker.log, self._step, values))

    def _try(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # another package's, on which no training should depend
            tracker = self._open.pop(name)
            self._warn(f"tracking: {name} failed at round {self._step} and is off from here on: {one_line(error)}")
            with suppress(Exception):
                tracker.close(False)


def check_installed(names: Sequence[str]) -> None:
    """Raise ConfigError if the package of a tracker is missing."""
    for name in names:
        if any(importlib.util.find_spec(package) is None for package in PACKAGES[name]):
            raise ConfigError(f'tracking: {name} is not installed; run: pip install "tinyproto-fl[{name}]"')


def open_trackers(folder: RunFolder, config: Mapping[str, Any], identity: Mapping[str, Any], warn: Warn) -> Trackers:
    """Open the trackers that a resolved config names for one cell; raise ConfigError if one cannot start."""
    from tinyproto.tracking import tracker_packages

    name = cell_name(identity["label"], identity["seed"])
    opened: dict[str, Tracker] = {}
    for kind in config.get("tracking", ()):
        place = folder.run / FOLDER / kind
        try:
            place.mkdir(parents=True, exist_ok=True)
            cell = TrackedCell(place, str(config["name"]), name, _settings(config, identity))
            opened[kind] = tracker_packages.OPEN[kind](cell)
        except Exception as error:
            Trackers(opened, warn).close()
            raise ConfigError(f"tracking: {kind} cannot start in {place}: {one_line(error)}") from error
    return Trackers(opened, warn)


def _settings(config: Mapping[str, Any], identity: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """Return the hyper-parameters of a cell: the config, with its own algorithm and seed only.

    A coordinator adds its federation's token to the config, which nobody else should see.
    """
    (entry,) = (one for one in config["algorithms"] if one["label"] == identity["label"])
    shared = {key: config[key] for key in ConfigModel.model_fields.keys() - {"algorithms", "seeds", "tracking"}}
    values = flat({**shared, "algorithm": entry, "seed": identity["seed"]})
    named = {key.replace("[", ".").replace("]", ""): value for key, value in sorted(values, key=lambda pair: pair[0])}
    return {key: value if isinstance(value, str | int | float) else str(value) for key, value in named.items()}


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in nested mappings, by names such as accuracy/head, without lists and single clients."""
    found = {key.replace(".", "/"): value for key, value in flat(values) if "clients." not in key and "[" not in key}
    return {key: float(value) for key, value in found.items() if isinstance(value, int | float)}
