"""Progress while a run goes: bars in a terminal, a line per finished cell elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich import progress as bars
from rich.text import Text

from tinyproto.cli.interrupt import StopOnInterrupt
from tinyproto.cli.terminal import Output
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

    def __init__(self, output: Output, cells: int, rounds: int, rule: str, stop: StopOnInterrupt) -> None:
        self.output = output
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
            console=output.console,
            disable=not output.has_bars,
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
        for note in played.notes:
            self.output.say(f"{self.title}: {note}")
        if self.output.verbose:
            self.output.say(self._line(played))

    def _line(self, played: PlayedRound) -> str:
        """One round in words."""
        record = played.record
        what = "closing" if record.closing else f"round {record.round}"
        known = {rule: value for rule, value in record.accuracy.items() if value is not None}
        accuracy = ", ".join(f"{rule} {percent(value)}" for rule, value in known.items())
        losses = ", ".join(f"{name} {value:.4g}" for name, value in record.loss.items())
        seconds = ", ".join(f"{phase} {value:.3f} s" for phase, value in played.seconds.items())
        refused = ", ".join(f"client {client} refused: {reason}" for client, reason in record.refused.items())
        return f"{self.title}: {what}: " + "; ".join(part for part in (accuracy, losses, seconds, refused) if part)

    def stop_wanted(self) -> bool:
        """After a first Ctrl-C."""
        return self.stop.wanted

    def finished(self, result: dict[str, Any]) -> None:
        """The bar stays; without a terminal one line takes its place."""
        self.done += 1
        if self.output.has_bars:
            return
        last = result["accuracy"]["last"].items()
        payload = result["payload_bytes_per_round"]
        facts = (
            counted(result["rounds"], "round"),
            *(f"{rule} {percent(value)}" for rule, value in last if value is not None),
            f"{size(payload['up'] + payload['down'])}/round",
            f"{result['seconds_per_round']['total']:.2f} s/round",
        )
        self.output.say(f"[{self.done}/{self.cells}] {self.title}: {', '.join(facts)}")
