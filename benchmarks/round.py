"""`python -m benchmarks round`: time whole rounds by trainer.

Contenders take turns in one process, so that other load on the machine affects all of them alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from benchmarks.contenders import Asked, Baseline, Contender, Trained
from benchmarks.features import measure_features
from benchmarks.machine import cores, cpu_seconds, gpu_share
from benchmarks.synthetic import VALUES, synthetic_images
from tinyproto.cli.progress import LoadingBar
from tinyproto.cli.terminal import Output, plain_table
from tinyproto.config import load_config, parse_config
from tinyproto.config.load import overridden
from tinyproto.core.streams import one_thread
from tinyproto.errors import ConfigError
from tinyproto.experiment import Experiment
from tinyproto.memory import PeakMemory
from tinyproto.models import entry_name
from tinyproto.report.words import counted, number, size, times
from tinyproto.tracking.environment import environment

PHASES = ("train", "prototypes", "server", "evaluate", "rest")
NAIVE = "naive"

Told = Callable[[str], None]


@dataclass
class _Measured:
    """One contender and the measurements of its rounds."""

    name: str
    contender: Contender
    first_seconds: float
    memory: int
    rounds: list[dict[str, float]] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)  # processor seconds
    busy: list[float] = field(default_factory=list)
    paid_steps: int | None = None  # of the last round


def measure_rounds(
    experiment: Experiment, trainers: Sequence[Asked], baseline: Baseline | None, rounds: int, told: Told
) -> dict[str, Any]:
    """Measure each algorithm with each trainer and the baseline; report first rounds separately."""
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
    return measure_features(baseline, experiment.images.num_classes, experiment.shape.proto_dim, repeats=max(rounds, 3))


def _measure(
    experiment: Experiment, cell: int, trainers: Sequence[Asked], baseline: Baseline | None, rounds: int, steps: int,
    told: Told,
) -> dict[str, Any]:  # fmt: skip
    """Measure one algorithm: build each contender and run its first round, then let all take turns."""
    entry, notes, device = experiment.cells[cell].entry, list[str](), torch.device(experiment.device)
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
                    notes.append(f"not compared with the baseline: {error}")
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
    """Build a contender and run its first round, which includes captures, compilation and warm-up."""
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
    seconds["rest"] = max(seconds["total"] - known, 0.0)  # with several workers the slowest counts in each phase
    measured.rounds.append(seconds)
    measured.paid_steps = getattr(measured.contender, "paid_steps", None)


def _busy(measured: _Measured, device: torch.device) -> float:
    """Return the utilisation: on a CPU the median of its rounds, on a GPU that of one more round, profiled."""
    return statistics.median(measured.busy) if measured.busy else gpu_share(measured.contender.play, device)


def _compared(contestants: Sequence[_Measured], shares: Mapping[str, float], steps: int) -> list[dict[str, Any]]:
    """Compare contenders with the baseline, or with the first trainer if there is no baseline."""
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


DECIMALS = 3


def show_round(
    arguments: Sequence[str], trainers: str, rounds: int, naive: str | None, samples: int, output: Output
) -> None:
    """Measure and print; without a config, on synthetic images."""
    asked = [Asked.parse(text) for text in trainers.split(",")]
    baseline = Baseline.find(naive)
    experiment = _experiment(arguments, samples, output)
    result = measure_rounds(experiment, asked, baseline, rounds, output.say if output.verbose else _silent)
    if output.wants_json:
        output.result(result)
        return
    _show(result, output)


def _experiment(arguments: Sequence[str], samples: int, output: Output) -> Experiment:
    """Load the experiment of a config file, or that of synthetic images; apply the overrides."""
    if arguments and "=" not in arguments[0]:
        with LoadingBar(output.console) as progress:
            return Experiment(load_config(Path(arguments[0]), arguments[1:]), progress=progress)
    config = parse_config(overridden(VALUES, arguments), "KEY=VALUE")
    return Experiment(config, synthetic_images(samples))


def _silent(words: str) -> None:
    """Print nothing."""


def _show(result: dict[str, Any], output: Output) -> None:
    setting, environment = result["setting"], result["environment"]
    image = "×".join(map(str, setting["image"]))
    output.say(
        f"{setting['dataset']}, {image}: {counted(setting['num_clients'], 'client')} with "
        f"{', '.join(setting['networks'])}; batch {setting['batch_size']}, "
        f"{number(setting['steps_per_round'])} steps a round, medians of {counted(setting['rounds'], 'round')}"
    )
    for measured in result["algorithms"]:
        output.console.print(_table(measured))
        for note in measured["notes"]:
            output.say(note)
    if result["features"] is not None:
        output.say(_feature_words(result["features"]))
    packages = environment["packages"]
    output.say(
        f"{environment['cpu']}, {setting['cores']} cores, one thread a process; device {environment['device']}; "
        f"torch {packages['torch']}, Python {environment['python']}, tinyproto {environment['tinyproto']}"
    )


def _table(measured: dict[str, Any]) -> Table:
    table = plain_table()
    table.title, table.title_justify = measured["label"], "left"
    table.add_column("trainer", no_wrap=True)
    for name in ("ratio", "round s", *PHASES, "CPU s", "steps/s", "busy", "memory", "first s"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in measured["contenders"]:
        seconds = row["seconds"]
        table.add_row(
            row["name"],
            times(row["ratio"]),
            f"{seconds['total']['median']:.{DECIMALS}f}",
            *(f"{seconds[phase]['median']:.{DECIMALS}f}" for phase in PHASES),
            f"{row['cpu_seconds']['median']:.{DECIMALS}f}",
            number(row["steps_per_second"]) + _paid(row),
            f"{100 * row['busy_share']:.0f} %",
            size(row["peak_memory_bytes"]),
            f"{row['first_seconds']:.1f}",
        )
    spread = ", ".join(f"{row['name']} {_range(row['seconds']['total'])}" for row in measured["contenders"])
    table.caption = (
        f"Ratio: how many times as long {measured['contenders'][0]['ratio_to']} takes. Rounds took {spread} s. "
        "First: building and the first round, not in the medians. Memory: added to the process by these."
    )
    return table


def _range(spread: dict[str, float]) -> str:
    return f"{spread['low']:.{DECIMALS}f} to {spread['high']:.{DECIMALS}f}"


def _paid(row: dict[str, Any]) -> str:
    return "" if row["steps_paid"] is None else f" ({number(row['steps_paid'])} paid)"


def _feature_words(measured: dict[str, Any]) -> str:
    parts = {"class_means": "class means", "three_rules": "the three rules"}
    return (
        f"From {number(measured['samples'])} given features of width {measured['dim']} and {measured['num_classes']} "
        "classes: "
        + "; ".join(
            f"{words} {1e3 * measured[part]['tinyproto_seconds']:.2f} ms, naive "
            f"{1e3 * measured[part]['naive_seconds']:.1f} ms, {times(measured[part]['ratio'])}"
            for part, words in parts.items()
        )
    )
