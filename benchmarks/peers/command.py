"""`python -m benchmarks peers`: FedAvg rounds per second, tinyproto beside pfl-research.

Contenders take turns in one process. The first round of each, with building and warm-up, is not in the medians.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.table import Table
from torch import Tensor

from benchmarks.contenders import Asked
from benchmarks.machine import cores, machine_facts
from benchmarks.peers.pfl_rounds import MISSING, PflRounds, has_pfl
from benchmarks.peers.work import NUM_CLASSES, Ours, Work, distance, initial_network, pooled_test, scores
from tinyproto.cli.terminal import Output, plain_table
from tinyproto.core.streams import one_thread
from tinyproto.experiment import Experiment
from tinyproto.report.words import number
from tinyproto.tracking.environment import environment

PEER = "pfl"
PHASES = ("train", "clients", "server")


class Side(Protocol):
    """One contender."""

    steps: int | None  # of the latest round

    def play(self) -> Mapping[str, float]:
        """Run the next round; return its seconds by phase."""
        ...

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """Return the shared network's weights."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


def show_peers(work: Work, trainers: str | None, rounds: int, record: Path | None, output: Output) -> bool:
    """Measure, print and write the record; return False if the contenders did not learn the same."""
    found = measure(work, trainers, rounds, output.say if output.verbose else _silent)
    if record is not None:
        record.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if output.wants_json:
        output.result(found)
    else:
        _show(found, output)
    return not found["problems"]


def _silent(words: str) -> None:
    """Print nothing."""


def measure(work: Work, trainers: str | None, rounds: int, told: Callable[[str], None]) -> dict[str, Any]:
    """Run all contenders in turn; return their figures with hardware, versions and setting."""
    before, experiment = os.getloadavg(), work.experiment()
    asked = [Asked.parse(text) for text in (trainers or _usual(experiment.device)).split(",")]
    makers: dict[str, Callable[[], Side]] = {
        one.name: lambda one=one: Ours(experiment, one, rounds + 1)  # type: ignore[misc]
        for one in asked
    }
    if has_pfl():
        makers[PEER] = lambda: PflRounds(work, experiment)
    played = _take_turns(makers, rounds, torch.device(experiment.device), told)
    rows = [_row(name, side, seconds, experiment) for name, (side, seconds) in played.items()]
    peer = next((side for name, (side, _) in played.items() if name == PEER), None)
    for row in rows:
        row["distance_to_peer"] = None if peer is None else distance(played[row["name"]][0].weights, peer.weights)
        row["ratio"] = None if peer is None else row["rounds_per_second"] / _named(rows, PEER)["rounds_per_second"]
    return {
        "environment": environment(experiment.device, max(one.workers for one in asked)),
        "peer": {"name": "pfl-research", "version": importlib.metadata.version(PEER) if peer else None},
        "load": {"before": before, "after": os.getloadavg()},
        "setting": {
            **asdict(work), "data": experiment.images.name, "device": experiment.device, "rounds": rounds,
            "local_epochs": 1, "parameters": sum(value.numel() for value in initial_network(experiment).parameters()),
            "cores": cores(),
        },
        "contenders": rows,
        "problems": problems(rows, len(pooled_test(experiment))),
    }  # fmt: skip


def _named(rows: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """Return the row of a contender."""
    return next(row for row in rows if row["name"] == name)


def _usual(device: str) -> str:
    """Return the trainers to compare: on a CPU also with a worker per core, the default of `tinyproto run`."""
    return f"eager,stacked,eager*{cores()}" if device == "cpu" and cores() > 1 else "eager,stacked"


def _take_turns(
    makers: Mapping[str, Callable[[], Side]], rounds: int, device: torch.device, told: Callable[[str], None]
) -> dict[str, tuple[Side, list[dict[str, float]]]]:
    """Build all contenders and run their first rounds, then `rounds` more of each in turn; return their seconds."""
    played: dict[str, tuple[Side, list[dict[str, float]]]] = {}
    with one_thread(), ExitStack() as closing:
        for name, make in makers.items():
            told(f"first round of {name}")
            side = make()
            closing.callback(side.close)
            _timed(side, device)
            played[name] = side, []
        for done in range(rounds):
            told(f"round {done + 1} of {rounds}")
            for side, seconds in played.values():
                seconds.append(_timed(side, device))
    return played


def _timed(side: Side, device: torch.device) -> dict[str, float]:
    """Run a round; return its seconds, with the device's work finished."""
    start = time.perf_counter()
    phases = dict(side.play())
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return {**phases, "total": time.perf_counter() - start}


def _row(name: str, side: Side, rounds: Sequence[Mapping[str, float]], experiment: Experiment) -> dict[str, Any]:
    totals = [seconds["total"] for seconds in rounds]
    middle = statistics.median(totals)
    phases = {phase: statistics.median(seconds.get(phase, 0.0) for seconds in rounds) for phase in PHASES}
    return {
        "name": name,
        "rounds_per_second": 1 / middle,
        "seconds": {"median": middle, "low": min(totals), "high": max(totals), "n": len(totals)},
        "phases": None if name == PEER else {**phases, "rest": max(middle - sum(phases.values()), 0.0)},
        "steps": side.steps,
        **scores(experiment, side.weights),
    }


def problems(rows: Sequence[Mapping[str, Any]], samples: int) -> list[str]:
    """Return what shows that contenders did not learn, or not the same: sampling error of the test is allowed."""
    noise = 3 * (2 * 0.25 / samples) ** 0.5  # of the difference of two accuracies, at its largest
    found = [
        f"{row['name']} did not learn: accuracy {row['accuracy']:.1%} after the rounds"
        for row in rows
        if row["accuracy"] < 1 / NUM_CLASSES + noise
    ]
    best = max(row["accuracy"] for row in rows)
    found += [
        f"{row['name']} has accuracy {row['accuracy']:.1%}, another {best:.1%}: more than noise"
        for row in rows
        if best - row["accuracy"] > noise
    ]
    if len({row["steps"] for row in rows} - {None}) > 1:
        found.append("contenders took different numbers of steps: " + ", ".join(f"{row['steps']}" for row in rows))
    return found


def _show(found: Mapping[str, Any], output: Output) -> None:
    setting = found["setting"]
    output.say(
        f"FedAvg on {setting['data']}: {number(setting['clients'])} clients of {setting['samples']} samples, "
        f"{setting['participants']} a round; {setting['network']} ({number(setting['parameters'])} parameters), "
        f"batch {setting['batch_size']}, 1 epoch, learning rate {setting['learning_rate']}; "
        f"medians of {setting['rounds']} rounds"
    )
    output.console.print(_table(found["contenders"]))
    if found["peer"]["version"] is None:
        output.say(MISSING)
    for problem in found["problems"]:
        output.say(problem)
    for name, words in machine_facts(found["environment"]):
        output.say(f"{name}: {words}")
    output.say(f"device: {setting['device']}; load average before: {found['load']['before'][0]:.1f}")


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = plain_table()
    table.add_column("contender", no_wrap=True)
    for name in ("ratio", "rounds/s", "round s", "lowest", "highest", *PHASES, "rest", "accuracy", "loss"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        seconds, phases = row["seconds"], row["phases"] or {}
        table.add_row(
            row["name"],
            "" if row["ratio"] is None else f"{row['ratio']:.2f}×",
            f"{row['rounds_per_second']:.2f}",
            *(f"{seconds[key]:.3f}" for key in ("median", "low", "high")),
            *(f"{phases[phase]:.3f}" if phases else "" for phase in (*PHASES, "rest")),
            f"{row['accuracy']:.1%}",
            f"{row['loss']:.3f}",
        )
    table.caption = (
        "Ratio: rounds per second over pfl's. NAME*N uses N processes, all others one, with one thread each."
    )
    return table
