"""The cells of one run, several at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinyproto.experiment import Cell, Experiment
from tinyproto.grid.crew import Job, play_jobs
from tinyproto.grid.failures import Failures
from tinyproto.grid.ledger import Ledger
from tinyproto.grid.observer import Observer
from tinyproto.workers.handover import Handover


def play_at_once(
    experiment: Experiment, ledger: Ledger, cells: Sequence[Cell], failures: Failures, observer: Observer
) -> None:
    """The cells in their order, as many at once as there is room for.

    Raises KeyboardInterrupt where the observer wanted a stop; then every cell under way has left a checkpoint, and
    those that are done are in the run's files.
    """
    dataset, config = Handover(experiment.images), experiment.config.resolved()
    jobs = [Job(cell, config, cell.index, ledger.folder_of(cell), lambda: dataset) for cell in cells]
    foreman = _AddsToTheRun(ledger, failures)
    if not play_jobs(jobs, experiment.cells_at_once, experiment.device, foreman, observer):
        raise KeyboardInterrupt


class _AddsToTheRun:
    """What is done goes into the run's files."""

    def __init__(self, ledger: Ledger, failures: Failures) -> None:
        self.ledger = ledger
        self.failures = failures

    def done(self, _job: Job, _result: dict[str, Any]) -> None:
        """Add it, in the order of the grid."""
        self.ledger.add_finished()

    def failed(self, job: Job, reason: str, *, again: bool = True) -> None:
        """Remember it."""
        self.failures.add(job.cell, reason, again=again)
