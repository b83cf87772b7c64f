"""Several cells at once, each in a process of its own, as many as the memory allows."""

from __future__ import annotations

import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from tinyproto.builder import Cell
from tinyproto.errors import TinyProtoError
from tinyproto.grid.capacity import Capacity, Footprint
from tinyproto.grid.cell import Observer
from tinyproto.grid.mps import Sharing, shared_gpu
from tinyproto.subprocesses import Parcel
from tinyproto.tracking.run_folder import RunFolder, record_from
from tinyproto.tracking.summary import RoundResult
from tinyproto.workers.child import Child, SharedDataset

TICK = 0.2
"""Seconds between two checks for a wanted stop."""


@dataclass(frozen=True)
class Job:
    """A cell to run in a process of its own; jobs that run together may belong to several experiments."""

    cell: Cell  # as the observer knows it
    config: Mapping[str, Any]  # resolved, of the experiment
    index: int  # of the cell in that experiment's grid
    folder: RunFolder
    dataset: Callable[[], SharedDataset | None]  # called when the job starts; None if it is not to run any more
    alone: bool = False  # no run folder contains its folder, so config and environment are written there
    shares_device: bool = True  # False: no other job will run beside it, so it may go on in a slower way without memory


Completed = Callable[[Job, dict[str, Any]], None]
"""Takes a completed job and its result; the job's folder holds everything."""

Failed = Callable[[Job, str, bool], None]
"""Takes a failed job, the reason, and True if running it again may help."""


def run_jobs(
    jobs: Sequence[Job], at_once: int, device: str, observer: Observer, *, completed: Completed, failed: Failed
) -> bool:
    """Run jobs in their order, at most `at_once` together and fewer if memory is short; return False if stopped.

    A job that fails does not stop the others. If the observer wants a stop, every job in progress leaves a checkpoint.
    """
    with shared_gpu(device) if device != "cpu" else nullcontext(Sharing({}, "")) as sharing:
        if sharing.words:
            observer.told(sharing.words)
        pool = _JobPool(deque(jobs), at_once, device, sharing, observer, completed, failed, Capacity(at_once))
        try:
            pool.run()
        finally:
            pool.close()
    return not pool.stopping


@dataclass
class _JobPool:
    """The processes of jobs, and the jobs that wait for one."""

    waiting: deque[Job]
    at_once: int
    device: str
    sharing: Sharing
    observer: Observer
    completed: Completed
    failed: Failed
    capacity: Capacity
    running: dict[Child, Job] = field(default_factory=dict)
    stopping: bool = False
    answers: queue.SimpleQueue[tuple[Child, Parcel | None]] = field(default_factory=queue.SimpleQueue)

    def run(self) -> None:
        """Run until no job is left, or all have stopped."""
        while self.running or (self.waiting and not self.stopping):
            if not self.stopping and self.observer.stop_wanted():
                self._stop()
            while self.waiting and not self.stopping and len(self.running) < self.capacity.at_once:
                self._start(self.waiting.popleft())
            with suppress(queue.Empty):
                self._take(*self.answers.get(timeout=TICK))

    def close(self) -> None:
        """End all processes now."""
        for child in list(self.running):
            self._dismiss(child)

    def _start(self, job: Job) -> None:
        job = replace(job, shares_device=self.capacity.limit > 1)
        try:
            dataset = job.dataset()
        except TinyProtoError as error:
            self.failed(job, str(error), True)
            return
        if dataset is None:
            return
        child = Child(dataset, job.config, self.sharing.variables)
        self.running[child] = job
        asked = {"cell": job.index, "folder": str(job.folder.path.absolute()), "device": self.device}
        asked["alone"] = not job.shares_device
        child.ask(Parcel({"do": "run", **asked, "described_at_once": self.at_once if job.alone else None}))
        threading.Thread(target=self._listen, args=(child,), daemon=True).start()

    def _listen(self, child: Child) -> None:
        """Queue the answers of a process until it ends; in a thread, since any process may answer next."""
        try:
            while (answer := child.answer()) is not None:
                self.answers.put((child, answer))
        except ValueError:  # its pipe was closed under us
            pass
        self.answers.put((child, None))

    def _stop(self) -> None:
        """Ask all processes to finish their round and leave a checkpoint."""
        self.stopping = True
        for child in self.running:
            child.ask_to_stop()

    def _take(self, child: Child, answer: Parcel | None) -> None:
        """Handle one answer of one process; its last one says how it ended."""
        if child not in self.running:
            return
        job, together = self.running[child], len(self.running)
        if answer is None:
            self._gone(job, child)
        elif answer.head["event"] in ("finished", "stopped", "failed"):
            self._dismiss(child)
            self._ended(job, answer.head, together)
        else:
            self._report(job, answer.head)

    def _dismiss(self, child: Child) -> None:
        del self.running[child]
        child.close()

    def _report(self, job: Job, head: Mapping[str, Any]) -> None:
        """Pass what a process reports on to the observer."""
        match head["event"]:
            case "started":
                self.observer.started(job.cell, head["done"])
            case "told":
                self.observer.told(head["words"])
            case "derived":
                self.observer.derived(job.cell, head["values"], head["round"])
            case "played":
                record = record_from(head["record"])
                self.observer.played(job.cell, RoundResult(record, head["seconds"], tuple(head["notes"])))
            case "measured":
                found = None if head["memory"] is None else Footprint(*head["memory"])
                if self.capacity.measured(found):
                    self.observer.told(self.capacity.words())

    def _ended(self, job: Job, head: Mapping[str, Any], together: int) -> None:
        if head["event"] == "finished":
            self.completed(job, head["result"])
            self.observer.finished(job.cell, head["result"])
        elif head["event"] == "failed" and head["kind"] != "memory":
            reason = f"{head['place']}: {head['error']}" if head["place"] else head["error"]
            self.failed(job, reason, head["kind"] != "diverged")
        elif head["event"] == "failed":
            self._out_of_memory(job, head["error"], together)
        elif not self.stopping:  # by a signal from elsewhere
            self.waiting.appendleft(job)

    def _out_of_memory(self, job: Job, error: str, together: int) -> None:
        """Run the job again with fewer others; if it ran alone, in a slower way; if it did already, it failed."""
        if together == 1 and job.shares_device and self.device != "cpu":
            self.capacity.limit = 1
            self.waiting.appendleft(job)
            self.observer.told(
                f"{job.cell.title}: out of memory although nothing ran beside it ({error}); it resumes from its newest "
                "checkpoint, from now on one cell runs at a time, and trains in a slower way where memory runs out"
            )
            return
        if together == 1:
            self.failed(job, f"out of memory although nothing ran beside it ({error})", True)
            return
        self.capacity.limit = together - 1
        self.waiting.appendleft(job)
        self.observer.told(
            f"{job.cell.title}: out of memory with {together} cells at once ({error}); it resumes from its newest "
            f"checkpoint, and from now on at most {self.capacity.limit} run at once"
        )

    def _gone(self, job: Job, child: Child) -> None:
        """Handle a process that ended without an answer."""
        end = child.end()
        self._dismiss(child)
        scarce = ", as happens where memory runs out" if end.status == -signal.SIGKILL else ""
        self.failed(job, f"its process {end.words}{scarce}{end.last_words}", True)
