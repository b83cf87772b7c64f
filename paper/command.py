"""`tinyproto reproduce`: the paper's cells played with progress, then what they reached; or what there is to play."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paper.experiments import experiments
from paper.plan import Part, PlannedCell, plan
from paper.records_reader import adopt
from paper.run import Outcome, Reproduction, Standing
from paper.targets import TARGETS
from tinyproto.cli.interrupt import ENDING, StopOnInterrupt
from tinyproto.cli.progress import Expected, Progress
from tinyproto.cli.report import comparison_table
from tinyproto.cli.terminal import Output, plain_table
from tinyproto.errors import CellsFailed, ConfigError, Interrupted
from tinyproto.grid import failed_words
from tinyproto.report.compare import Comparison, compare
from tinyproto.report.words import counted

AGAIN = "the same command goes on"


@dataclass(frozen=True)
class Asked:
    """What the command line names."""

    target: str
    part: Part
    overrides: Sequence[str]

    @classmethod
    def parse(
        cls, target: str, datasets: Sequence[str] | None, configs: Sequence[str] | None,
        algorithms: Sequence[str] | None, seeds: Sequence[str] | None, rounds: int | None, preset: str | None,
        data: Path, overrides: Sequence[str] | None,
    ) -> Asked:  # fmt: skip
        """Lists may come as several options, as one with commas, or both."""
        numbers = [_seed(text) for text in _items("--seeds", seeds)]
        part = Part(
            datasets=_items("--dataset", datasets),
            configs=_items("--configs", configs),
            algorithms=_items("--algorithms", algorithms),
            seeds=list(dict.fromkeys(numbers)),
            rounds=rounds,
            preset=preset,
            root=str(data),
        )
        return cls(target, part, overrides or [])

    def reproduction(self, results: Path, runs: Path) -> Reproduction:
        """The cells meant, with their folders."""
        cells = plan(self.target, self.part, self.overrides)
        return Reproduction(cells, results, runs, drawn=self.target == "heatmaps")


def _items(option: str, given: Sequence[str] | None) -> list[str]:
    parts = [part for text in given or () for part in re.split(r",(?![^()]*\))", text)]  # a label may have its own
    items = [part.strip() for part in parts if part.strip()]
    if given and not items:
        raise ConfigError(
            f"{option}: there is nothing in {', '.join(map(repr, given))}; leave it out for all there are"
        )
    return items


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise ConfigError(f"--seeds: whole numbers from 0 on are needed, such as 0,1,2, not {text!r}")
    return int(text)


class UntilTimeIsUp:
    """Wants a stop after a Ctrl-C or another signal to end, or so many minutes after it was made."""

    def __init__(
        self, interrupt: StopOnInterrupt, minutes: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interrupt = interrupt
        self._clock = clock
        self._end = None if minutes is None else clock() + 60 * minutes

    @property
    def wanted(self) -> bool:
        """Whether it is time."""
        return self._interrupt.wanted or (self._end is not None and self._clock() >= self._end)


def reproduce_target(asked: Asked, results: Path, runs: Path, minutes: float | None, output: Output) -> None:
    """Play what is left of a target, and show what its cells reached."""
    reproduction = asked.reproduction(results, runs)
    if not reproduction.cells:
        output.say(f"{asked.target}: {TARGETS[asked.target].words}; `tinyproto report {results}` draws it")
        output.result({"target": asked.target, "cells": [], "failed": [], "left": [], "tables": []})
        return
    standing = reproduction.standing()
    output.say(f"{asked.target}: {_counts(standing)}")
    with StopOnInterrupt(*ENDING) as interrupt:
        try:
            outcome = _play(reproduction, standing, UntilTimeIsUp(interrupt, minutes), output)
        except KeyboardInterrupt:
            raise Interrupted(AGAIN, interrupt.status) from None
    standing = reproduction.standing()
    if interrupt.wanted and any(one.state != "done" for one in standing):
        raise Interrupted(f"{_counts(standing)}; {AGAIN}", interrupt.status)
    _conclude(asked, standing, outcome, results, output)


def _play(reproduction: Reproduction, standing: Sequence[Standing], stop: UntilTimeIsUp, output: Output) -> Outcome:
    left = [one.cell for one in standing if one.state != "done"]
    expected = [Expected(cell.rounds, cell.config.model.evaluate.rule) for cell in left]
    with Progress(output, expected, stop) as progress:
        return reproduction.play(standing, progress)


def _conclude(asked: Asked, standing: Sequence[Standing], outcome: Outcome, results: Path, output: Output) -> None:
    tables = dict(_tables(standing))
    for stem, comparison in tables.items():
        output.console.print(f"\n{stem}", markup=False)
        output.console.print(comparison_table(comparison, output.console))
    undone = [one.cell for one in standing if one.state != "done"]
    left = [cell for cell in outcome.left if cell in undone]  # by now the other process may be done with some
    if undone:
        others = f" ({len(left)} left to another process)" if left else ""
        output.say(f"{asked.target}: {_counts(standing)}{others}; {AGAIN}")
    output.say(f"The page with the paper's numbers beside these: tinyproto report {results}")
    failed = [{**_identity(cell), "reason": reason} for cell, reason in outcome.failed]
    output.result(
        {
            "target": asked.target,
            "cells": [_plain(one) for one in standing],
            "failed": failed,
            "left": [_identity(cell) for cell in left],
            "tables": [{"config": stem, **comparison.plain()} for stem, comparison in tables.items()],
        }
    )
    if failed:
        named = [(f"{cell.stem}: {cell.title}, seed {cell.seed}", reason) for cell, reason in outcome.failed]
        raise CellsFailed(failed_words(named, "the same command", outcome.for_good), failed)


def _tables(standing: Sequence[Standing]) -> Iterator[tuple[str, Comparison]]:
    """What the cells that are done reached, config after config."""
    for stem in dict.fromkeys(one.cell.stem for one in standing):
        own = [one for one in standing if one.cell.stem == stem and one.finished is not None]
        found = [{**one.finished.result, "label": one.cell.label} for one in own if one.finished is not None]
        if found:
            evaluate = own[0].cell.config.model.evaluate
            titles = {one.cell.label: one.cell.title for one in own}
            yield stem, compare(found, titles, evaluate.rule, evaluate.statistic, evaluate.every)


def _counts(standing: Sequence[Standing]) -> str:
    states = [one.state for one in standing]
    parts = [f"{states.count(state)} {state}" for state in ("done", "begun", "to do") if state in states]
    return f"{counted(len(states), 'cell')}, {', '.join(parts)}"


def list_cells(asked: Asked, results: Path, runs: Path, output: Output) -> None:
    """One line per cell of a target and how far it is; as JSON also where."""
    standing = asked.reproduction(results, runs).standing()
    if output.wants_json:
        output.result([_plain(one) for one in standing])
        return
    if not standing:
        output.console.print(f"{asked.target}: {TARGETS[asked.target].words}.", markup=False)
        return
    table = plain_table()
    for name in ("config", "algorithm", "seed", "rounds", "state"):
        table.add_column(name, no_wrap=True, justify="right" if name in ("seed", "rounds") else "left")
    for one in standing:
        state = f"begun: {one.rounds} of {one.cell.rounds}" if one.state == "begun" else one.state
        table.add_row(one.cell.stem, one.cell.label, str(one.cell.seed), str(one.cell.rounds), state)
    table.caption = f"{asked.target}: {TARGETS[asked.target].words}. {_counts(standing)}."
    output.console.print(table)


def _plain(one: Standing) -> dict[str, Any]:
    folder = None if one.state == "to do" else one.folder.as_posix()
    return {**_identity(one.cell), "state": one.state, "played": one.rounds, "folder": folder}


def _identity(cell: PlannedCell) -> dict[str, Any]:
    return {
        "config": cell.stem, "dataset": cell.config.model.data.dataset,
        "algorithm": cell.config.algorithms[0].spec.name,
        "label": cell.label, "seed": cell.seed, "rounds": cell.rounds,
    }  # fmt: skip


def adopt_runs(folders: Sequence[Path], results: Path, output: Output) -> None:
    """Records of what `tinyproto run` has played."""
    told = []
    for folder in folders:
        for one in adopt(folder, results):
            name = f"{folder}: {one.finished.result['label']}, seed {one.finished.seed}"
            if one.record is None:
                output.say(f"{name}: is no cell of the paper")
            else:
                output.say(f"{name}: {'written to' if one.written else 'is there already:'} {one.record}")
            record = None if one.record is None else one.record.as_posix()
            identity = {key: one.finished.result[key] for key in ("label", "seed", "rounds")}
            told.append({"run": str(folder), **identity, "record": record, "written": one.written})
    if not told:
        output.say("There is no finished cell yet.")
    output.result(told)


def list_experiments(output: Output) -> None:
    """One line per config."""
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
    table.caption = (
        f"{sum(config.cells for config in found)} cells (an algorithm with a seed) in {len(found)} configs. "
        f"tinyproto reproduce TARGET plays those that are not done. Targets made of cells of others, or of none: "
        f"{', '.join(name for name in TARGETS if name not in {config.target for config in found})}."
    )
    output.console.print(table)
