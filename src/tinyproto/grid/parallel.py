"""Several cells at once, each in a process of its own, as many as the memory takes."""

from __future__ import annotations

import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from tinyproto.errors import TinyProtoError
from tinyproto.experiment import Cell, Experiment
from tinyproto.grid.capacity import Footprint, Room
from tinyproto.grid.cell import Failures, Observer
from tinyproto.grid.ledger import Ledger
from tinyproto.grid.mps import Sharing, shared_gpu
from tinyproto.simulation.loop import PlayedRound
from tinyproto.tracking.run_folder import RunFolder, record_from
from tinyproto.workers.child import Child, Handover, Parcel

TICK = 0.2
"""Seconds between two looks at whether a stop is wanted."""


@dataclass(frozen=True)
class Job:
    """A cell for a process of its own; the jobs of a queue may be of several experiments."""

    cell: Cell  # as the observer is told of it
    config: Mapping[str, Any]  # resolved, of the experiment
    index: int  # of the cell in that experiment's grid
    folder: RunFolder
    dataset: Callable[[], Handover | None]  # asked for when the job starts; None where it is not to be played any more
    kind: str = ""  # jobs of one kind take about the same memory
    alone: bool = False  # no run folder around it says what it ran on, so its own folder does


class Foreman(Protocol):
    """Who takes what the processes deliver."""

    def done(self, job: Job, result: dict[str, Any]) -> None:
        """A job is done; its folder holds everything."""
        ...

    def failed(self, job: Job, reason: str, *, again: bool = True) -> None:
        """A job cannot be finished; the others go on. `again`: running it again may help."""
        ...


def play_jobs(
    jobs: Sequence[Job], at_once: int, device: str, foreman: Foreman, observer: Observer
) -> bool:  # fmt: skip
    """The jobs in their order, at most so many at once and fewer where memory is short; whether all were played.

    A job that fails does not keep the others from their end. Where they stop early, because the observer wants it,
    every one under way has left a checkpoint.
    """
    on_gpu = device != "cpu"
    with shared_gpu(device) if on_gpu else nullcontext(Sharing({}, "")) as sharing:
        if sharing.words:
            observer.told(sharing.words)
        crew = _Crew(jobs, at_once, device, sharing, foreman, observer)
        try:
            crew.play()
        finally:
            crew.close()
    return not crew.stopping


class _Crew:
    """The jobs' processes, and the jobs that wait for one."""

    def __init__(
        self, jobs: Sequence[Job], at_once: int, device: str, sharing: Sharing, foreman: Foreman, observer: Observer
    ) -> None:
        self.waiting = deque(jobs)
        self.at_once = at_once
        self.device = device
        self.sharing = sharing
        self.foreman = foreman
        self.observer = observer
        self.running: dict[Child, Job] = {}
        self.room = Room(at_once)
        self.stopping = False
        self.answers: queue.SimpleQueue[tuple[Child, Parcel | None]] = queue.SimpleQueue()

    def play(self) -> None:
        """Until nothing is left, or all have stopped."""
        while self.running or (self.waiting and not self.stopping):
            if not self.stopping and self.observer.stop_wanted():
                self._stop()
            while self.waiting and not self.stopping and self._has_room(self.waiting[0]):
                self._start(self.waiting.popleft())
            with suppress(queue.Empty):
                self._take(*self.answers.get(timeout=TICK))

    def close(self) -> None:
        """End what is still running, now."""
        for child in list(self.running):
            self._dismiss(child)

    def _has_room(self, job: Job) -> bool:
        return self.room.has_place(job.kind, [other.kind for other in self.running.values()])

    def _start(self, job: Job) -> None:
        try:
            dataset = job.dataset()
        except TinyProtoError as error:
            self.foreman.failed(job, str(error))
            return
        if dataset is None:
            return
        child = Child("tinyproto.grid.process", dataset.descriptors, self.sharing.variables)
        self.running[child] = job
        load = dataset.request(job.config)
        asked = {"cell": job.index, "folder": str(job.folder.path.absolute()), "device": self.device}
        child.ask(Parcel({**load.head, **asked, "described_at_once": self.at_once if job.alone else None}))
        threading.Thread(target=self._listen, args=(child,), daemon=True).start()

    def _listen(self, child: Child) -> None:
        """What the process says, to its end; a thread of its own, since nobody knows who speaks next."""
        try:
            while (answer := child.answer()) is not None:
                self.answers.put((child, answer))
        except ValueError:  # its pipe was closed under us
            pass
        self.answers.put((child, None))

    def _stop(self) -> None:
        """Have all finish their round and leave a checkpoint."""
        self.stopping = True
        for child in self.running:
            child.ask_to_stop()

    def _take(self, child: Child, answer: Parcel | None) -> None:
        """One answer of one process; its last one says how it ended."""
        if child not in self.running:
            return
        job, together = self.running[child], len(self.running)
        if answer is None:
            self._gone(job, child)
        elif answer.head["event"] in ("finished", "stopped", "failed"):
            self._dismiss(child)
            self._ended(job, answer.head, together)
        else:
            self._going_on(job, answer.head)

    def _dismiss(self, child: Child) -> None:
        del self.running[child]
        child.close()

    def _going_on(self, job: Job, head: Mapping[str, Any]) -> None:
        if head["event"] == "started":
            self.observer.started(job.cell, head["done"])
            return
        if head["event"] == "told":
            self.observer.told(head["words"])
            return
        if head["event"] == "derived":
            self.observer.derived(job.cell, head["values"], head["round"])
            return
        self.observer.played(job.cell, PlayedRound(record_from(head["record"]), head["seconds"], tuple(head["notes"])))
        if head["shown"]:
            found = None if head["memory"] is None else Footprint(*head["memory"])
            if self.room.measured(found, job.kind):
                self.observer.told(self.room.words())

    def _ended(self, job: Job, head: Mapping[str, Any], together: int) -> None:
        if head["event"] == "finished":
            self.foreman.done(job, head["result"])
            self.observer.finished(job.cell, head["result"])
        elif head["event"] == "failed" and head["kind"] != "memory":
            reason = f"{head['place']}: {head['error']}" if head["place"] else head["error"]
            self.foreman.failed(job, reason, again=head["kind"] != "diverged")
        elif head["event"] == "failed":
            self._out_of_memory(job, head["error"], together)
        elif not self.stopping:  # by a signal that was not ours
            self.waiting.appendleft(job)

    def _out_of_memory(self, job: Job, error: str, together: int) -> None:
        """Beside others, it goes on with fewer; alone, there is nothing to be done."""
        if together == 1:
            self.foreman.failed(job, f"out of memory although nothing ran beside it ({error})")
            return
        self.room.limit = together - 1
        self.waiting.appendleft(job)
        self.observer.told(
            f"{job.cell.title}: out of memory with {together} cells at once ({error}); it goes on from its newest "
            f"checkpoint, and from now on there are {self.room.limit} at the most"
        )

    def _gone(self, job: Job, child: Child) -> None:
        """It ended without a word."""
        end = child.end()
        self._dismiss(child)
        scarce = ", as happens where memory runs out" if end.status == -signal.SIGKILL else ""
        self.foreman.failed(job, f"its process {end.words}{scarce}{end.last_words}")


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
