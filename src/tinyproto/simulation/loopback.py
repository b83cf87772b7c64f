"""Where simulated clients live: behind a channel that also knows their state. In this process, or in workers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from torch import Tensor

from tinyproto.engine.client import ClientRuntime
from tinyproto.engine.server import Channel, Reply
from tinyproto.simulation.clients import PARTS, restore_clients, snapshot_clients


class ClientHost(Channel, Protocol):
    """A channel to simulated clients, whose state can be saved and put back."""

    def snapshot(self, parts: Collection[str] = PARTS) -> Mapping[str, Tensor]:
        """All that changes of all clients, or some parts of it, by name."""
        ...

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put the clients where a snapshot was taken."""
        ...

    def take_seconds(self) -> Mapping[str, float]:
        """Seconds per phase on the clients' side since last asked."""
        ...

    def other_memory(self) -> int:
        """Peak bytes of the other processes in which clients live."""
        ...

    def take_notes(self) -> list[str]:
        """What a user should know of how clients are trained, since last asked."""
        ...


class Loopback:
    """Clients in this process; all frames are handed over at once, so that a trainer may run clients together."""

    def __init__(self, clients: ClientRuntime) -> None:
        self.clients = clients

    def exchange(self, round_number: int, frames: Mapping[int, bytes]) -> Iterable[Reply]:  # noqa: ARG002
        """Deliver, and return the answers."""
        return [Reply(client, frame) for client, frame in self.clients.handle(frames).items()]

    def snapshot(self, parts: Collection[str] = PARTS) -> Mapping[str, Tensor]:
        """All that changes of all clients, by name."""
        return dict(snapshot_clients(self.clients.clients, parts))

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put the clients where a snapshot was taken."""
        restore_clients(self.clients.clients, tensors)

    def take_seconds(self) -> Mapping[str, float]:
        """Seconds per phase since last asked."""
        return self.clients.stopwatch.take()

    def other_memory(self) -> int:
        """None: all clients are in this process."""
        return 0

    def take_notes(self) -> list[str]:
        """What the trainer has to say."""
        return _taken(self.clients.trainer.notes)


def _taken(notes: list[str]) -> list[str]:
    told = list(notes)
    notes.clear()
    return told
