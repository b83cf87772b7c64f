"""The pool: starts workers, deals out clients, and is the host of their simulation."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from torch import Tensor

from tinyproto.data.images import Images
from tinyproto.engine.server import Reply
from tinyproto.errors import TinyProtoError, WorkerError
from tinyproto.simulation.clients import PARTS
from tinyproto.workers.child import Child
from tinyproto.workers.handover import Handover
from tinyproto.workers.pipe import Parcel, pack_tensors, unpack_tensors


class WorkerPool:
    """Processes that each hold a share of the clients; close it, and they are gone."""

    def __init__(self, config: Mapping[str, Any], images: Images, count: int) -> None:
        dataset = Handover(images)
        self._workers = [_Process(index, config, dataset) for index in range(count)]

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.close()

    def begin(self, cell: int, samples: Sequence[int]) -> WorkerHost:
        """Have the clients of a cell built, dealt out by their number of training samples."""
        shares = deal(samples, len(self._workers))
        for worker, share in zip(self._workers, shares, strict=True):
            worker.ask(Parcel({"do": "begin", "cell": cell, "clients": share}))
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
        self._memory: dict[str, int] = {}

    def exchange(self, round_number: int, frames: Mapping[int, bytes]) -> Iterator[Reply]:
        """All workers at once; their answers worker by worker."""
        asked = [[client for client in share if client in frames] for share in self._shares]
        for worker, clients in zip(self._workers, asked, strict=True):
            head = {"do": "exchange", "round": round_number, "clients": clients}
            worker.ask(Parcel(head, [frames[client] for client in clients]))
        for worker, clients in zip(self._workers, asked, strict=True):
            for client in clients:
                parcel = worker.answer("client", f"client {client}")
                yield Reply(parcel.head["client"], parcel.blobs[0])
            report = worker.answer("exchange").head
            self._memory[worker.name] = report["memory"]
            for phase, value in report["seconds"].items():  # side by side: the slowest counts
                self._seconds[phase] = max(self._seconds.get(phase, 0.0), value)

    def snapshot(self, parts: Collection[str] = PARTS) -> Mapping[str, Tensor]:
        """All that changes of all clients, by name, in order of client."""
        tensors: dict[str, Tensor] = {}
        for worker in self._workers:
            worker.ask(Parcel({"do": "snapshot", "parts": list(parts)}))
        for worker in self._workers:
            tensors |= unpack_tensors(worker.answer("snapshot").blobs[0])
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Each worker gets its own clients'."""
        for worker, share in zip(self._workers, self._shares, strict=True):
            owners = {f"client/{client}" for client in share}
            mine = {name: value for name, value in tensors.items() if "/".join(name.split("/")[:2]) in owners}
            worker.ask(Parcel({"do": "restore"}, [pack_tensors(mine)]))
        for worker in self._workers:
            worker.answer("restore")

    def take_seconds(self) -> Mapping[str, float]:
        """Seconds per phase since last asked."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    def take_notes(self) -> list[str]:
        """None: workers train as the reference does."""
        return []

    def other_memory(self) -> int:
        """The workers' peaks together."""
        return sum(self._memory.values())


class _Process:
    """One worker process and what is expected of it."""

    def __init__(self, index: int, config: Mapping[str, Any], dataset: Handover) -> None:
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
        return WorkerError(f"{self.name} {end.words} {when}{end.last_words}; the run can be resumed")

    def close(self) -> None:
        """End it now."""
        self._child.close()
