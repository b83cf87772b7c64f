"""The run's own files, to which the cells that are done are added in cell order, whatever order they ended in."""

from __future__ import annotations

from tinyproto.errors import RunFolderError
from tinyproto.experiment import Cell, Experiment
from tinyproto.storage.checkpoint import Position
from tinyproto.tracking.checkpoints import Checkpoints
from tinyproto.tracking.kept_models import keep_with_run
from tinyproto.tracking.run_folder import RunFolder, cell_name


class Ledger:
    """Which cells are done, and the files that hold them.

    A cell is added with everything it wrote, then a checkpoint says so, then its own folder goes: whenever the process
    is killed, the next one cuts the files back to the last checkpoint and adds the cell again.
    """

    def __init__(self, experiment: Experiment, folder: RunFolder, start: Position) -> None:
        self.cells = experiment.cells
        self.folder = folder
        self.added = start.cell
        self._checkpoints = Checkpoints(folder, experiment.config.resolved(), every_seconds=0.0)
        results = folder.read_results()
        self._results = results[: start.cell]
        if len(self._results) < start.cell:
            raise RunFolderError(
                f"{folder.path / 'summary.json'} has {len(self._results)} of the {start.cell} results that the "
                "checkpoint speaks of; it was changed or removed since: put it back, or start another run"
            )
        self._prototypes = folder.read_prototypes() if start.cell else {}
        folder.cut("rounds.jsonl", start.rounds_bytes)
        folder.cut("timings.jsonl", start.timings_bytes)
        if len(results) > start.cell:  # of cells whose rounds were just cut off
            folder.write_results(self._results)
        if not start.cell:
            self._checkpoints.save(0, next_round=1, simulation=None)  # what config the cells are begun with
        for cell in self.cells[: self.added]:
            self.folder_of(cell).remove()

    def folder_of(self, cell: Cell) -> RunFolder:
        """Where a cell is played."""
        return self.folder.inner("cells", f"{cell.index + 1:03}-{cell_name(cell.entry.label, cell.seed)}")

    def unfinished(self) -> list[Cell]:
        """The cells that still have rounds to play, in order."""
        return [cell for cell in self.cells[self.added :] if not self.folder_of(cell).read_results()]

    def add_finished(self) -> None:
        """Add the cells that are done, up to the first that is not."""
        for cell in self.cells[self.added :]:
            own = self.folder_of(cell)
            results = own.read_results()
            if not results:
                break
            keep_with_run(own, self.folder, cell_name(cell.entry.label, cell.seed))
            self._add(own)
        if self.added == len(self.cells):
            self.folder.inner("cells").remove()

    def show_the_rest(self) -> None:
        """Have the files hold also the cells that are done beyond one that is not.

        Nothing says so but the files: the next start cuts them back, and adds all in their order.
        """
        for cell in self.cells[self.added :]:
            own = self.folder_of(cell)
            if own.read_results():
                keep_with_run(own, self.folder, cell_name(cell.entry.label, cell.seed))
                self._copy(own)

    def _add(self, own: RunFolder) -> None:
        self._copy(own)
        self.added += 1
        self._checkpoints.save(self.added, next_round=1, simulation=None)
        own.remove()

    def _copy(self, own: RunFolder) -> None:
        for name in ("rounds.jsonl", "timings.jsonl"):
            self.folder.append_file(name, own)
        self._prototypes |= own.read_prototypes()
        self.folder.write_prototypes(self._prototypes)
        self._results += own.read_results()
        self.folder.write_results(self._results)
