"""Progress while a run goes: bars in a terminal; elsewhere a line per finished cell, and one on the whole at times."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from rich import progress as bars
from rich.console import Console
from rich.text import Text

from tinyproto.algorithms.base import Derived
from tinyproto.builder import Cell
from tinyproto.cli.terminal import Output
from tinyproto.grid import Observer
from tinyproto.report.words import counted, derived_words, percent, size
from tinyproto.tracking.summary import RoundResult

LINE_SECONDS = 60.0
"""Without bars, so often a line says how the whole run stands."""

REMEMBERED_SECONDS = 900.0
"""How far back a bar looks to tell its time left; a round may take minutes."""


class TimeLeft(bars.ProgressColumn):
    """The seconds still to go, or those it took; a bar may bring its own estimate as the field `left`."""

    def render(self, task: bars.Task) -> Text:
        """For one bar."""
        if task.finished:
            return Text(f"took {clock_words(task.finished_time)}", style="progress.remaining")
        seconds = task.fields.get("left", task.time_remaining)
        return Text(f"left {clock_words(seconds)}", style="progress.remaining")


class Expected(NamedTuple):
    """What is known of a cell beforehand: its rounds, and the rule that its accuracy is shown by."""

    rounds: int
    rule: str


class Stop(Protocol):
    """Says whether to stop after the rounds under way."""

    @property
    def wanted(self) -> bool:
        """By Ctrl-C, or because time is up."""
        ...


class Bars:
    """Bars in a terminal while open, each with a column for each of some fields; nothing elsewhere."""

    def __init__(self, output: Output, *fields: str) -> None:
        self.output = output
        self.bars = bars.Progress(
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(bar_width=16),
            bars.TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            *(bars.TextColumn(f"{{task.fields[{field}]}}") for field in fields),
            TimeLeft(),
            console=output.console,
            disable=not output.has_bars,
            speed_estimate_period=REMEMBERED_SECONDS,
        )

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.bars.disable:  # older releases of rich end bars that were never shown with an empty line
            self.bars.stop()


class Progress(Bars, Observer):
    """An observer that shows algorithm, round, accuracy, bytes and time left, of every cell under way."""

    def __init__(
        self, output: Output, cells: Sequence[Expected], stop: Stop, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(output, "accuracy", "traffic")
        self.stop = stop
        self.expected = cells  # by the cells' index
        self.cells = len(cells)
        self.total = sum(cell.rounds for cell in cells)
        self.earlier = 0
        self.done: dict[int, int] = {}
        self.pace = Pace(clock)
        self._clock = clock
        self._last_line = clock()
        self.whole = self.bars.add_task(
            "all", total=self.total, accuracy="", traffic="", left=None, visible=self.cells > 1
        )
        self.under_way: dict[int, bars.TaskID] = {}
        self.left_out: dict[int, set[int]] = {}  # clients of which that was said, by the cell's index

    def opens(self, left: int) -> None:
        """What an earlier run has done counts as done."""
        self.earlier = sum(cell.rounds for cell in self.expected[: self.cells - left])

    def told(self, words: str) -> None:
        """A line."""
        self.output.say(words)

    def started(self, cell: Cell, done: int) -> None:
        """A bar for the cell; one that has to go back goes back in the bar it had."""
        if cell.index in self.under_way:
            self.bars.update(self.under_way[cell.index], completed=done)
        else:
            self.under_way[cell.index] = self.bars.add_task(
                f"{self._number(cell)} {cell.title}", total=self.expected[cell.index].rounds, completed=done,
                accuracy="", traffic="",
            )  # fmt: skip
        self.done[cell.index] = done
        self._show_whole()

    def _number(self, cell: Cell) -> str:
        return f"[{cell.index + 1}/{self.cells}]"

    def played(self, cell: Cell, played: RoundResult) -> None:
        """Move the bar; the closing exchange brings the last accuracy, not another round."""
        bar = self.under_way[cell.index]
        record = played.record
        wanted = self.expected[cell.index].rule
        rule = wanted if record.accuracy[wanted] is not None else "head"
        accuracy = record.accuracy[rule]
        if accuracy is not None:
            self.bars.update(bar, accuracy=f"{rule} {percent(accuracy)}")
        if not record.closing:
            costs = record.traffic["training"].values()
            payload = size(sum(cost.payload for cost in costs))
            self.bars.update(bar, advance=1, traffic=f"{payload}/round")
            self.done[cell.index] += 1
            self.pace.tick()
            self._show_whole()
        for note in played.notes:
            self.output.say(f"{cell.title}: {note}")
        for client, reason in record.refused.items():
            if client not in self.left_out.setdefault(cell.index, set()):
                self.left_out[cell.index].add(client)
                self.output.say(f"{cell.title}: client {client} left out: {reason}")
        if self.output.verbose:
            self.output.say(f"{cell.title}: {_line(played)}")
        elif not self.output.has_bars and self._clock() - self._last_line >= LINE_SECONDS:
            self.output.say(self._whole_in_words())

    def derived(self, cell: Cell, values: Derived, round_number: int) -> None:
        """A line."""
        self.output.say(f"{cell.title}: derived {derived_words(values)} (round {round_number})")

    @property
    def rounds_left(self) -> int:
        """Over all cells."""
        return self.total - self.earlier - sum(self.done.values())

    def _left(self) -> float | None:
        return self.pace.seconds_for(self.rounds_left)

    def _show_whole(self) -> None:
        self.bars.update(self.whole, completed=self.total - self.rounds_left, left=self._left())

    def _whole_in_words(self) -> str:
        self._last_line = self._clock()
        rounds = f"{self.total - self.rounds_left} of {self.total} rounds"
        return f"{rounds}, {counted(len(self.under_way), 'cell')} at once, left {clock_words(self._left())}"

    def stop_wanted(self) -> bool:
        """After a first Ctrl-C."""
        return self.stop.wanted

    def failed(self, cell: Cell, reason: str) -> None:
        """A line; what it had left to play is no longer counted."""
        self._drop(cell, f"failed: {reason}")

    def skipped(self, cell: Cell, reason: str) -> None:
        """The same, but nothing went wrong."""
        self._drop(cell, reason)

    def _drop(self, cell: Cell, words: str) -> None:
        bar = self.under_way.pop(cell.index, None)
        if bar is not None:
            self.bars.update(bar, visible=False)
        self.done[cell.index] = self.expected[cell.index].rounds
        self._show_whole()
        self.output.say(f"{self._number(cell)} {cell.title}: {words}")

    def finished(self, cell: Cell, result: dict[str, Any]) -> None:
        """The bar stays where there is space for all; without a terminal one line takes its place."""
        bar = self.under_way.pop(cell.index)
        if count := result.get("left_out"):
            self.output.say(f"{cell.title}: {counted(count, 'client-round')} left out")
        if self.output.has_bars:
            if self.cells + 2 > self.output.console.height:
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
        left = f" (left {clock_words(self._left())})" if self.rounds_left else ""
        self.output.say(f"{self._number(cell)} {cell.title}: {', '.join(facts)}{left}")


def _line(played: RoundResult) -> str:
    """One round in words."""
    record = played.record
    what = "closing" if record.closing else f"round {record.round}"
    known = {rule: value for rule, value in record.accuracy.items() if value is not None}
    accuracy = ", ".join(f"{rule} {percent(value)}" for rule, value in known.items())
    losses = ", ".join(f"{name} {value:.4g}" for name, value in record.loss.items())
    seconds = ", ".join(f"{phase} {value:.3f} s" for phase, value in played.seconds.items())
    refused = ", ".join(f"client {client} refused: {reason}" for client, reason in record.refused.items())
    dropped = f"dropped out: {', '.join(map(str, record.dropped))}" if record.dropped else ""
    late = f"late: {', '.join(map(str, record.late))}" if record.late else ""
    return f"{what}: " + "; ".join(part for part in (accuracy, losses, seconds, refused, dropped, late) if part)


RECENT = 64
"""Rounds, over all cells, whose pace counts: algorithms differ, so what was long ago says little."""


class Pace:
    """The time that rounds will take, by the pace of the latest."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times = deque([clock()], maxlen=RECENT + 1)

    def tick(self) -> None:
        """A round was played."""
        self._times.append(self._clock())

    def seconds_for(self, rounds: int) -> float | None:
        """Seconds; None before anything was played."""
        played = len(self._times) - 1
        return None if not played else rounds * (self._clock() - self._times[0]) / played


def clock_words(seconds: float | None) -> str:
    """Minutes and seconds, with hours where there are any."""
    if seconds is None:
        return "–:––"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


class LoadingBar:
    """Called with what is being done, how much of it is done and how much there is; shows nothing until then."""

    def __init__(self, console: Console, *, in_bytes: bool = False) -> None:
        self.console = console
        amount = bars.DownloadColumn() if in_bytes else bars.MofNCompleteColumn()
        speed = (bars.TransferSpeedColumn(),) if in_bytes else ()
        self.bars = bars.Progress(
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(bar_width=24),
            amount,
            *speed,
            TimeLeft(),
            console=console,
            disable=not console.is_terminal,
        )
        self.tasks: dict[str, bars.TaskID] = {}

    def __enter__(self) -> LoadingBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.tasks and not self.bars.disable:
            self.bars.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Move the bar of `what`; a total of 0 is one that nobody knows."""
        if not self.tasks:
            self.bars.start()
        if what not in self.tasks:
            self.tasks[what] = self.bars.add_task(what, total=total or None)
            if not self.console.is_terminal:
                self.console.print(what, markup=False, soft_wrap=True)
        self.bars.update(self.tasks[what], completed=done, total=total or None)
