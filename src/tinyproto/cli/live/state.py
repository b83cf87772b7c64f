"""The state of a run as its live page shows it: accuracy and bytes by method, who is here, time left."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tinyproto.builder import Cell
from tinyproto.cli.live.records import Rounds, RunRecords
from tinyproto.config import Config
from tinyproto.engine.measure import RULES, WAYS
from tinyproto.report import html
from tinyproto.report.compare import compare
from tinyproto.report.figures.curves import accuracy_over_rounds
from tinyproto.report.runs import Run
from tinyproto.report.studies import Cell as ShownCell
from tinyproto.report.studies import Series, Setting, Study
from tinyproto.report.words import counted, size

COLUMNS = ("algorithm", "rounds", *RULES, "payload", "wire")
MOST_CELLS = 12
"""Running cells that are listed; the others are counted."""


class LiveState:
    """Reads a run folder again and again."""

    def __init__(self, config: Config, folder: Path, *, new: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self.folder = folder
        self.here: Callable[[], Sequence[str]] | None = None  # a coordinator's words on who is connected
        self._records = RunRecords(folder, new=new)
        self._clock = clock
        self._before: int | None = None  # rounds that were completed when this began
        self._base: tuple[float, int] | None = None  # time and rounds when the first one after that was seen
        self._figure = ""

    @property
    def cells(self) -> list[tuple[Cell, Rounds]]:
        """Return all cells of the grid with their rounds so far."""
        grid = [(entry, seed) for seed in self.config.model.seeds for entry in self.config.algorithms]
        cells = [Cell(index, entry, seed) for index, (entry, seed) in enumerate(grid)]
        return [(cell, self._records.cells.get((cell.entry.label, cell.seed), {})) for cell in cells]

    def read(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        if self._records.read():
            self._figure = self._draw()
        cells = self.cells
        done, total = sum(_completed(found) for _, found in cells), len(cells) * self.config.model.train.rounds
        return {
            "done": done,
            "of": total,
            "left": self._seconds_left(done, total),
            "rows": [self._row(entry.label, entry.title) for entry in self.config.algorithms],
            "here": list(self._participants() if self.here is None else self.here()),
            "figure": self._figure,
        }

    def _seconds_left(self, done: int, total: int) -> float | None:
        """Return an estimate from the rounds seen so far, without the start of the run; None if it is too early."""
        self._before = done if self._before is None else min(self._before, done)
        if self._base is None and done > self._before:
            self._base = self._clock(), done
        if self._base is None or done <= self._base[1]:
            return None
        return (total - done) * (self._clock() - self._base[0]) / (done - self._base[1])

    def _row(self, label: str, title: str) -> list[str]:
        found = [rounds for cell, rounds in self.cells if cell.entry.label == label]
        done, total = sum(map(_completed, found)), len(found) * self.config.model.train.rounds
        sent = {kind: sum(_sent(rounds, kind) for rounds in found) for kind in ("payload", "wire")}
        accuracy = [_mean([_last(rounds, rule) for rounds in found]) for rule in RULES]
        return [title, f"{done} of {total}", *accuracy, *map(size, sent.values())]

    def _participants(self) -> list[str]:
        """Say for each running cell who took part in its last round."""
        running = [(cell, rounds[max(rounds)]) for cell, rounds in self.cells if rounds and not _is_over(rounds)]
        said = []
        for cell, last in running[:MOST_CELLS]:
            absent = [f"{len(last[word])} {word}" for word in ("dropped", "late") if last.get(word)]
            who = ", ".join([counted(last["participants"], "client"), *absent])
            said.append(f"{cell.title}: round {last['round']} of {self.config.model.train.rounds} with {who}")
        if len(running) > MOST_CELLS:
            said.append(f"{counted(len(running) - MOST_CELLS, 'cell')} more")
        return said

    def _draw(self) -> str:
        """Draw accuracy over rounds, as the report does, by the headline rule or by the head; empty if unknown."""
        rule, statistic = self.config.model.evaluate.rule, self.config.model.evaluate.statistic
        resolved = self.config.resolved()
        rounds = {key: [found[number] for number in sorted(found)] for key, found in self._records.cells.items()}
        run = Run(self.folder, self.config.model.name, resolved, {}, [], rounds, None)
        series = [
            Series(entry.title, entry.title, colour, [ShownCell(run, cell.identity) for cell, _ in found])
            for colour, entry in enumerate(self.config.algorithms)
            if (found := [(cell, known) for cell, known in self.cells if cell.entry.label == entry.label and known])
        ]
        study = Study([Setting([run], series, compare([], {}, rule, statistic))])
        drawn = accuracy_over_rounds(study, rule, "live") or accuracy_over_rounds(study, "head", "live")
        return "" if drawn is None else drawn.svg + html.element("figcaption", escape(drawn.caption))


def _completed(rounds: Rounds) -> int:
    return sum(not record["closing"] for record in rounds.values())


def _is_over(rounds: Rounds) -> bool:
    return any(record["closing"] for record in rounds.values())


def _sent(rounds: Rounds, kind: str) -> int:
    training = [record["traffic"].get("training", {}) for record in rounds.values()]
    return sum(traffic[way][kind] for traffic in training for way in WAYS if way in traffic)


def _last(rounds: Rounds, rule: str) -> float | None:
    """Return the accuracy of the last evaluation."""
    known = (rounds[number]["accuracy"][rule] for number in sorted(rounds, reverse=True))
    return next((accuracy for accuracy in known if accuracy is not None), None)


def _mean(found: Sequence[float | None]) -> str:
    """Return the mean over the seeds that have an accuracy; they may be in different rounds, so there is no ±."""
    known = [accuracy for accuracy in found if accuracy is not None]
    return f"{100 * statistics.fmean(known):.1f}" if known else "–"
