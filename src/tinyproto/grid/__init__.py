"""The main job without a terminal: an experiment's grid of algorithms × seeds into a run folder, resumable.

Every cell is played into a folder of its own inside the run folder, one after another in this process or several at
once in processes of their own, and added to the run's files in cell order: either way leaves the same run folder.
Whoever wants to show progress passes an observer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tinyproto.config.load import completed
from tinyproto.errors import CheckpointError
from tinyproto.experiment import Cell, Experiment
from tinyproto.grid.cell import Failures, Host, Observer, Silent, cells_failed, describe, play_cell
from tinyproto.grid.ledger import Ledger
from tinyproto.grid.parallel import play_at_once
from tinyproto.storage.checkpoint import Checkpoint, Position, load_newest, set_aside
from tinyproto.tracking.checkpoints import check_same_config
from tinyproto.tracking.lock import alone_in
from tinyproto.tracking.run_folder import RunFolder, how_to_go_on
from tinyproto.workers.child import failure
from tinyproto.workers.pool import WorkerPool

__all__ = ["Observer", "Silent", "resume", "run"]


def run(experiment: Experiment, runs: Path, *, overwrite: bool = False, observer: Observer | None = None) -> Path:
    """Play every cell into `runs/<name>`; returns the run folder.

    A cell that fails does not keep the others from their end; CellsFailed is raised after the last, and a resume tries
    those that failed again.
    """
    config = experiment.config
    path = runs / config.model.name
    with alone_in(path):
        folder = RunFolder.create(path, overwrite=overwrite)
        folder.write_config(config.resolved())
        return _play(experiment, folder, Position.beginning(config.resolved()), observer or Silent())


def resume(experiment: Experiment, path: Path, *, observer: Observer | None = None) -> Path:
    """Go on with a run from where its cells stand, to the end it would have had undisturbed."""
    folder = RunFolder.open(path)
    with alone_in(path):
        return _resume(experiment, folder, observer or Silent())


def _resume(experiment: Experiment, folder: RunFolder, observer: Observer) -> Path:
    """With the folder to itself."""
    now = experiment.config.resolved()
    results = folder.read_results()
    is_finished = len(results) == len(experiment.cells)
    try:
        checkpoint = _newest(folder, has_results=bool(results))
    except CheckpointError:
        if is_finished:
            return folder.path
        raise
    if is_finished and checkpoint is not None and checkpoint.passed_over:
        return folder.path
    position = Position.beginning(now) if checkpoint is None else checkpoint.position
    check_same_config(completed(position.config), completed(now))
    with folder.writing("checkpoint"):
        for words in [] if checkpoint is None else set_aside(checkpoint):
            observer.told(words)
    if position.next_round > 1:
        raise CheckpointError(
            f"{folder.path} was begun by a tinyproto that kept no cells/ folder; finish it with that one"
        )
    return _play(experiment, folder, position, observer)


def _newest(folder: RunFolder, *, has_results: bool) -> Checkpoint | None:
    """Load the run's newest intact checkpoint; without one, only a run with no finished cell can begin again."""
    if not has_results:
        return load_newest(folder.checkpoints, folder.clients)
    checkpoint = load_newest(folder.checkpoints, folder.clients, remedy="start another run")
    if checkpoint is None:
        raise CheckpointError(f"{folder.path} holds results but no checkpoint to go on from; start another run")
    return checkpoint


def _play(experiment: Experiment, folder: RunFolder, start: Position, observer: Observer) -> Path:
    """All cells that are not done yet."""
    _describe(experiment, folder)
    ledger = Ledger(experiment, folder, start)
    ledger.add_finished()
    cells = ledger.unfinished()
    observer.opens(len(cells))
    if cells and experiment.config.model.train.trainer == "auto" and experiment.device != "cpu":
        observer.told(f"trainer: {experiment.choice.trainer}, since {experiment.choice.reason}")
    failures = Failures(observer)
    if cells:
        play = play_at_once if experiment.cells_at_once > 1 else _play_in_turn
        play(experiment, ledger, cells, failures, observer)
    if failures.cells:
        ledger.show_the_rest()
        raise cells_failed(failures, f"`{how_to_go_on(folder.path)}`")
    return folder.path


def _describe(experiment: Experiment, folder: RunFolder) -> None:
    """What it runs on and who holds what, where a run killed at its start has not said so yet."""
    describe(experiment, folder, experiment.cells_at_once)
    if not folder.size("federation.json"):
        folder.write_json("federation.json", experiment.holdings())


def _play_in_turn(
    experiment: Experiment, ledger: Ledger, cells: Sequence[Cell], failures: Failures, observer: Observer
) -> None:
    """One cell after another in this process."""
    waiting = deque(cells)
    while waiting:
        with _hosts(experiment) as host:  # anew after a failure, of which workers may have more to say
            while waiting and _is_played(experiment, ledger, waiting.popleft(), host, failures, observer):
                pass


def _is_played(
    experiment: Experiment, ledger: Ledger, cell: Cell, host: Host, failures: Failures, observer: Observer
) -> bool:
    """Play one to its end; whether it came there. What is a fault of ours or of a network's code is let through."""
    try:
        result = play_cell(experiment, cell, ledger.folder_of(cell), observer, host)
    except Exception as error:
        found = failure(error)
        if found["kind"] == "fault":
            error.add_note(f"in the cell {cell.title}")
            raise
        reason = f"out of memory ({found['error']})" if found["kind"] == "memory" else found["error"]
        failures.add(cell, reason, again=found["kind"] != "diverged")
        return False
    ledger.add_finished()
    observer.finished(cell, result)
    return True


@contextmanager
def _hosts(experiment: Experiment) -> Iterator[Host]:
    """Where a cell's clients live: in this process, or in as many workers as the config asks for."""
    if experiment.workers == 1:
        yield experiment.host
        return
    samples = experiment.data.train_counts.sum(1).tolist()
    with WorkerPool(experiment.config.resolved(), experiment.images, experiment.workers) as pool:
        yield lambda cell, clients: pool.begin(cell.index, samples, clients, experiment.client_memory)
