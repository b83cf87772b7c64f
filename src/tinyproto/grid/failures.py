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
        self._observer = observer

    def add(self, cell: Cell, reason: str) -> None:
        """One more; the others go on."""
        self.cells.append((cell, reason))
        self._observer.failed(cell, reason)


def cells_failed(failed: Sequence[tuple[Cell, str]], again: str) -> CellsFailed:
    """The error that a run with failed cells ends with; `again` says what tries them again."""
    plain = [{"label": cell.entry.label, "seed": cell.seed, "reason": reason} for cell, reason in failed]
    return CellsFailed(failed_words([(cell.title, reason) for cell, reason in failed], again), plain)


def failed_words(failed: Sequence[tuple[str, str]], again: str) -> str:
    """One sentence on titles and reasons, by reason."""
    told = []
    for reason in dict.fromkeys(reason for _, reason in failed):
        titles = [title for title, why in failed if why == reason]
        told.append(f"{', '.join(titles) if len(titles) <= NAMED else counted(len(titles), 'cell')}: {reason}")
    return f"{counted(len(failed), 'cell')} failed ({'; '.join(told)}); {again}"
