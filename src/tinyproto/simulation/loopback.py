"""Where simulated clients live: behind a channel that also knows their state. In this process, or in workers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from tinyproto.engine.client import ClientRuntime, Steps
from tinyproto.engine.server import Channel, Reply
from tinyproto.errors import WireError
from tinyproto.simulation.client_store import ClientShelf
from tinyproto.simulation.clients import snapshot_clients
from tinyproto.storage.client_files import Stored


class ClientHost(Channel, Protocol):
    """A channel to simulated clients, whose state can be saved and put back."""

    def save(self) -> Mapping[int, Stored]:
        """Have all that changed on disk; where it lies, by client, for those that ever changed."""
        ...

    def restore(self, stored: Mapping[int, Stored]) -> None:
        """Put the clients where they were saved."""
        ...

    def snapshot(self, clients: Sequence[int], parts: Collection[str]) -> Mapping[str, Tensor]:
        """Some parts of what changes of some clients, by name."""
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

    def take_steps(self) -> Steps | None:
        """Steps of SGD since last asked; None where nobody counts them."""
        ...


class Loopback:
    """Clients in this process; as many as fit into memory are handed over at once, for a trainer to run together."""

    def __init__(self, clients: ClientRuntime, shelf: ClientShelf) -> None:
        self.clients = clients
        self.shelf = shelf

    def exchange(self, round_number: int, frames: Mapping[int, bytes]) -> Iterable[Reply]:  # noqa: ARG002
        """Deliver, and return the answers; a client whose training diverged has been put back."""
        for portion in self.shelf.portions(frames):
            left_out: dict[int, WireError] = {}
            with self.shelf.holding(portion):
                replies = self.clients.handle({client: frames[client] for client in portion}, left_out)
            if not self.shelf.has_room_for_all:
                self.clients.last_good.forget()
            for client, frame in replies.items():
                yield Reply(client, frame, left_out.get(client))

    def save(self) -> Mapping[int, Stored]:
        """Have all that changed on disk."""
        return self.shelf.save()

    def restore(self, stored: Mapping[int, Stored]) -> None:
        """Put the clients where they were saved."""
        self.shelf.restore(stored)

    def snapshot(self, clients: Sequence[int], parts: Collection[str]) -> Mapping[str, Tensor]:
        """Some parts of what changes of some clients, by name."""
        return dict(snapshot_clients((self.shelf[client] for client in clients), parts))

    def take_seconds(self) -> Mapping[str, float]:
        """Seconds per phase since last asked."""
        return self.clients.stopwatch.take()

    def other_memory(self) -> int:
        """None: all clients are in this process."""
        return 0

    def take_steps(self) -> Steps:
        """Taken and computed since last asked."""
        steps, self.clients.steps = self.clients.steps, Steps()
        return steps

    def take_notes(self) -> list[str]:
        """What the trainer has to say."""
        return _taken(self.clients.trainer.notes)


def _taken(notes: list[str]) -> list[str]:
    told = list(notes)
    notes.clear()
    return told
