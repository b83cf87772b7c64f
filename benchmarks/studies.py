"""Run a study of many small trainings: a pool of processes, a line per case, and a table of all cases."""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NoReturn

from tinyproto.errors import ConfigError
from tinyproto.experiment import Experiment
from tinyproto.tracking.environment import environment
from tinyproto.tracking.summary import RoundResult

Result = Mapping[str, Any]


class Parser(argparse.ArgumentParser):
    """Parses the options of a verb; an error is a ConfigError, so that it is printed as one sentence."""

    def __init__(self, verb: str, page: str | None) -> None:
        super().__init__(prog=f"python -m benchmarks {verb}", description=(page or "").partition("\n")[0])

    def error(self, message: str) -> NoReturn:
        """Raise the error."""
        raise ConfigError(f"{message}; see {self.prog} --help")


def play(experiment: Experiment) -> tuple[list[RoundResult], dict[str, Any]]:
    """Run the one cell of an experiment in this process; return its rounds and its entry of summary.json."""
    (cell,) = experiment.cells
    simulation = experiment.simulation(cell, experiment.loopback(cell))
    played = list(simulation.rounds())
    return played, experiment.summarise(cell, simulation, played)


def run_study(
    cases: Iterable[Any], train: Callable[[Any], Result], table: Callable[[Sequence[Result]], str], out: Path,
    processes: int,
) -> None:  # fmt: skip
    """Train the cases (dataclasses) that `cells.jsonl` lacks, add a line for each, and write the table of all."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / "cells.jsonl"
    done: list[Result] = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    left = [case for case in cases if not any(_is_of(result, case) for result in done)]
    (out / "environment.json").write_text(json.dumps(environment("cpu", processes), indent=2) + "\n")
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool, file.open("a") as cells:
        for number, result in enumerate(pool.imap_unordered(train, left), start=1):
            cells.write(json.dumps(result) + "\n")
            cells.flush()
            done.append(result)
            print(f"{number} of {len(left)}", end="\r", flush=True)
    (out / "table.md").write_text(table(done))
    print(table(done))


def _is_of(result: Result, case: Any) -> bool:
    """Return True if a result is of this case."""
    return {field.name: result[field.name] for field in fields(case)} == asdict(case)
