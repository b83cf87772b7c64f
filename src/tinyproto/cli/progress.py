"""Progress of a run: bars in a terminal; elsewhere a line per completed cell and a line on the whole run at times."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Self

from rich import progress as bars
from rich.console import Console

from tinyproto.algorithms.base import Derived
from tinyproto.builder import Cell
from tinyproto.cli.terminal import Output
from tinyproto.grid import Observer
from tinyproto.report.words import counted, derived_words, percent, size
from tinyproto.tracking.summary import RoundResult

LINE_SECONDS = 60.0
"""Seconds between lines on the whole run, where there are no bars."""

REMEMBERED_SECONDS = 900.0
"""Seconds that a bar looks back to estimate the time left; a round may take minutes."""


def _progress(
    console: Console, *columns: bars.ProgressColumn, clock: Callable[[], float] = time.monotonic
) -> bars.Progress:
    """Return bars with a name, these columns and the time left; disabled where nobody sees them move."""
    return bars.Progress(
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(bar_width=16),
        *columns,
        bars.TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        console=console,
        disable=not console.is_terminal or console.quiet,
        get_time=clock,
        speed_estimate_period=REMEMBERED_SECONDS,
    )


class Bars:
    """Bars in a terminal while open, with a column for each of `fields`; nothing elsewhere."""

    def __init__(self, output: Output, *fields: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.output = output
        columns = (bars.TextColumn(f"{{task.fields[{field}]}}") for field in fields)
        self.bars = _progress(output.console, bars.MofNCompleteColumn(), *columns, clock=clock)

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.bars.disable:  # older releases of rich print an empty line for bars that were never shown
            self.bars.stop()


class Expected(NamedTuple):
    """The rounds of a cell, and the rule that its accuracy is shown by."""

    rounds: int
    rule: str


class Progress(Bars, Observer):
    """An observer of a run that shows algorithm, round, accuracy, bytes and time left of every running cell."""

    def __init__(
        self, output: Output, cells: Sequence[Expected], stop_wanted: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        super().__init__(output, "accuracy", "traffic", clock=clock)
        self._stop_wanted = stop_wanted
        self.expected = cells  # by index of the cell
        self._clock = clock
        self._last_line = clock()
        total = sum(cell.rounds for cell in cells)
        bar = self.bars.add_task("all", total=total, accuracy="", traffic="", visible=len(cells) > 1)
        self.overall = self.bars.tasks[bar]  # the rounds that this command has to run
        self.running: dict[int, bars.TaskID] = {}
        self.left_out: dict[int, set[int]] = {}  # clients already named, by index of the cell

    def opens(self, left: int) -> None:
        """Leave out the cells that an earlier run completed."""
        self._expect_less(sum(cell.rounds for cell in self.expected[: len(self.expected) - left]))

    def told(self, words: str) -> None:
        """Print a line about the run."""
        self.output.say(words)

    def started(self, cell: Cell, done: int) -> None:
        """Show a bar for the cell, or move the bar it has back to `done` rounds."""
        if cell.index in self.running:
            bar = self.running[cell.index]
            self.bars.update(self.overall.id, advance=done - self.bars.tasks[bar].completed)
            self.bars.update(bar, completed=done)
        else:
            self.running[cell.index] = self.bars.add_task(
                self._numbered(cell), total=self.expected[cell.index].rounds, completed=done, accuracy="", traffic=""
            )
            self._expect_less(done)

    def played(self, cell: Cell, played: RoundResult) -> None:
        """Move the bar; the closing exchange brings the last accuracy but is not a round."""
        bar, record = self.running[cell.index], played.record
        wanted = self.expected[cell.index].rule
        rule = wanted if record.accuracy[wanted] is not None else "head"
        accuracy = record.accuracy[rule]
        if accuracy is not None:
            self.bars.update(bar, accuracy=f"{rule} {percent(accuracy)}")
        if not record.closing:
            payload = size(sum(cost.payload for cost in record.traffic["training"].values()))
            self.bars.update(bar, advance=1, traffic=f"{payload}/round")
            self.bars.advance(self.overall.id)
        for note in played.notes:
            self.output.say(f"{cell.title}: {note}")
        named = self.left_out.setdefault(cell.index, set())
        for client, reason in record.refused.items():
            if client not in named:
                named.add(client)
                self.output.say(f"{cell.title}: client {client} left out: {reason}")
        if self.output.verbose:
            self.output.say(f"{cell.title}: {_line(played)}")
        elif not self.output.has_bars and self._clock() - self._last_line >= LINE_SECONDS:
            self._last_line = self._clock()
            rounds = f"{self.overall.completed:.0f} of {self.overall.total:.0f} rounds"
            self.output.say(f"{rounds}, {counted(len(self.running), 'cell')} running{self._time_left()}")

    def derived(self, cell: Cell, values: Derived, round_number: int) -> None:
        """Print the hyper-parameters that the algorithm chose."""
        self.output.say(f"{cell.title}: derived {derived_words(values)} (round {round_number})")

    def stop_wanted(self) -> bool:
        """Return True after a first Ctrl-C."""
        return self._stop_wanted()

    def failed(self, cell: Cell, reason: str) -> None:
        """Print the reason and stop counting the cell's remaining rounds."""
        self.skipped(cell, f"failed: {reason}")

    def skipped(self, cell: Cell, reason: str) -> None:
        """Do the same for a cell that was left to another process."""
        bar, rounds = self.running.pop(cell.index, None), float(self.expected[cell.index].rounds)
        if bar is not None:
            self.bars.update(bar, visible=False)
            rounds = self.bars.tasks[bar].remaining or 0.0
        self._expect_less(rounds)
        self.output.say(f"{self._numbered(cell)}: {reason}")

    def finished(self, cell: Cell, result: dict[str, Any]) -> None:
        """Keep the bar if the terminal is high enough for all; without a terminal print a line instead."""
        bar = self.running.pop(cell.index)
        if count := result.get("left_out"):
            self.output.say(f"{cell.title}: {counted(count, 'client-round')} left out")
        if self.output.has_bars:
            if len(self.expected) + 2 > self.output.console.height:
                self.bars.update(bar, visible=False)
            return
        last = result["accuracy"]["last"].items()
        payload = result["payload_bytes_per_round"]
        facts = (
            counted(result["rounds"], "round"),
            *(f"{rule} {percent(value)}" for rule, value in last if value is not None),
            f"{size(payload['up'] + payload['down'])}/round",
            f"{result['seconds_per_round']['total']:.2f} s/round",
        )
        self.output.say(f"{self._numbered(cell)}: {', '.join(facts)}{self._time_left()}")

    def _expect_less(self, rounds: float) -> None:
        """Take rounds that are not run here from the total."""
        self.bars.update(self.overall.id, total=(self.overall.total or 0.0) - rounds)

    def _time_left(self) -> str:
        """Return the estimated time for the remaining rounds; empty if there are none or nothing is known yet."""
        seconds = self.overall.time_remaining
        return f", {timedelta(seconds=int(seconds))} left" if seconds else ""

    def _numbered(self, cell: Cell) -> str:
        return f"[{cell.index + 1}/{len(self.expected)}] {cell.title}"


def _line(played: RoundResult) -> str:
    """Describe one round in words."""
    record = played.record
    name = "closing" if record.closing else f"round {record.round}"
    accuracy = ", ".join(f"{rule} {percent(value)}" for rule, value in record.accuracy.items() if value is not None)
    losses = ", ".join(f"{name} {value:.4g}" for name, value in record.loss.items())
    seconds = ", ".join(f"{phase} {value:.3f} s" for phase, value in played.seconds.items())
    refused = ", ".join(f"client {client} left out: {reason}" for client, reason in record.refused.items())
    dropped = f"dropped out: {', '.join(map(str, record.dropped))}" if record.dropped else ""
    late = f"late: {', '.join(map(str, record.late))}" if record.late else ""
    return f"{name}: " + "; ".join(part for part in (accuracy, losses, seconds, refused, dropped, late) if part)


class LoadingBar:
    """A callback that shows the progress of one long step after another; it shows nothing before the first call."""

    def __init__(self, console: Console, *, in_bytes: bool = False) -> None:
        self.console = console
        amount = (bars.DownloadColumn(), bars.TransferSpeedColumn()) if in_bytes else (bars.MofNCompleteColumn(),)
        self.bars = _progress(console, *amount)
        self.tasks: dict[str, bars.TaskID] = {}

    def __enter__(self) -> LoadingBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self.tasks and not self.bars.disable:
            self.bars.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Move the bar of the step `what`; a total of 0 means that it is unknown."""
        if not self.tasks:
            self.bars.start()
        if what not in self.tasks:
            self.tasks[what] = self.bars.add_task(what, total=total or None)
            if not self.console.is_terminal:
                self.console.print(what, markup=False, soft_wrap=True)
        self.bars.update(self.tasks[what], completed=done, total=total or None)
