"""The main job without a terminal: an experiment's grid of algorithms × seeds into a run folder, resumable.

Every cell runs into a folder of its own inside the run folder, one after another in this process or several at once in
processes of their own. Completed cells are added to the run's files in the order of the grid, so either way leaves the
same run folder. To show progress, pass an observer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from tinyproto.builder import Cell
from tinyproto.errors import CellsFailed, CheckpointError, RunFolderError
from tinyproto.experiment import Experiment
from tinyproto.grid.cell import Host, Observer, describe, run_cell
from tinyproto.grid.parallel import Job, run_jobs
from tinyproto.report.words import counted
from tinyproto.storage.checkpoint import Position, load_newest
from tinyproto.tracking.kept_models import keep_with_run
from tinyproto.tracking.lock import alone_in
from tinyproto.tracking.recorder import accept_checkpoint, save_checkpoint
from tinyproto.tracking.run_folder import RunFolder, cell_name, how_to_resume
from tinyproto.workers.child import SharedDataset, failure
from tinyproto.workers.pool import WorkerPool

__all__ = ["Observer", "resume", "run"]

_ADVICE = "; a lower train.client_memory in the run's config.yaml trains fewer clients at once"

NAMED = 4
"""The most failed cells that an error names with their reason; of more, it says their number."""


def run(experiment: Experiment, runs: Path, *, overwrite: bool = False, observer: Observer | None = None) -> Path:
    """Run every cell into `runs/<name>`; return the run folder.

    A cell that fails does not stop the others. CellsFailed is raised after the last one, and a resume tries those that
    failed again.
    """
    config = experiment.config
    path = runs / config.model.name
    with alone_in(path):
        folder = RunFolder.create(path, overwrite=overwrite)
        folder.write_config(config.resolved())
        return _run(experiment, folder, Position.beginning(config.resolved()), observer or Observer())


def resume(experiment: Experiment, path: Path, *, observer: Observer | None = None) -> Path:
    """Resume a run from the checkpoints of its cells; the result is that of an uninterrupted run."""
    folder, observer, now = RunFolder.open(path), observer or Observer(), experiment.config.resolved()
    with alone_in(path):
        results = folder.read_results()
        is_finished = len(results) == len(experiment.cells)
        try:  # without an intact checkpoint, only a run with no completed cell can start again
            checkpoint = load_newest(folder.checkpoints, folder.clients, remedy="start another run" if results else "")
            if results and checkpoint is None:
                raise CheckpointError(f"{path} holds results but no checkpoint to resume from; start another run")
        except CheckpointError:
            if is_finished:
                return path
            raise
        if is_finished and checkpoint is not None and checkpoint.passed_over:
            return path
        accept_checkpoint(folder, checkpoint, now, observer.told)
        return _run(
            experiment, folder, Position.beginning(now) if checkpoint is None else checkpoint.position, observer
        )


def _run(experiment: Experiment, folder: RunFolder, start: Position, observer: Observer) -> Path:
    """Run all cells that are not completed yet."""
    describe(experiment, folder, experiment.cells_at_once)
    if not folder.size("federation.json"):
        folder.write_json("federation.json", experiment.holdings())
    writer = RunWriter(experiment, folder, start)
    writer.add_completed()
    cells = writer.incomplete()
    observer.opens(len(cells))
    if cells and experiment.device != "cpu":
        observer.told(f"trainer: {experiment.choice.trainer}, since {experiment.choice.reason}")
        if experiment.choice.trainer == "stacked":
            observer.told("the first round compiles kernels: up to two minutes on a new machine, then they are kept")
    failures = Failures(observer)
    if cells:
        run_cells = _run_at_once if experiment.cells_at_once > 1 else _run_in_turn
        run_cells(experiment, writer, cells, failures, observer)
    if failures.cells:
        writer.show_the_rest()
        raise failures.error(f"`{how_to_resume(folder.path)}`")
    return folder.path


def _run_in_turn(
    experiment: Experiment, writer: RunWriter, cells: Sequence[Cell], failures: Failures, observer: Observer
) -> None:
    """Run one cell after another in this process."""
    waiting = deque(cells)
    while waiting:
        with _hosts(experiment) as host:  # new ones after a failure, since workers may still send replies of that cell
            while waiting and _is_completed(experiment, writer, waiting.popleft(), host, failures, observer):
                pass


def _is_completed(
    experiment: Experiment, writer: RunWriter, cell: Cell, host: Host, failures: Failures, observer: Observer
) -> bool:
    """Run one cell; return True if it completed. Raise faults of this program or of a network's code."""
    try:
        result = run_cell(experiment, cell, writer.folder_of(cell), observer, host)
    except Exception as error:
        found = failure(error)
        if found["kind"] == "fault":
            error.add_note(f"in the cell {cell.title}")
            raise
        reason = f"out of memory ({found['error']}){_ADVICE}" if found["kind"] == "memory" else found["error"]
        failures.add(cell, reason, again=found["kind"] != "diverged")
        return False
    writer.add_completed()
    observer.finished(cell, result)
    return True


@contextmanager
def _hosts(experiment: Experiment) -> Iterator[Host]:
    """Provide the clients of cells: in this process, or in as many workers as the config asks for."""
    if experiment.workers == 1:
        yield experiment.loopback
        return
    with closing(WorkerPool(experiment.config.resolved(), experiment.images, experiment.workers)) as pool:
        yield lambda cell, clients: pool.begin(cell.index, experiment.work, clients, experiment.client_memory)


def _run_at_once(
    experiment: Experiment, writer: RunWriter, cells: Sequence[Cell], failures: Failures, observer: Observer
) -> None:
    """Run cells in their order, several at once in processes of their own.

    Raise KeyboardInterrupt if the observer wanted a stop; then every cell in progress has left a checkpoint.
    """
    dataset, config = SharedDataset(experiment.images), experiment.config.resolved()
    completed = run_jobs(
        [Job(cell, config, cell.index, writer.folder_of(cell), lambda: dataset) for cell in cells],
        experiment.cells_at_once, experiment.device, observer,
        completed=lambda _job, _result: writer.add_completed(),
        failed=lambda job, reason, again: failures.add(job.cell, reason, again=again),
    )  # fmt: skip
    if not completed:
        raise KeyboardInterrupt


class RunWriter:
    """The run's own files, to which completed cells are added in the order of the grid.

    A cell is added with everything it wrote, then a checkpoint records that, then its own folder is removed. After a
    kill at any point, the next start cuts the files back to the last checkpoint and adds the cell again.
    """

    def __init__(self, experiment: Experiment, folder: RunFolder, start: Position) -> None:
        self.cells = experiment.cells
        self.folder = folder
        self.added = start.cell
        self._config = experiment.config.resolved()
        results = folder.read_results()
        self._results = results[: start.cell]
        if len(self._results) < start.cell:
            raise RunFolderError(
                f"{folder.path / 'summary.json'} has {len(self._results)} of the {start.cell} results that the "
                "checkpoint refers to; it was changed or removed since: put it back, or start another run"
            )
        self._prototypes = folder.read_prototypes() if start.cell else {}
        folder.cut("rounds.jsonl", start.rounds_bytes)
        folder.cut("timings.jsonl", start.timings_bytes)
        if len(results) > start.cell:  # results of cells whose rounds were just cut off
            folder.write_results(self._results)
        if not start.cell:
            save_checkpoint(folder, self._config)  # records the config that the cells start with
        for cell in self.cells[: self.added]:
            self.folder_of(cell).remove()

    def folder_of(self, cell: Cell) -> RunFolder:
        """Return the folder that a cell runs into."""
        return self.folder.inner("cells", f"{cell.index + 1:03}-{cell_name(cell.entry.label, cell.seed)}")

    def incomplete(self) -> list[Cell]:
        """Return the cells that still have rounds to run, in order."""
        return [cell for cell in self.cells[self.added :] if not self.folder_of(cell).read_results()]

    def add_completed(self) -> None:
        """Add the completed cells up to the first one that is not."""
        for cell in self.cells[self.added :]:
            if not self._copy(cell):
                break
            self.added += 1
            save_checkpoint(self.folder, self._config, self.added)
            self.folder_of(cell).remove()
        if self.added == len(self.cells):
            self.folder.inner("cells").remove()

    def show_the_rest(self) -> None:
        """Add also the completed cells that follow an incomplete one.

        No checkpoint records that: the next start cuts the files back and adds all cells in their order.
        """
        for cell in self.cells[self.added :]:
            self._copy(cell)

    def _copy(self, cell: Cell) -> bool:
        """Add the results of a cell to the run's files; return False if it is not completed."""
        source = self.folder_of(cell)
        results = source.read_results()
        if not results:
            return False
        keep_with_run(source, self.folder, cell_name(cell.entry.label, cell.seed))
        for name in ("rounds.jsonl", "timings.jsonl"):
            self.folder.append_file(name, source)
        self._prototypes |= source.read_prototypes()
        self.folder.write_prototypes(self._prototypes)
        self._results += results
        self.folder.write_results(self._results)
        return True


class Failures:
    """The failed cells of a run, each with the reason."""

    def __init__(self, observer: Observer) -> None:
        self.cells: list[tuple[Cell, str]] = []
        self.permanent = 0  # so many of them would fail again
        self._observer = observer

    def add(self, cell: Cell, reason: str, *, again: bool = True) -> None:
        """Add one; `again` means that running it again may help."""
        self.cells.append((cell, reason))
        self.permanent += not again
        self._observer.failed(cell, reason)

    def error(self, command: str) -> CellsFailed:
        """Return the error that a run with failed cells ends with; the command runs them again."""
        plain = [{"label": cell.entry.label, "seed": cell.seed, "reason": reason} for cell, reason in self.cells]
        named = [(cell.title, reason) for cell, reason in self.cells]
        return CellsFailed(failed_words(named, command, self.permanent), plain)


def failed_words(failed: Sequence[tuple[str, str]], command: str, permanent: int = 0) -> str:
    """Return one sentence on failed cells by reason, and the command that runs again those that may succeed."""
    told = []
    for reason in dict.fromkeys(reason for _, reason in failed):
        titles = [title for title, why in failed if why == reason]
        told.append(f"{', '.join(titles) if len(titles) <= NAMED else counted(len(titles), 'cell')}: {reason}")
    again = "" if permanent == len(failed) else f"; {command} tries again"
    if again and permanent:
        again += ", which helps only cells that did not diverge"
    return f"{counted(len(failed), 'cell')} failed ({'; '.join(told)}){again}"
