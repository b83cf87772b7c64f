"""`python -m paper TARGET`: run cells with progress and show their results, list them, or import runs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paper.experiments import experiments
from paper.matching import PaperCell
from paper.plan import JOBS, TARGETS, Job, Selection, plan
from paper.records_reader import by_cell, find_finished, import_run
from paper.run import Reproduction, RunResult, Status
from tinyproto.cli.interrupt import ENDING, StopOnInterrupt
from tinyproto.cli.progress import Expected, Progress
from tinyproto.cli.report import comparison_table
from tinyproto.cli.terminal import Output, plain_table
from tinyproto.errors import CellsFailed, ConfigError, Interrupted
from tinyproto.grid import failed_words
from tinyproto.report.compare import Comparison, compare
from tinyproto.report.words import counted

AGAIN = "the same command resumes"


@dataclass(frozen=True)
class Asked:
    """A target with the options of the command line."""

    target: str
    selection: Selection
    overrides: Sequence[str]

    @classmethod
    def parse(
        cls, target: str, datasets: Sequence[str] | None, configs: Sequence[str] | None,
        algorithms: Sequence[str] | None, seeds: Sequence[str] | None, rounds: int | None, preset: str | None,
        data: Path, overrides: Sequence[str] | None,
    ) -> Asked:  # fmt: skip
        """Parse options; a list may be given as several options, as one with commas, or both."""
        numbers = [_seed(text) for text in _items("--seeds", seeds)]
        selection = Selection(
            datasets=_items("--dataset", datasets),
            configs=_items("--configs", configs),
            algorithms=_items("--algorithms", algorithms),
            seeds=list(dict.fromkeys(numbers)),
            rounds=rounds,
            preset=preset,
            root=str(data),
        )
        return cls(target, selection, overrides or [])

    def reproduction(self, records: Path, runs: Path) -> Reproduction:
        """Return the selected cells with their folders."""
        cells = plan(self.target, self.selection, self.overrides)
        return Reproduction(cells, records, runs, drawn=self.target == "heatmaps")


def _items(option: str, given: Sequence[str] | None) -> list[str]:
    parts = [part for text in given or () for part in re.split(r",(?![^()]*\))", text)]  # labels may contain commas
    items = [part.strip() for part in parts if part.strip()]
    if given and not items:
        raise ConfigError(f"{option}: {', '.join(map(repr, given))} is empty; leave the option out to select all")
    return items


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise ConfigError(f"--seeds: expected whole numbers from 0, such as 0,1,2, not {text!r}")
    return int(text)


class Deadline:
    """Requests a stop after a signal, or after a number of minutes."""

    def __init__(
        self, interrupt: StopOnInterrupt, minutes: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interrupt = interrupt
        self._clock = clock
        self._end = None if minutes is None else clock() + 60 * minutes

    @property
    def wanted(self) -> bool:
        """Return True if it is time to stop."""
        return self._interrupt.wanted or (self._end is not None and self._clock() >= self._end)


def run_target(asked: Asked, records: Path, runs: Path, minutes: float | None, output: Output) -> None:
    """Run the cells of a target that are not done, and show the results of all."""
    reproduction = asked.reproduction(records, runs)
    if not reproduction.cells:
        output.say(f"{asked.target}: {TARGETS[asked.target].words}; `python -m paper report {records}` draws it")
        output.result({"target": asked.target, "cells": [], "failed": [], "left": [], "tables": []})
        return
    status = reproduction.status()
    output.say(f"{asked.target}: {_counts(status)}")
    with StopOnInterrupt(*ENDING) as interrupt:
        try:
            ended = _run(reproduction, status, Deadline(interrupt, minutes), output)
        except KeyboardInterrupt:
            raise Interrupted(AGAIN, interrupt.status) from None
    status = reproduction.status()
    if interrupt.wanted and any(one.state != "done" for one in status):
        raise Interrupted(f"{_counts(status)}; {AGAIN}", interrupt.status)
    _conclude(asked, status, ended, records, output)


def _run(reproduction: Reproduction, status: Sequence[Status], stop: Deadline, output: Output) -> RunResult:
    left = [one.cell for one in status if one.state != "done"]
    expected = [Expected(cell.rounds, cell.config["evaluate"]["rule"]) for cell in left]
    with Progress(output, expected, lambda: stop.wanted) as progress:
        return reproduction.run(status, progress)


def _conclude(asked: Asked, status: Sequence[Status], ended: RunResult, records: Path, output: Output) -> None:
    tables = dict(_tables(status))
    for group, comparison in tables.items():
        output.console.print(f"\n{group}", markup=False)
        output.console.print(comparison_table(comparison, output.console))
    unfinished = [one.cell for one in status if one.state != "done"]
    left = [cell for cell in ended.left if cell in unfinished]  # the other process may have finished some by now
    if unfinished:
        others = f" ({len(left)} run by another process)" if left else ""
        output.say(f"{asked.target}: {_counts(status)}{others}; {AGAIN}")
    output.say(f"To see these results next to the paper's: python -m paper report {records}")
    failed = [{**_identity(cell), "reason": reason} for cell, reason in ended.failed]
    output.result(
        {
            "target": asked.target,
            "cells": [_plain(one) for one in status],
            "failed": failed,
            "left": [_identity(cell) for cell in left],
            "tables": [{"config": group, **comparison.plain()} for group, comparison in tables.items()],
        }
    )
    if failed:
        named = [(f"{cell.group}: {cell.title}, seed {cell.seed}", reason) for cell, reason in ended.failed]
        raise CellsFailed(failed_words(named, "the same command", ended.for_good), failed)


def _tables(status: Sequence[Status]) -> Iterator[tuple[str, Comparison]]:
    """Yield the results of the finished cells, config after config."""
    for group in dict.fromkeys(one.cell.group for one in status):
        done = [one for one in status if one.cell.group == group and one.finished is not None]
        results = [{**one.finished.result, "label": one.cell.label} for one in done if one.finished is not None]
        if results:
            evaluate = done[0].cell.config["evaluate"]
            titles = {one.cell.label: one.cell.title for one in done}
            yield group, compare(results, titles, evaluate["rule"], evaluate["statistic"], evaluate["every"])


def _counts(status: Sequence[Status]) -> str:
    states = [one.state for one in status]
    parts = [f"{states.count(state)} {state}" for state in ("done", "begun", "to do") if state in states]
    return f"{counted(len(states), 'cell')}, {', '.join(parts)}"


def list_cells(asked: Asked, records: Path, runs: Path, output: Output) -> None:
    """Print a line per cell of a target with its progress; as JSON also its folder."""
    status = asked.reproduction(records, runs).status()
    if output.wants_json:
        output.result([_plain(one) for one in status])
        return
    if not status:
        output.console.print(f"{asked.target}: {TARGETS[asked.target].words}.", markup=False)
        return
    table = plain_table()
    for name in ("config", "algorithm", "seed", "rounds", "state"):
        table.add_column(name, no_wrap=True, justify="right" if name in ("seed", "rounds") else "left")
    for one in status:
        state = f"begun: {one.rounds} of {one.cell.rounds}" if one.state == "begun" else one.state
        table.add_row(one.cell.group, one.cell.label, str(one.cell.seed), str(one.cell.rounds), state)
    table.caption = f"{asked.target}: {TARGETS[asked.target].words}. {_counts(status)}."
    output.console.print(table)


def list_plan(records: Path, output: Output) -> None:
    """Print a line per job of the next GPU session, in order; a cell of two jobs counts as one of the first."""
    known = {folder: by_cell(find_finished(folder)) for folder in {_records_of(job, records) for job in JOBS}}
    told: list[dict[str, Any]] = []
    earlier: set[tuple[Path, tuple[str, int, int]]] = set()
    for number, job in enumerate(JOBS, 1):
        folder = _records_of(job, records)
        cells = [cell.identity for cell in job.cells() if (folder, cell.identity) not in earlier]
        earlier |= {(folder, identity) for identity in cells}
        done = sum(identity in known[folder] for identity in cells)
        told.append(
            {"job": number, "what": job.words, "cells": len(cells), "to_do": len(cells) - done, "command": job.command}
        )
    if output.wants_json:
        output.result(told)
        return
    output.console.print(f"{sum(one['to_do'] for one in told)} cells to do, in this order:", markup=False)
    for one in told:
        words = f"{one['job']:2}. {one['what']}: {one['to_do']} of {counted(one['cells'], 'cell')} to do"
        output.console.print(words, markup=False)
        output.console.print(f"    {one['command']}", markup=False, soft_wrap=True)
    output.console.print("All jobs without --results, several cells at once: python -m paper planned", markup=False)


def _records_of(job: Job, records: Path) -> Path:
    return records if job.results is None else Path(job.results)


def _plain(one: Status) -> dict[str, Any]:
    folder = None if one.state == "to do" else one.folder.as_posix()
    return {**_identity(one.cell), "state": one.state, "completed": one.rounds, "folder": folder}


def _identity(cell: PaperCell) -> dict[str, Any]:
    return {
        "config": cell.group, "dataset": cell.paper.dataset, "algorithm": cell.entry["name"],
        "label": cell.label, "seed": cell.seed, "rounds": cell.rounds,
    }  # fmt: skip


def import_runs(folders: Sequence[Path], records: Path, output: Output) -> None:
    """Write records of run folders that `tinyproto run` made."""
    told = []
    for folder in folders:
        for one in import_run(folder, records):
            name = f"{folder}: {one.finished.result['label']}, seed {one.finished.seed}"
            if one.record is None:
                output.say(f"{name}: not a cell of the paper")
            else:
                output.say(f"{name}: {'written to' if one.written else 'already recorded in'} {one.record}")
            record = None if one.record is None else one.record.as_posix()
            identity = {key: one.finished.result[key] for key in ("label", "seed", "rounds")}
            told.append({"run": str(folder), **identity, "record": record, "written": one.written})
    if not told:
        output.say("No cell is finished yet.")
    output.result(told)


def list_experiments(output: Output) -> None:
    """Print a line per config."""
    found = experiments()
    if output.wants_json:
        output.result(
            [
                {
                    "target": config.target,
                    "config": config.path.as_posix(),
                    "dataset": config.dataset,
                    "cells": config.cells,
                    "what": config.words,
                }
                for config in found
            ]
        )
        return
    table = plain_table()
    for name in ("target", "config", "dataset"):
        table.add_column(name, no_wrap=True)
    table.add_column("cells", justify="right", no_wrap=True)
    for config in found:
        table.add_row(config.target, config.path.as_posix(), config.dataset, str(config.cells))
    composed = [name for name in TARGETS if name not in {config.target for config in found}]
    table.caption = (
        f"{sum(config.cells for config in found)} cells (an algorithm with a seed) in {len(found)} configs. "
        "`python -m paper TARGET` runs those that are not done. Targets that share cells with others, or have none: "
        f"{', '.join(composed)}."
    )
    output.console.print(table)
