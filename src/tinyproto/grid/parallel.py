"""The cells of one run, several at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinyproto.errors import WorkerError
from tinyproto.experiment import Cell, Experiment
from tinyproto.grid.crew import Job, play_jobs
from tinyproto.grid.ledger import Ledger
from tinyproto.grid.observer import Observer
from tinyproto.workers.handover import Handover


def play_at_once(experiment: Experiment, ledger: Ledger, cells: Sequence[Cell], observer: Observer) -> None:
    """The cells in their order, as many at once as there is room for.

    Raises KeyboardInterrupt where the observer wanted a stop, WorkerError where a cell failed; either way every cell
    under way has left a checkpoint, and those that are done are in the run's files.
    """
    dataset, config = Handover(experiment.images), experiment.config.resolved()
    jobs = [Job(cell, config, cell.index, ledger.folder_of(cell), lambda: dataset) for cell in cells]
    foreman = _AddsToTheRun(ledger)
    played = play_jobs(jobs, experiment.cells_at_once, experiment.device, foreman, observer)
    if foreman.failure is not None:
        raise foreman.failure
    if not played:
        raise KeyboardInterrupt


class _AddsToTheRun:
    """What is done goes into the run's files; the first failure ends the run."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.failure: WorkerError | None = None

    def done(self, _job: Job, _result: dict[str, Any]) -> None:
        """Add it, in the order of the grid."""
        self.ledger.add_finished()

    def failed(self, job: Job, reason: str) -> bool:
        """The others stop, once they have left their checkpoints."""
        if self.failure is None:
            kept = "the work of all cells is kept, and the run can be resumed"
            self.failure = WorkerError(f"{job.cell.title}: {reason}; {kept}")
        return True
