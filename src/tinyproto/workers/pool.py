"""The worker pool: starts worker processes, distributes clients over them, and is the channel to these clients."""

from __future__ import annotations

import queue
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load
from torch import Tensor

from tinyproto.data.dataset import Dataset
from tinyproto.engine.server import Reply
from tinyproto.errors import TinyProtoError, WireError, WorkerError
from tinyproto.simulation.loop import HostReport, batches
from tinyproto.storage.client_files import Stored, stored_from
from tinyproto.subprocesses import Parcel
from tinyproto.workers.child import Child, SharedDataset

MOST_FRAME_BYTES = 64 * 2**20
"""The most bytes of frames, about, that a worker is sent at a time; prototypes of thousands of clients are less."""


class WorkerPool:
    """Worker processes until it is closed; each holds a share of the clients of the current cell."""

    def __init__(self, config: Mapping[str, Any], images: Dataset, count: int) -> None:
        dataset = SharedDataset(images)
        self._workers = [_Worker(index, config, dataset) for index in range(count)]
        self._shares: Sequence[Sequence[int]] = ()

    def close(self) -> None:
        """End the processes now."""
        for worker in self._workers:
            worker.close()

    def begin(self, cell: int, work: Sequence[int], folder: Path, memory: int) -> WorkerPool:
        """Distribute the clients of a cell by the work of each; return the channel to them.

        Clients beyond `memory` bytes in a worker go to the folder.
        """
        self._shares = deal(work, len(self._workers))
        self._ask_each("begin", cell=cell, folder=str(folder.resolve()), memory=memory)
        return self

    def _ask_each(self, request: str, clients: Collection[int] | None = None, **facts: Any) -> list[Parcel]:
        """Send each worker a request about its clients, or about those named; return the answers."""
        for worker, share in zip(self._workers, self._shares, strict=True):
            named = [client for client in share if clients is None or client in clients]
            worker.request(Parcel({"do": request, "clients": named, **facts}))
        return [worker.reply(request) for worker in self._workers]

    def exchange(self, round_number: int, frames: Mapping[int, bytes]) -> Iterator[Reply]:
        """Deliver the frames to all workers at once; yield the replies worker by worker."""
        asked = [[client for client in share if client in frames] for share in self._shares]
        waiting = [batches(clients, frames, MOST_FRAME_BYTES) for clients in asked]
        while any(now := [next(share, {}) for share in waiting]):
            for worker, batch in zip(self._workers, now, strict=True):
                head = {"do": "exchange", "round": round_number, "clients": list(batch)}
                worker.request(Parcel(head, list(batch.values())))
            for worker, batch in zip(self._workers, now, strict=True):
                for client in batch:
                    parcel = worker.reply("client", f"client {client}")
                    refused = parcel.head["refused"]
                    yield Reply(parcel.head["client"], parcel.blobs[0], None if refused is None else WireError(refused))

    def save(self) -> Mapping[int, Stored]:
        """Write all that changed; return the places of the clients that ever changed."""
        stored: dict[int, Stored] = {}
        for parcel in self._ask_each("save"):
            stored |= stored_from(parcel.head["stored"])
        return dict(sorted(stored.items()))

    def restore(self, stored: Mapping[int, Stored]) -> None:
        """Set the clients to the state they had when they were saved."""
        self._ask_each("restore", stored=dict(stored))

    def snapshot(self, clients: Sequence[int], parts: Collection[str]) -> Mapping[str, Tensor]:
        """Return copies of some parts of some clients, by name."""
        tensors: dict[str, Tensor] = {}
        for parcel in self._ask_each("snapshot", set(clients), parts=list(parts)):
            tensors |= load(parcel.blobs[0])
        return tensors

    def take_report(self) -> HostReport:
        """Return the slowest worker's seconds since the last call; workers train as the reference does."""
        reports = [parcel.head for parcel in self._ask_each("report")]
        phases = dict.fromkeys(phase for report in reports for phase in report["seconds"])
        seconds = {phase: max(report["seconds"].get(phase, 0.0) for report in reports) for phase in phases}
        return HostReport(seconds, other_memory=sum(report["memory"] for report in reports))


def deal(work: Sequence[int], count: int) -> list[list[int]]:
    """Assign clients to workers, the largest first and each to the worker with the least so far."""
    shares: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for client in sorted(range(len(work)), key=lambda client: (-work[client], client)):
        least = loads.index(min(loads))
        shares[least].append(client)
        loads[least] += work[client]
    return [sorted(share) for share in shares]


class _Worker(Child):
    """One worker process; raises a WorkerError when it fails or is gone."""

    def __init__(self, index: int, config: Mapping[str, Any], dataset: SharedDataset) -> None:
        super().__init__(dataset, config, {})
        self.name = f"worker {index + 1}"
        self._arrived: queue.SimpleQueue[Parcel | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        """Read replies as they come: a full pipe would stop a worker while those of another one are read."""
        parcel: Parcel | None = Parcel({})
        while parcel is not None:
            try:
                parcel = super().answer()
            except ValueError:  # the pipe was closed under us
                parcel = None
            self._arrived.put(parcel)

    def answer(self) -> Parcel | None:
        """Return the next answer; None if the process is gone."""
        parcel = self._arrived.get()
        if parcel is None:
            self._arrived.put(None)  # for whoever asks again
        return parcel

    def request(self, parcel: Parcel) -> None:
        """Send a request."""
        if not self.ask(parcel):
            raise self._gone("between two requests")

    def reply(self, expected: str, whose: str = "") -> Parcel:
        """Return the next answer, which has to be of the kind expected."""
        parcel = self.answer()
        if parcel is None:
            raise self._gone(f"on {whose or expected}")
        if parcel.head["event"] == "failed":
            if parcel.head["kind"] == "ours":
                raise TinyProtoError(parcel.head["error"])
            place = parcel.head["place"] or f"on {whose or expected}"
            raise WorkerError(f"{self.name} failed {place}: {parcel.head['error']}")
        assert parcel.head["event"] == expected
        return parcel

    def _gone(self, when: str) -> WorkerError:
        end = self.end()
        return WorkerError(f"{self.name} {end.words} {when}{end.last_words}")
