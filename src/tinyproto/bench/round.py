"""Whole rounds by trainer, in turns in one process, so that what disturbs the machine disturbs all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tinyproto.bench.busy import cores, cpu_seconds, gpu_share
from tinyproto.bench.contenders import Asked, Baseline, Contender, Trained, device_of
from tinyproto.bench.features import measure_features
from tinyproto.errors import ConfigError
from tinyproto.experiment import Experiment
from tinyproto.models import entry_name
from tinyproto.simulation.memory import PeakMemory
from tinyproto.simulation.threads import one_thread
from tinyproto.tracking.environment import environment

PHASES = ("train", "prototypes", "server", "evaluate", "rest")
NAIVE = "naive"

Told = Callable[[str], None]


@dataclass
class _Measured:
    """One contender and what its rounds took."""

    name: str
    contender: Contender
    first_seconds: float
    memory: int
    rounds: list[dict[str, float]] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)  # seconds that cores worked
    busy: list[float] = field(default_factory=list)
    paid_steps: int | None = None  # of the last round


def measure_rounds(
    experiment: Experiment, trainers: Sequence[Asked], baseline: Baseline | None, rounds: int, told: Told
) -> dict[str, Any]:
    """Every algorithm of the experiment by every trainer and by the baseline; the first round of each is told apart."""
    steps = experiment.steps_per_round
    model = experiment.config.model
    cells = [cell for cell in experiment.cells if cell.seed == model.seeds[0]]
    measured = []
    for cell in cells:
        told(f"{cell.entry.title}: {', '.join(asked.name for asked in trainers)}{', naive' if baseline else ''}")
        measured.append(_measure(experiment, experiment.cells.index(cell), trainers, baseline, rounds, steps, told))
    return {
        "environment": environment(experiment.device, max(asked.workers for asked in trainers)),
        "setting": {
            "dataset": experiment.images.name,
            "images": len(experiment.images),
            "image": list(experiment.images.input_shape),
            "num_classes": experiment.images.num_classes,
            "num_clients": experiment.data.num_clients,
            "networks": [entry_name(entry) for entry in model.models],
            "batch_size": model.train.batch_size,
            "local_epochs": model.train.local_epochs,
            "proto_dim": model.prototypes.dim,
            "seed": model.seeds[0],
            "rounds": rounds,
            "steps_per_round": steps,
            "cores": cores(),
            "threads": 1,
        },
        "algorithms": measured,
        "features": None if baseline is None else _features(experiment, baseline, rounds),
    }


def _features(experiment: Experiment, baseline: Baseline, rounds: int) -> dict[str, Any]:
    return measure_features(
        baseline, experiment.images.num_classes, experiment.federation.proto_dim, repeats=max(rounds, 3)
    )


def _measure(
    experiment: Experiment, cell: int, trainers: Sequence[Asked], baseline: Baseline | None, rounds: int, steps: int,
    told: Told,
) -> dict[str, Any]:  # fmt: skip
    """One algorithm: each contender is built and plays its first round, then all play in turns."""
    entry, notes, device = experiment.cells[cell].entry, list[str](), device_of(experiment)
    makers: dict[str, Callable[[], Contender]] = {
        asked.name: lambda asked=asked: Trained(experiment, cell, asked, rounds + 2)  # type: ignore[misc]
        for asked in trainers
    }
    if baseline is not None:
        makers[NAIVE] = lambda: baseline.contender(experiment, experiment.cells[cell])
    contestants: list[_Measured] = []
    try:
        with one_thread():
            for name, make in makers.items():
                try:
                    contestants.append(_first(name, make, device))
                except ConfigError as error:
                    if name != NAIVE:
                        raise
                    notes.append(f"without the baseline: {error}")
            for number in range(1, rounds + 1):
                told(f"  round {number} of {rounds}")
                for measured in contestants:
                    _play(measured, device)
            shares = {measured.name: _busy(measured, device) for measured in contestants}
        for measured in contestants:
            notes += [f"{measured.name}: {note}" for note in getattr(measured.contender, "notes", ())]
        return {
            "algorithm": entry.spec.name,
            "label": entry.label,
            "contenders": _compared(contestants, shares, steps),
            "notes": notes,
        }
    finally:
        for measured in contestants:
            measured.contender.close()


def _first(name: str, make: Callable[[], Contender], device: torch.device) -> _Measured:
    """Build a contender and play its first round: captures, compilation and warm-up happen here."""
    peak = PeakMemory(device)
    before = peak.read()
    start = time.perf_counter()
    contender = make()
    contender.play()
    seconds = time.perf_counter() - start
    memory = max(peak.read() - before, 0) + getattr(contender, "other_memory", 0)
    return _Measured(name, contender, seconds, memory)


def _play(measured: _Measured, device: torch.device) -> None:
    cpu, start = cpu_seconds(), time.perf_counter()
    seconds = dict(measured.contender.play())
    wall = time.perf_counter() - start
    measured.processor.append(cpu_seconds() - cpu)
    if device.type == "cpu":
        measured.busy.append(measured.processor[-1] / (wall * cores()))
    known = sum(seconds.get(phase, 0.0) for phase in PHASES)
    seconds["rest"] = max(seconds["total"] - known, 0.0)  # of several workers the slowest counts in every phase
    measured.rounds.append(seconds)
    measured.paid_steps = getattr(measured.contender, "paid_steps", None)


def _busy(measured: _Measured, device: torch.device) -> float:
    """On a CPU the median of its rounds; on a GPU one more round is played under the profiler."""
    return statistics.median(measured.busy) if measured.busy else gpu_share(measured.contender.play, device)


def _compared(contestants: Sequence[_Measured], shares: Mapping[str, float], steps: int) -> list[dict[str, Any]]:
    """Ratios are to the baseline, or to the first trainer where there is none."""
    reference = next((one for one in contestants if one.name == NAIVE), contestants[0])
    return [_facts(measured, reference, shares[measured.name], steps) for measured in contestants]


def _facts(measured: _Measured, reference: _Measured, share: float, steps: int) -> dict[str, Any]:
    seconds = {phase: _spread([round_.get(phase, 0.0) for round_ in measured.rounds]) for phase in ("total", *PHASES)}
    base = statistics.median(round_["total"] for round_ in reference.rounds)
    return {
        "name": measured.name,
        "ratio": base / seconds["total"]["median"],
        "ratio_to": reference.name,
        "seconds": seconds,
        "cpu_seconds": _spread(measured.processor),
        "first_seconds": measured.first_seconds,
        "steps_per_second": steps / seconds["train"]["median"],
        "steps_paid": measured.paid_steps,
        "busy_share": share,
        "peak_memory_bytes": measured.memory,
        "loss": dict(measured.contender.loss),
        "accuracy": dict(measured.contender.accuracy),
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}
