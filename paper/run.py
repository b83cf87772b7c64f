"""Playing cells of the paper: those that are not done, as many at once as the machine takes, each into a record."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from paper.heatmaps import drawn_of
from paper.matching import cell_key
from paper.plan import PlannedCell
from paper.records_reader import (
    FOLDER,
    Finished,
    begun_config,
    by_cell,
    find_finished,
    finished_cells,
    rounds_played,
    write_record,
)
from tinyproto.builder import Cell, resolve_device
from tinyproto.config.load import completed, differences
from tinyproto.config.schema import DataSection, neutral_keys
from tinyproto.data.images import Images
from tinyproto.data.sources import SOURCES, Progress
from tinyproto.errors import DataError, InUseError, RunFolderError, TinyProtoError
from tinyproto.experiment import most_at_once
from tinyproto.grid.cell import Observer
from tinyproto.grid.parallel import Job, run_jobs
from tinyproto.tracking.lock import alone_in, locked
from tinyproto.tracking.run_folder import RunFolder
from tinyproto.workers.child import SharedDataset

DATASETS_HELD = 2
"""Datasets in this process's memory at once: the one whose cells start, and the one before, whose cells end."""

State = Literal["done", "begun", "to do"]


@dataclass(frozen=True)
class Standing:
    """How far a cell is."""

    cell: PlannedCell
    state: State
    folder: Path  # of the record, or of the cell under way
    finished: Finished | None = None
    rounds: int = 0  # played, of one that was begun


@dataclass
class Outcome:
    """What became of the cells that were to be played."""

    recorded: list[PlannedCell] = field(default_factory=list)
    failed: list[tuple[PlannedCell, str]] = field(default_factory=list)
    for_good: int = 0  # so many of those that failed would fail again
    left: list[PlannedCell] = field(default_factory=list)  # to another process, which is at them
    stopped: bool = False


class Reproduction:
    """Cells of the paper with the folders that hold their records and, until they are done, their work."""

    def __init__(self, cells: Sequence[PlannedCell], results: Path, runs: Path, *, drawn: bool = False) -> None:
        self.cells = cells
        self.results = results
        self.records = results / FOLDER
        self.work = runs / FOLDER
        self.drawn = drawn  # whether a record without the prototypes that are drawn counts as none

    def standing(self) -> list[Standing]:
        """Of every cell, by what lies in the folders now."""
        found = self._by_cell(find_finished(self.results))
        return [self._standing(cell, found.get(cell.identity)) for cell in self.cells]

    def is_recorded(self, cell: PlannedCell) -> bool:
        """Whether its record lies where one is written, now."""
        return cell.identity in self._by_cell(find_finished(self.records / cell.place))

    def _by_cell(self, found: Sequence[Finished]) -> dict[tuple[str, int, int], Finished]:
        return by_cell([one for one in found if one.has_prototypes or not self.drawn])

    def _standing(self, cell: PlannedCell, finished: Finished | None) -> Standing:
        if finished is not None:
            return Standing(cell, "done", finished.run, finished, cell.rounds)
        folder = self.work / cell.place
        if (folder / "config.yaml").is_file():
            return Standing(cell, "begun", folder, rounds=min(rounds_played(folder), cell.rounds))
        return Standing(cell, "to do", folder)

    def play(self, standing: Sequence[Standing], observer: Observer) -> Outcome:
        """Play those that are not done to their end; a cell that fails does not keep the others from theirs.

        Raises KeyboardInterrupt where it is to end at once. Whatever happens, cells go on from their checkpoints.
        """
        outcome = Outcome()
        left = [one for one in standing if one.state != "done"]
        outlived = [
            folder for one in standing if one.state == "done" and (folder := self.work / one.cell.place).is_dir()
        ]
        if not left and not outlived:
            return outcome
        RunFolder(self.records).make()
        RunFolder(self.work).make()
        words = (
            f"another tinyproto reproduce is playing cells in {self.work}; wait for it, or share its cells, "
            "with --runs of your own"
        )
        with locked(self.work / "lock", RunFolderError(words)):
            for folder in outlived:  # what a kill left of a cell whose record was written already
                RunFolder(folder).remove()
            if left:
                self._play(left, observer, outcome)
        return outcome

    def _play(self, left: Sequence[Standing], observer: Observer, outcome: Outcome) -> None:
        train = left[0].cell.config.model.train
        device = resolve_device(train.device)
        asked = train.parallel_cells
        at_once = min(len(left), most_at_once(device) if asked == "auto" else asked)
        observer.opens(len(left))
        datasets = _Datasets(observer)
        with _Claims(self.records, self.work) as claims:
            recorder = _Recorder(self, [one.cell for one in left], observer, outcome, claims)
            jobs = [job for index, one in enumerate(left) if (job := recorder.job(index, one, datasets)) is not None]
            outcome.stopped = bool(jobs) and not run_jobs(
                jobs, at_once, device, observer, completed=recorder.done, failed=recorder.failed
            )

    def record(self, cell: PlannedCell, folder: RunFolder) -> None:
        """Make a record of a cell that is done, and remove what it was made from."""
        (finished,) = finished_cells(folder.path)
        drawn = drawn_of(cell.paper.target, cell.dataset, finished.entry, cell.seed, any_seed=self.drawn)
        write_record(self.records / cell.place, finished, cell.paper.stem, drawn)
        folder.remove()


class _Recorder:
    """Turns completed jobs of a reproduction into records."""

    def __init__(
        self, reproduction: Reproduction, cells: Sequence[PlannedCell], observer: Observer, outcome: Outcome,
        claims: _Claims,
    ) -> None:  # fmt: skip
        self._reproduction = reproduction
        self._cells = cells
        self._observer = observer
        self._outcome = outcome
        self._claims = claims

    def job(self, index: int, standing: Standing, datasets: _Datasets) -> Job | None:
        """What is left to play of a cell; None where nothing is, or where it cannot be played on."""
        planned, folder = standing.cell, RunFolder(standing.folder)
        cell = Cell(index, planned.config.algorithms[0], planned.seed, of=planned.stem)
        model = planned.config.model

        def begin() -> SharedDataset | None:
            return datasets.handover(model.data) if self._claimed(job) else None

        job = Job(
            cell=cell,
            config=planned.config.resolved(),
            index=0,
            folder=folder,
            dataset=begin,
            kind=f"{model.data.dataset} with {model.partition.num_clients} clients, d={model.prototypes.dim}",
            alone=True,
        )
        if standing.state == "to do":
            return job
        try:
            if results := folder.read_results():  # done, but killed before its record was written
                if self._claimed(job):
                    self.done(job, results[0])
                    self._observer.started(cell, planned.rounds)
                    self._observer.finished(cell, results[0])
                return None
            return self._going_on(job, planned, begun_config(folder.path))
        except TinyProtoError as error:
            self.failed(job, str(error))
            return None

    def _going_on(self, job: Job, planned: PlannedCell, begun: Mapping[str, Any] | None) -> Job:
        """A cell under way goes on with the config that it began with."""
        if begun is None:
            return job
        now = planned.config.resolved()
        same = cell_key(begun, begun["algorithms"][0]) == planned.key
        if not same or (begun["seeds"], begun["train"]["rounds"]) != (now["seeds"], now["train"]["rounds"]):
            raise RunFolderError(f"{job.folder.path} was begun with another config; remove it to begin again")
        changed = {
            key: then for key, (then, _) in differences([completed(begun), now]).items() if key not in neutral_keys()
        }
        if changed:
            kept = ", ".join(f"{key}={value}" for key, value in changed.items())
            self._observer.told(f"{job.cell.title}: goes on with {kept}, as it was begun")
        names = [key.removeprefix("train.") for key in sorted(neutral_keys()) if key.startswith("train.")]
        free = {name: now["train"][name] for name in names}
        return replace(job, config={**begun, "train": {**begun["train"], **free}})

    def done(self, job: Job, result: dict[str, Any]) -> None:  # noqa: ARG002
        """It becomes a record."""
        cell = self._cells[job.cell.index]
        self._reproduction.record(cell, job.folder)
        self._claims.release(cell.place)
        self._outcome.recorded.append(cell)

    def failed(self, job: Job, reason: str, again: bool = True) -> None:
        """Remember it, and leave the cell to others."""
        self._outcome.for_good += not again
        self._claims.release(self._cells[job.cell.index].place)
        self._outcome.failed.append((self._cells[job.cell.index], reason))
        self._observer.failed(job.cell, reason)

    def _claimed(self, job: Job) -> bool:
        """Whether the cell is ours from now on; not where another process is at it, or has recorded it meanwhile."""
        cell = self._cells[job.cell.index]
        try:
            self._claims.take(cell.place)
        except InUseError:
            self._outcome.left.append(cell)
            self._observer.skipped(job.cell, "left to another process, which is at it")
            return False
        if self._reproduction.is_recorded(cell):
            self._claims.release(cell.place)
            self._observer.skipped(job.cell, "another process has recorded it meanwhile")
            return False
        return True


class _Claims:
    """The cells that this process is at, from their start to their end; no other process plays or records them.

    One with other runs may have the same records.
    """

    def __init__(self, *roots: Path) -> None:
        self._roots = roots
        self._held: dict[str, ExitStack] = {}

    def take(self, place: str) -> None:
        """Have it, be it ours already or nobody's."""
        if place not in self._held:
            with ExitStack() as stack:
                for root in self._roots:
                    stack.enter_context(alone_in(root / place))
                self._held[place] = stack.pop_all()

    def release(self, place: str) -> None:
        """Leave it to others, where it was ours."""
        if (held := self._held.pop(place, None)) is not None:
            held.close()

    def __enter__(self) -> _Claims:
        return self

    def __exit__(self, *_: object) -> None:
        for place in list(self._held):
            self.release(place)


def _all_of(section: DataSection, progress: Progress) -> Images:
    """The images of a section; less or more of a dataset is not what its cells are of."""
    images = SOURCES[section.name].load(section.request(progress))
    if images.name != section.dataset:
        wanted = (
            f"the paper has all of {section.name}" if section.first_classes is None else f"wanted is {section.dataset}"
        )
        raise DataError(f"{wanted}; what lies in {section.root} is {images.name}")
    return images


class _Datasets:
    """The datasets that cells are played on, each loaded when its first cell starts and held while cells need it."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._held: OrderedDict[str, SharedDataset] = OrderedDict()
        self._missing: dict[str, TinyProtoError] = {}
        self._told: set[str] = set()

    def handover(self, section: DataSection) -> SharedDataset:
        """For a process; raises what keeps a dataset from being loaded, each time it is asked for."""
        name = section.dataset
        if name in self._missing:
            raise self._missing[name]
        if name not in self._held:
            while len(self._held) >= DATASETS_HELD:
                self._held.popitem(last=False)
            try:
                self._held[name] = SharedDataset(_all_of(section, self._tell))
            except TinyProtoError as error:
                self._missing[name] = error
                raise
        self._held.move_to_end(name)
        return self._held[name]

    def _tell(self, what: str, _done: int, _total: int) -> None:
        if what not in self._told:
            self._told.add(what)
            self._observer.told(what)
