"""Cells that cannot be finished: the others are played all the same, and these are named at the end."""

from __future__ import annotations

from collections.abc import Sequence

from tinyproto.errors import CellsFailed
from tinyproto.experiment import Cell
from tinyproto.grid.observer import Observer
from tinyproto.report.words import counted

NAMED = 4
"""So many failed cells are named with their reason; of more, their number."""


class Failures:
    """The failed cells of a run, each with the reason."""

    def __init__(self, observer: Observer) -> None:
        self.cells: list[tuple[Cell, str]] = []
        self.for_good = 0  # so many of them would fail again
        self._observer = observer

    def add(self, cell: Cell, reason: str, *, again: bool = True) -> None:
        """One more; the others go on. `again`: running it again may help."""
        self.cells.append((cell, reason))
        self.for_good += not again
        self._observer.failed(cell, reason)


def cells_failed(failures: Failures, command: str) -> CellsFailed:
    """Return the error that a run with failed cells ends with; the command runs them again."""
    plain = [{"label": cell.entry.label, "seed": cell.seed, "reason": reason} for cell, reason in failures.cells]
    named = [(cell.title, reason) for cell, reason in failures.cells]
    return CellsFailed(failed_words(named, command, failures.for_good), plain)


def failed_words(failed: Sequence[tuple[str, str]], command: str, for_good: int = 0) -> str:
    """Say titles and reasons in one sentence, by reason, and what runs again those that did not fail for good."""
    told = []
    for reason in dict.fromkeys(reason for _, reason in failed):
        titles = [title for title, why in failed if why == reason]
        told.append(f"{', '.join(titles) if len(titles) <= NAMED else counted(len(titles), 'cell')}: {reason}")
    again = "" if for_good == len(failed) else f"; {command} tries again"
    if again and for_good:
        again += ", which helps only cells that did not diverge"
    return f"{counted(len(failed), 'cell')} failed ({'; '.join(told)}){again}"
