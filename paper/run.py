"""Run the cells of the paper that are not finished, as many at once as the machine takes, each into a record."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from paper.matching import PaperCell, cell_key
from paper.records_reader import (
    Finished,
    by_cell,
    drawn_of,
    find_finished,
    finished_cells,
    rounds_written,
    started_config,
    write_record,
)
from tinyproto.builder import Cell, resolve_device
from tinyproto.config.data_section import DataSection
from tinyproto.config.load import completed, differences
from tinyproto.config.schema import neutral_keys
from tinyproto.data.dataset import Dataset
from tinyproto.data.sources import SOURCES, Progress
from tinyproto.errors import DataError, InUseError, RunFolderError, TinyProtoError
from tinyproto.experiment import most_at_once
from tinyproto.grid.cell import Observer
from tinyproto.grid.parallel import Job, run_jobs
from tinyproto.tracking.lock import alone_in, locked
from tinyproto.tracking.run_folder import RunFolder
from tinyproto.workers.child import SharedDataset

WORK = "paper"
"""The folder of cells in progress, inside that of all runs."""

DATASETS_HELD = 2
"""Datasets in memory at once: that of the cells being started, and that of the cells before them."""


@dataclass(frozen=True)
class Status:
    """The progress of a cell."""

    cell: PaperCell
    state: Literal["done", "begun", "to do"]
    folder: Path  # of the record, or of the cell in progress
    finished: Finished | None = None
    rounds: int = 0  # completed, of a cell in progress


@dataclass
class RunResult:
    """The result of running cells."""

    recorded: list[PaperCell] = field(default_factory=list)
    failed: list[tuple[PaperCell, str]] = field(default_factory=list)  # with the reason
    for_good: int = 0  # number of failed cells that would fail again
    left: list[PaperCell] = field(default_factory=list)  # another process is running them
    stopped: bool = False


class Reproduction:
    """Cells of the paper, the folder of their records, and the folder of cells in progress."""

    def __init__(self, cells: Sequence[PaperCell], records: Path, runs: Path, *, drawn: bool = False) -> None:
        self.cells = cells
        self.records = records
        self.work = runs / WORK
        self.drawn = drawn  # only records that keep the prototypes to draw count

    def status(self) -> list[Status]:
        """Return the progress of every cell from the folders as they are now."""
        found = self._by_cell(find_finished(self.records))
        return [self._status(cell, found.get(cell.identity)) for cell in self.cells]

    def is_recorded(self, cell: PaperCell) -> bool:
        """Return True if its record is at the place where this command writes it."""
        return cell.identity in self._by_cell(find_finished(self.records / cell.place))

    def _by_cell(self, found: Sequence[Finished]) -> dict[tuple[str, int, int], Finished]:
        return by_cell([one for one in found if one.has_prototypes or not self.drawn])

    def _status(self, cell: PaperCell, finished: Finished | None) -> Status:
        if finished is not None:
            return Status(cell, "done", finished.run, finished, cell.rounds)
        folder = self.work / cell.place
        if (folder / "config.yaml").is_file():
            return Status(cell, "begun", folder, rounds=min(rounds_written(folder), cell.rounds))
        return Status(cell, "to do", folder)

    def run(self, status: Sequence[Status], observer: Observer) -> RunResult:
        """Run the cells that are not done; a cell that fails does not stop the others.

        Raises KeyboardInterrupt if it has to end at once. Cells always resume from their checkpoints.
        """
        ended = RunResult()
        left = [one for one in status if one.state != "done"]
        outdated = [folder for one in status if one.state == "done" and (folder := self.work / one.cell.place).is_dir()]
        if not left and not outdated:
            return ended
        RunFolder(self.records).make()
        RunFolder(self.work).make()
        words = f"another process is running cells in {self.work}; wait for it, or name another folder with --runs"
        with locked(self.work / "lock", RunFolderError(words)):
            for folder in outdated:  # of a process that was killed after it wrote the record
                RunFolder(folder).remove()
            if left:
                self._run(left, observer, ended)
        return ended

    def _run(self, left: Sequence[Status], observer: Observer, ended: RunResult) -> None:
        train = left[0].cell.parsed.model.train
        device = resolve_device(train.device)
        asked = train.parallel_cells
        at_once = min(len(left), most_at_once(device) if asked == "auto" else asked)
        observer.opens(len(left))
        datasets = _Datasets(observer)
        with _Claims(self.records, self.work) as claims:
            recorder = _Recorder(self, [one.cell for one in left], observer, ended, claims)
            jobs = [job for index, one in enumerate(left) if (job := recorder.job(index, one, datasets)) is not None]
            ended.stopped = bool(jobs) and not run_jobs(
                jobs, at_once, device, observer, completed=recorder.done, failed=recorder.failed
            )

    def record(self, cell: PaperCell, folder: RunFolder) -> None:
        """Write the record of a finished cell and remove its folder."""
        (finished,) = finished_cells(folder.path)
        dataset = cell.config["data"]["name"]
        drawn = drawn_of(cell.paper.target, dataset, finished.entry, cell.seed, any_seed=self.drawn)
        write_record(self.records / cell.place, finished, cell.stem, drawn)
        folder.remove()


class _Recorder:
    """Turns completed jobs into records."""

    def __init__(
        self,
        reproduction: Reproduction,
        cells: Sequence[PaperCell],
        observer: Observer,
        ended: RunResult,
        claims: _Claims,
    ) -> None:
        self._reproduction = reproduction
        self._cells = cells
        self._observer = observer
        self._ended = ended
        self._claims = claims

    def job(self, index: int, status: Status, datasets: _Datasets) -> Job | None:
        """Return the job that finishes a cell; None if nothing is left of it, or if it cannot be resumed."""
        planned, folder = status.cell, RunFolder(status.folder)
        cell = Cell(index, planned.parsed.algorithms[0], planned.seed, of=planned.group)
        model = planned.parsed.model

        def begin() -> SharedDataset | None:
            return datasets.handover(model.data) if self._claimed(job) else None

        job = Job(
            cell=cell,
            config=planned.parsed.resolved(),
            index=0,
            folder=folder,
            dataset=begin,
            alone=True,
        )
        if status.state == "to do":
            return job
        try:
            if results := folder.read_results():  # finished, but killed before its record was written
                if self._claimed(job):
                    self.done(job, results[0])
                    self._observer.started(cell, planned.rounds)
                    self._observer.finished(cell, results[0])
                return None
            return self._resumed(job, planned, started_config(folder.path))
        except TinyProtoError as error:
            self.failed(job, str(error))
            return None

    def _resumed(self, job: Job, planned: PaperCell, begun: Mapping[str, Any] | None) -> Job:
        """Return a job that continues a cell with the config it was started with."""
        if begun is None:
            return job
        now = planned.parsed.resolved()
        same = cell_key(begun, begun["algorithms"][0]) == planned.key
        if not same or (begun["seeds"], begun["train"]["rounds"]) != (now["seeds"], now["train"]["rounds"]):
            raise RunFolderError(f"{job.folder.path} was started with another config; delete it to start again")
        changed = {
            key: then
            for key, (then, _) in differences([completed(begun), now]).items()
            if key not in neutral_keys(on_resume=True)
        }
        if changed:
            kept = ", ".join(f"{key}={value}" for key, value in changed.items())
            self._observer.told(f"{job.cell.title}: resumes with {kept}, as it was started")
        names = [key.removeprefix("train.") for key in sorted(neutral_keys(on_resume=True)) if key.startswith("train.")]
        free = {name: now["train"][name] for name in names}
        return replace(job, config={**begun, "train": {**begun["train"], **free}})

    def done(self, job: Job, result: dict[str, Any]) -> None:  # noqa: ARG002
        """Write the record of a finished cell."""
        cell = self._cells[job.cell.index]
        self._reproduction.record(cell, job.folder)
        self._claims.release(cell.place)
        self._ended.recorded.append(cell)

    def failed(self, job: Job, reason: str, again: bool = True) -> None:
        """Note the failure and release the cell."""
        cell = self._cells[job.cell.index]
        self._ended.for_good += not again
        self._claims.release(cell.place)
        self._ended.failed.append((cell, reason))
        self._observer.failed(job.cell, reason)

    def _claimed(self, job: Job) -> bool:
        """Claim the cell; return False if another process is running it or has recorded it."""
        cell = self._cells[job.cell.index]
        try:
            self._claims.take(cell.place)
        except InUseError:
            self._ended.left.append(cell)
            self._observer.skipped(job.cell, "another process is running it")
            return False
        if self._reproduction.is_recorded(cell):
            self._claims.release(cell.place)
            self._observer.skipped(job.cell, "another process has recorded it")
            return False
        return True


class _Claims:
    """The cells that this process runs; no other process runs or records them.

    A claim covers the record and the cell in progress, because a process with other runs may share the records.
    """

    def __init__(self, *roots: Path) -> None:
        self._roots = roots
        self._held: dict[str, ExitStack] = {}

    def take(self, place: str) -> None:
        """Acquire the claim; no-op if already held."""
        if place not in self._held:
            with ExitStack() as stack:
                for root in self._roots:
                    stack.enter_context(alone_in(root / place))
                self._held[place] = stack.pop_all()

    def release(self, place: str) -> None:
        """Release the claim if it is held."""
        if (held := self._held.pop(place, None)) is not None:
            held.close()

    def __enter__(self) -> _Claims:
        return self

    def __exit__(self, *_: object) -> None:
        for place in list(self._held):
            self.release(place)


class _Datasets:
    """The datasets that cells need, each loaded when its first cell starts."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._held: OrderedDict[str, SharedDataset] = OrderedDict()
        self._missing: dict[str, TinyProtoError] = {}
        self._told: set[str] = set()

    def handover(self, section: DataSection) -> SharedDataset:
        """Return a dataset for a process; if it cannot be loaded, raise the same error each time."""
        name = section.dataset
        if name in self._missing:
            raise self._missing[name]
        if name not in self._held:
            while len(self._held) >= DATASETS_HELD:
                self._held.popitem(last=False)
            try:
                self._held[name] = SharedDataset(_load(section, self._tell))
            except TinyProtoError as error:
                self._missing[name] = error
                raise
        self._held.move_to_end(name)
        return self._held[name]

    def _tell(self, what: str, _done: int, _total: int) -> None:
        if what not in self._told:
            self._told.add(what)
            self._observer.told(what)


def _load(section: DataSection, progress: Progress) -> Dataset:
    """Return the images of a section; raise DataError if less or more of the dataset is found than its cells use."""
    images = SOURCES[section.name].load(section.request(progress))
    if images.name != section.dataset:
        wanted = f"all of {section.name}" if section.first_classes is None else section.dataset
        raise DataError(f"the cells need {wanted}, but {section.root} contains {images.name}")
    return images
