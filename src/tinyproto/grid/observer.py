"""Who is told how a run goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tinyproto.algorithms.base import Derived
from tinyproto.errors import CellsFailed
from tinyproto.experiment import Cell
from tinyproto.report.words import counted
from tinyproto.simulation.loop import PlayedRound


class Observer(Protocol):
    """Is told how a run goes on, and may ask it to stop; cells may be under way at once."""

    def opens(self, left: int) -> None:
        """The run begins, or goes on, with so many cells left to play."""
        ...

    def told(self, words: str) -> None:
        """A sentence about the run as a whole."""
        ...

    def started(self, cell: Cell, done: int) -> None:
        """A cell of the grid begins, or goes on after so many rounds."""
        ...

    def played(self, cell: Cell, played: PlayedRound) -> None:
        """A round of it is done."""
        ...

    def derived(self, cell: Cell, values: Derived, round_number: int) -> None:
        """What its algorithm chose by itself, in the first round that is played now; later ones may choose anew."""
        ...

    def finished(self, cell: Cell, result: dict[str, Any]) -> None:
        """The cell is done."""
        ...

    def failed(self, cell: Cell, reason: str) -> None:
        """The cell cannot be finished, and the others go on."""
        ...

    def skipped(self, cell: Cell, reason: str) -> None:
        """The cell is not played here, since another process plays it or has played it."""
        ...

    def stop_wanted(self) -> bool:
        """Whether to stop after the rounds under way."""
        ...


class Silent:
    """The observer that says nothing and never stops a run."""

    def opens(self, left: int) -> None:
        """Nothing."""

    def told(self, words: str) -> None:
        """Nothing."""

    def started(self, cell: Cell, done: int) -> None:
        """Nothing."""

    def played(self, cell: Cell, played: PlayedRound) -> None:
        """Nothing."""

    def derived(self, cell: Cell, values: Derived, round_number: int) -> None:
        """Nothing."""

    def finished(self, cell: Cell, result: dict[str, Any]) -> None:
        """Nothing."""

    def failed(self, cell: Cell, reason: str) -> None:
        """Nothing."""

    def skipped(self, cell: Cell, reason: str) -> None:
        """Nothing."""

    def stop_wanted(self) -> bool:
        """Never."""
        return False


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
