"""Progress while a run goes: bars in a terminal, a line per finished cell elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich import progress as bars
from rich.console import Console
from rich.text import Text

from tinyproto.cli.interrupt import StopOnInterrupt
from tinyproto.config.algorithms import AlgorithmEntry
from tinyproto.report.words import counted, percent, size
from tinyproto.simulation.loop import PlayedRound


class TimeLeft(bars.ProgressColumn):
    """The seconds still to go, or those it took."""

    def render(self, task: bars.Task) -> Text:
        """For one bar."""
        seconds = task.finished_time if task.finished else task.time_remaining
        shown = "–:––" if seconds is None else f"{int(seconds) // 60}:{int(seconds) % 60:02}"
        return Text(f"took {shown}" if task.finished else f"left {shown}", style="progress.remaining")


class Progress:
    """An observer that shows algorithm, round, accuracy, bytes and time left."""

    def __init__(self, console: Console, cells: int, rounds: int, rule: str, stop: StopOnInterrupt) -> None:
        self.console = console
        self.stop = stop
        self.rule = rule
        self.cells = cells
        self.done = 0
        self.bars = bars.Progress(
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(bar_width=16),
            bars.TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            bars.TextColumn("{task.fields[accuracy]}"),
            bars.TextColumn("{task.fields[traffic]}"),
            TimeLeft(),
            console=console,
            disable=not console.is_terminal,
        )
        self.whole = self.bars.add_task("all", total=cells * rounds, accuracy="", traffic="", visible=cells > 1)
        self.cell: bars.TaskID | None = None
        self.title = ""

    def __enter__(self) -> Progress:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def started(self, entry: AlgorithmEntry, seed: int, rounds: int) -> None:
        """A bar for the cell."""
        self.title = f"{entry.title}, seed {seed}"
        description = f"[{self.done + 1}/{self.cells}] {self.title}"
        self.cell = self.bars.add_task(description, total=rounds, accuracy="", traffic="")

    def played(self, played: PlayedRound) -> None:
        """Move the bar; the closing exchange brings the last accuracy, not another round."""
        assert self.cell is not None
        record = played.record
        rule = self.rule if record.accuracy[self.rule] is not None else "head"
        accuracy = record.accuracy[rule]
        if accuracy is not None:
            self.bars.update(self.cell, accuracy=f"{rule} {percent(accuracy)}")
        if not record.closing:
            costs = record.traffic["training"].values()
            payload = size(sum(cost.payload for cost in costs))
            self.bars.update(self.cell, advance=1, traffic=f"{payload}/round")
            self.bars.update(self.whole, advance=1)

    def stop_wanted(self) -> bool:
        """After a first Ctrl-C."""
        return self.stop.wanted

    def finished(self, result: dict[str, Any]) -> None:
        """The bar stays; without a terminal one line takes its place."""
        self.done += 1
        if self.console.is_terminal:
            return
        last = {rule: value for rule, value in result["accuracy"]["last"].items() if value is not None}
        payload = result["payload_bytes_per_round"]
        self.console.print(
            f"[{self.done}/{self.cells}] {self.title}: {counted(result['rounds'], 'round')}, "
            f"{', '.join(f'{rule} {percent(value)}' for rule, value in last.items())}, "
            f"{size(payload['up'] + payload['down'])}/round, {result['seconds_per_round']['total']:.2f} s/round",
            markup=False,
            soft_wrap=True,
        )
