"""The pool: starts workers, deals out clients, and is the host of their simulation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from tinyproto.data.images import Images
from tinyproto.engine.server import Reply
from tinyproto.errors import TinyProtoError, WireError, WorkerError
from tinyproto.storage.client_files import Stored, stored_from
from tinyproto.workers.child import Child, Parcel, SharedDataset, unpack_tensors

MOST_FRAME_BYTES = 64 * 2**20
"""A worker is sent frames up to about so many bytes at a time; prototypes of thousands of clients are less."""


class WorkerPool:
    """Processes that each hold a share of the clients; close it, and they are gone."""

    def __init__(self, config: Mapping[str, Any], images: Images, count: int) -> None:
        dataset = SharedDataset(images)
        self._workers = [_Process(index, config, dataset) for index in range(count)]

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.close()

    def begin(self, cell: int, samples: Sequence[int], folder: Path, memory: int) -> WorkerHost:
        """Deal out the clients of a cell by their number of training samples.

        Each worker has so much memory for its clients and puts what is beyond it into the folder.
        """
        shares = deal(samples, len(self._workers))
        for worker, share in zip(self._workers, shares, strict=True):
            head = {"do": "begin", "cell": cell, "clients": share, "folder": str(folder.resolve()), "memory": memory}
            worker.ask(Parcel(head))
        for worker in self._workers:
            worker.answer("begin")
        return WorkerHost(self._workers, shares)


def deal(samples: Sequence[int], count: int) -> list[list[int]]:
    """Clients to workers, the largest first and each to the worker with the least so far."""
    shares: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for client in sorted(range(len(samples)), key=lambda client: (-samples[client], client)):
        least = loads.index(min(loads))
        shares[least].append(client)
        loads[least] += samples[client]
    return [sorted(share) for share in shares]


class WorkerHost:
    """The clients of one cell, wherever they are."""

    def __init__(self, workers: Sequence[_Process], shares: Sequence[Sequence[int]]) -> None:
        self._workers = workers
        self._shares = shares
        self._seconds: dict[str, float] = {}
        self._phases: dict[str, dict[str, float]] = {}  # of the exchange under way, by phase and worker
        self._memory: dict[str, int] = {}

    def exchange(self, round_number: int, frames: Mapping[int, bytes]) -> Iterator[Reply]:
        """All workers at once; their answers worker by worker."""
        waiting = [_batches([client for client in share if client in frames], frames) for share in self._shares]
        while any(batches := [next(share, {}) for share in waiting]):
            for worker, batch in zip(self._workers, batches, strict=True):
                head = {"do": "exchange", "round": round_number, "clients": list(batch)}
                worker.ask(Parcel(head, list(batch.values())))
            for worker, batch in zip(self._workers, batches, strict=True):
                for client in batch:
                    parcel = worker.answer("client", f"client {client}")
                    refused = parcel.head["refused"]
                    yield Reply(parcel.head["client"], parcel.blobs[0], None if refused is None else WireError(refused))
                self._note(worker.name, worker.answer("exchange").head)
        for phase, values in self._phases.items():  # side by side: the slowest counts
            self._seconds[phase] = self._seconds.get(phase, 0.0) + max(values.values())
        self._phases = {}

    def _note(self, worker: str, report: Mapping[str, Any]) -> None:
        self._memory[worker] = report["memory"]
        for phase, value in report["seconds"].items():
            own = self._phases.setdefault(phase, {})
            own[worker] = own.get(worker, 0.0) + value

    def save(self) -> Mapping[int, Stored]:
        """Every worker writes what changed of its clients."""
        for worker in self._workers:
            worker.ask(Parcel({"do": "save"}))
        stored: dict[int, Stored] = {}
        for worker in self._workers:
            stored |= stored_from(worker.answer("save").head["stored"])
        return dict(sorted(stored.items()))

    def restore(self, stored: Mapping[int, Stored]) -> None:
        """Each worker gets its own clients'."""
        for worker, share in zip(self._workers, self._shares, strict=True):
            mine = {client: stored[client] for client in share if client in stored}
            worker.ask(Parcel({"do": "restore", "stored": mine}))
        for worker in self._workers:
            worker.answer("restore")

    def snapshot(self, clients: Sequence[int], parts: Collection[str]) -> Mapping[str, Tensor]:
        """Some parts of what changes of some clients, by name."""
        wanted, tensors = set(clients), dict[str, Tensor]()
        for worker, share in zip(self._workers, self._shares, strict=True):
            mine = [client for client in share if client in wanted]
            worker.ask(Parcel({"do": "snapshot", "clients": mine, "parts": list(parts)}))
        for worker in self._workers:
            tensors |= unpack_tensors(worker.answer("snapshot").blobs[0])
        return tensors

    def take_seconds(self) -> Mapping[str, float]:
        """Seconds per phase since last asked."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    def take_steps(self) -> None:
        """Not counted: each step is one that a client takes."""
        return

    def take_notes(self) -> list[str]:
        """None: workers train as the reference does."""
        return []

    def other_memory(self) -> int:
        """The workers' peaks together."""
        return sum(self._memory.values())


def _batches(clients: Iterable[int], frames: Mapping[int, bytes]) -> Iterator[dict[int, bytes]]:
    """The frames of these clients, no more of them at a time than a pipe should hold."""
    batch: dict[int, bytes] = {}
    held = 0
    for client in clients:
        batch[client] = frames[client]
        held += len(batch[client])
        if held >= MOST_FRAME_BYTES:
            yield batch
            batch, held = {}, 0
    if batch:
        yield batch


class _Process:
    """One worker process and what is expected of it."""

    def __init__(self, index: int, config: Mapping[str, Any], dataset: SharedDataset) -> None:
        self.name = f"worker {index + 1}"
        self._child = Child("tinyproto.workers.process", dataset.descriptors)
        self._loaded = False
        self.ask(dataset.request(config))

    def ask(self, parcel: Parcel) -> None:
        """Send a request."""
        if not self._child.ask(parcel):
            raise self._gone("between two requests")

    def answer(self, expected: str, whose: str = "") -> Parcel:
        """The next answer, which has to be of the kind expected."""
        if not self._loaded:
            self._loaded = True
            self.answer("load")
        parcel = self._child.answer()
        if parcel is None:
            raise self._gone(f"on {whose or expected}")
        if "error" in parcel.head:
            if parcel.head["kind"] == "ours":
                raise TinyProtoError(parcel.head["error"])
            place = parcel.head["place"] or f"on {whose or expected}"
            raise WorkerError(f"{self.name} failed {place}: {parcel.head['error']}")
        assert parcel.head.get("done", "client") == expected
        return parcel

    def _gone(self, when: str) -> WorkerError:
        end = self._child.end()
        return WorkerError(f"{self.name} {end.words} {when}{end.last_words}")

    def close(self) -> None:
        """End it now."""
        self._child.close()
