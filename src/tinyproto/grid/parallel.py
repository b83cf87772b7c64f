"""Several cells at once, each in a process of its own, as many as the memory takes."""

from __future__ import annotations

import queue
import signal
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

from tinyproto.errors import WorkerError
from tinyproto.experiment import Cell, Experiment
from tinyproto.grid.ledger import Ledger
from tinyproto.grid.mps import Sharing, shared_gpu
from tinyproto.grid.observer import Observer
from tinyproto.grid.room import Footprint, Room
from tinyproto.simulation.loop import PlayedRound
from tinyproto.tracking.run_folder import record_from
from tinyproto.workers.child import Child
from tinyproto.workers.handover import Handover
from tinyproto.workers.pipe import Parcel

TICK = 0.2
"""Seconds between two looks at whether a stop is wanted."""


def play_at_once(experiment: Experiment, ledger: Ledger, cells: Sequence[Cell], observer: Observer) -> None:
    """The cells in their order, as many at once as there is room for.

    Raises KeyboardInterrupt where the observer wanted a stop, WorkerError where a cell failed; either way every cell
    under way has left a checkpoint, and those that are done are in the run's files.
    """
    on_gpu = experiment.device != "cpu"
    with shared_gpu(experiment.device) if on_gpu else nullcontext(Sharing({}, "")) as sharing:
        if sharing.words:
            observer.told(sharing.words)
        crew = _Crew(experiment, ledger, observer, sharing, cells)
        try:
            crew.play()
        finally:
            crew.close()


class _Crew:
    """The cells' processes, and the cells that wait for one."""

    def __init__(
        self, experiment: Experiment, ledger: Ledger, observer: Observer, sharing: Sharing, cells: Sequence[Cell]
    ) -> None:
        self.experiment = experiment
        self.ledger = ledger
        self.observer = observer
        self.sharing = sharing
        self.waiting = deque(cells)
        self.running: dict[Child, Cell] = {}
        self.room = Room(experiment.cells_at_once)
        self.stopping = False
        self.failure: WorkerError | None = None
        self.dataset = Handover(experiment.images)
        self.answers: queue.SimpleQueue[tuple[Child, Parcel | None]] = queue.SimpleQueue()

    def play(self) -> None:
        """Until nothing is left, or all have stopped."""
        while self.running or (self.waiting and not self.stopping):
            while self.waiting and not self.stopping and len(self.running) < self.room.at_once:
                self._start(self.waiting.popleft())
            with suppress(queue.Empty):
                self._take(*self.answers.get(timeout=TICK))
            if not self.stopping and self.observer.stop_wanted():
                self._stop()
        if self.failure is not None:
            raise self.failure
        if self.stopping:
            raise KeyboardInterrupt

    def close(self) -> None:
        """End what is still running, now."""
        for child in list(self.running):
            self._dismiss(child)

    def _start(self, cell: Cell) -> None:
        child = Child("tinyproto.grid.process", self.dataset.descriptors, self.sharing.variables)
        self.running[child] = cell
        load = self.dataset.request(self.experiment.config.resolved())
        folder = str(self.ledger.folder_of(cell).path.absolute())
        child.ask(Parcel({**load.head, "cell": cell.index, "folder": folder, "device": self.experiment.device}))
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
        cell, together = self.running[child], len(self.running)
        if answer is None:
            self._gone(cell, child)
        elif answer.head["event"] in ("finished", "stopped", "failed"):
            self._dismiss(child)
            self._ended(cell, answer.head, together)
        else:
            self._going_on(cell, answer.head)

    def _dismiss(self, child: Child) -> None:
        del self.running[child]
        child.close()

    def _going_on(self, cell: Cell, head: Mapping[str, Any]) -> None:
        if head["event"] == "started":
            self.observer.started(cell, head["done"])
            return
        self.observer.played(cell, PlayedRound(record_from(head["record"]), head["seconds"], tuple(head["notes"])))
        if head["shown"] and self.room.measured(None if head["memory"] is None else Footprint(*head["memory"])):
            self.observer.told(self.room.words())

    def _ended(self, cell: Cell, head: Mapping[str, Any], together: int) -> None:
        if head["event"] == "finished":
            self.ledger.add_finished()
            self.observer.finished(cell, head["result"])
        elif head["event"] == "failed" and head["kind"] != "memory":
            self._fail(cell, f"{head['place']}: {head['error']}" if head["place"] else head["error"])
        elif head["event"] == "failed":
            self._out_of_memory(cell, head["error"], together)

    def _out_of_memory(self, cell: Cell, error: str, together: int) -> None:
        """Beside others, it goes on with fewer; alone, there is nothing to be done."""
        if together == 1:
            self._fail(cell, f"out of memory although nothing ran beside it ({error})")
            return
        self.room.limit = together - 1
        self.waiting.appendleft(cell)
        self.observer.told(
            f"{cell.title}: out of memory with {together} cells at once ({error}); it goes on from its newest "
            f"checkpoint, and from now on there are {self.room.limit} at the most"
        )

    def _gone(self, cell: Cell, child: Child) -> None:
        """It ended without a word."""
        end = child.end()
        self._dismiss(child)
        if self.stopping and end.status == -signal.SIGTERM:  # asked to stop before it had begun
            return
        scarce = ", as happens where memory runs out" if end.status == -signal.SIGKILL else ""
        self._fail(cell, f"its process {end.words}{scarce}{end.last_words}")

    def _fail(self, cell: Cell, reason: str) -> None:
        """The first failure ends the run, once the other cells have left their checkpoints."""
        if self.failure is None:
            kept = "the work of all cells is kept, and the run can be resumed"
            self.failure = WorkerError(f"{cell.title}: {reason}; {kept}")
        if not self.stopping:
            self._stop()
