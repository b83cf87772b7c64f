"""Who is told how a run goes on."""

from __future__ import annotations

from typing import Any, Protocol

from tinyproto.algorithms.base import Derived
from tinyproto.experiment import Cell
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
