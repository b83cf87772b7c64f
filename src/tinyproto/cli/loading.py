"""A bar for one long step: decoding images, or downloading a file. Without a terminal, one line when it begins."""

from __future__ import annotations

from types import TracebackType

from rich import progress as bars
from rich.console import Console

from tinyproto.cli.progress import TimeLeft


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
