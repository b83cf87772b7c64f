"""`tinyproto bench round`: rounds by trainer as a table, or everything as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from tinyproto.bench.contenders import Asked, Baseline
from tinyproto.bench.round import PHASES, measure_rounds
from tinyproto.bench.synthetic import VALUES, synthetic_images
from tinyproto.cli.loading import LoadingBar
from tinyproto.cli.terminal import Output, plain_table
from tinyproto.config import load_config, parse_config
from tinyproto.config.load import overridden
from tinyproto.experiment import Experiment
from tinyproto.report.words import counted, number, size, times

DECIMALS = 3


def bench_round(
    arguments: Sequence[str], trainers: str, rounds: int, naive: str | None, samples: int, output: Output
) -> None:
    """Measure and print."""
    asked = [Asked.parse(text) for text in trainers.split(",")]
    baseline = Baseline.find(naive)
    experiment = _experiment(arguments, samples, output)
    if baseline is None:
        output.say("The naive baseline is in a checkout's benchmarks/ only: trainers are compared with the first.")
    result = measure_rounds(experiment, asked, baseline, rounds, output.say if output.verbose else _silent)
    if output.wants_json:
        output.result(result)
        return
    _show(result, output)


def _experiment(arguments: Sequence[str], samples: int, output: Output) -> Experiment:
    """A config file's, or that of made-up images; both with overrides."""
    if arguments and "=" not in arguments[0]:
        with LoadingBar(output.console) as progress:
            return Experiment(load_config(Path(arguments[0]), arguments[1:]), progress=progress)
    config = parse_config(overridden(VALUES, arguments), "bench")
    return Experiment(config, synthetic_images(samples))


def _silent(words: str) -> None:
    """Nobody is told."""


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
        output.say(_features(result["features"]))
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
        "First: building and the first round, not in the medians. Memory: what that added to the process."
    )
    return table


def _range(spread: dict[str, float]) -> str:
    return f"{spread['low']:.{DECIMALS}f} to {spread['high']:.{DECIMALS}f}"


def _paid(row: dict[str, Any]) -> str:
    return "" if row["steps_paid"] is None else f" ({number(row['steps_paid'])} paid)"


def _features(measured: dict[str, Any]) -> str:
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
