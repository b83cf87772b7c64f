"""The shelf of clients: each is built when first asked for; beyond a budget the longest unused ones go to disk."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from tinyproto.algorithms.base import Client, ClientInfo
from tinyproto.engine.measure import Stopwatch
from tinyproto.errors import ClientStateError, one_line
from tinyproto.simulation.clients import ClientBuilder, drop_gradients, memory_of, parts_of, put_back
from tinyproto.storage.client_files import ClientFiles, Stored
from tinyproto.storage.tensor_files import digest

WHILE_TRAINING = 3
"""Times its own size that a client needs while it trains: gradients, and two copies (`engine/client.py`)."""


@dataclass
class ShelfCounts:
    """What a shelf has done so far."""

    built: int = 0  # clients made from their streams, those read back included
    read_back: int = 0
    written: int = 0


class ClientShelf(Mapping[int, Client]):
    """Clients by id, in memory up to a budget in bytes.

    A client is a function of its stream until something changes it, so only what has changed is ever written, and a
    client that nobody changed needs no file. Results do not depend on the budget, or on who was asked for when.
    """

    def __init__(
        self, ids: Iterable[int], builder: ClientBuilder, files: ClientFiles, budget: float, stopwatch: Stopwatch
    ) -> None:
        self.counts = ShelfCounts()
        self.files = files
        self.budget = budget
        self._ids = tuple(sorted(ids))
        self._members = frozenset(self._ids)
        self._builder = builder
        self._stopwatch = stopwatch
        self._here: OrderedDict[int, Client] = OrderedDict()  # the longest unused first
        self._unsaved: set[int] = set()  # asked for since they were built, read or written
        self._built: dict[int, dict[str, str]] = {}  # digests of the parts as built
        self._stored: dict[int, Stored] = {}
        self._in_hand: frozenset[int] = frozenset()
        self._weights: dict[int, int] = {}  # bytes by kind
        self._used = 0
        self._training = 0  # bytes that those in hand may come to need

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)

    def __contains__(self, client: object) -> bool:
        return client in self._members

    def __getitem__(self, client: int) -> Client:
        if client not in self._members:
            raise KeyError(client)
        if client not in self._here:
            with self._stopwatch.phase("clients"):
                self._make_room(self._weight(client))
                self._here[client] = self._fetch(client)
                self._used += self._weight(client)
        self._here.move_to_end(client)
        self._unsaved.add(client)
        return self._here[client]

    def info(self, client: int) -> ClientInfo:
        """What it says of itself, which takes no network."""
        return self._builder.info(client)

    def whole_size(self) -> int:
        """Bytes that all clients would take in memory."""
        return sum(map(self._weight, self._ids))

    @cached_property
    def has_room_for_all(self) -> bool:
        """Whether the budget holds all clients with what each needs to train."""
        return self.budget == UNBOUNDED or (1 + WHILE_TRAINING) * self.whole_size() <= self.budget

    def portions(self, clients: Iterable[int]) -> Iterator[list[int]]:
        """These clients in order of id, as many at a time as fit into the budget with all that training takes.

        At least one.
        """
        portion: list[int] = []
        room: float = self.budget
        for client in sorted(clients):
            needed = (1 + WHILE_TRAINING) * self._weight(client)
            if portion and needed > room:
                yield portion
                portion, room = [], self.budget
            portion.append(client)
            room -= needed
        if portion:
            yield portion

    @contextmanager
    def holding(self, clients: Sequence[int]) -> Iterator[None]:
        """While open, these clients stay once they are asked for; afterwards their gradients are gone."""
        self._in_hand = frozenset(clients)
        self._training = WHILE_TRAINING * sum(map(self._weight, self._in_hand))
        try:
            yield
        finally:
            for client in self._in_hand & self._here.keys():
                drop_gradients(self._here[client])
            self._in_hand, self._training = frozenset(), 0

    def save(self) -> dict[int, Stored]:
        """Write what is not written yet; where the parts of every client lie that ever changed, for a checkpoint."""
        for client in sorted(self._unsaved):
            self._keep(client)
        self.files.claim()
        return {client: dict(stored) for client, stored in sorted(self._stored.items())}

    def restore(self, stored: Mapping[int, Stored]) -> None:
        """Put all clients where `save` was called; what is told of other clients is passed over."""
        self._here.clear()
        self._unsaved.clear()
        self._used = 0
        self._stored = {client: dict(parts) for client, parts in stored.items() if client in self._members}

    def _weight(self, client: int) -> int:
        """Bytes of a client, the same for all with its network."""
        kind = self._builder.kind(client)
        if kind not in self._weights:
            self._weights[kind] = memory_of(self._builder.build(client))
        return self._weights[kind]

    def _make_room(self, needed: int) -> None:
        """Send away the longest unused until so many bytes are free, beside what those in hand need to train."""
        while self._used + self._training + needed > self.budget:
            longest = next((client for client in self._here if client not in self._in_hand), None)
            if longest is None:
                return
            try:
                self._keep(longest)
            except ClientStateError as error:
                raise ClientStateError(f"{error}, or raise train.client_memory") from error
            del self._here[longest]
            self._used -= self._weight(longest)

    def _fetch(self, client: int) -> Client:
        built = self._builder.build(client)
        self.counts.built += 1
        if client not in self._built:
            self._built[client] = {part: digest(tensors) for part, tensors in parts_of(built).items()}
        if client in self._stored:
            parts = self.files.get(client, self._stored[client])
            try:
                put_back(built, parts)
            except (RuntimeError, KeyError, TypeError) as error:
                raise ClientStateError(
                    f"the state of client {client} does not fit this run: {one_line(error)}"
                ) from error
            self.counts.read_back += 1
        return built

    def _keep(self, client: int) -> None:
        """Write those parts of a client that are not what they were built or last written as."""
        if client not in self._unsaved:
            return
        parts = parts_of(self._here[client])
        stored = self._stored.get(client, {})
        known = self._built[client] | {part: place.digest for part, place in stored.items()}
        digests = {part: digest(tensors) for part, tensors in parts.items()}
        changed = {part: tensors for part, tensors in parts.items() if digests[part] != known[part]}
        if changed:
            self._stored[client] = {**stored, **self.files.put(client, changed, digests)}
            current = {place.file for place in self._stored[client].values()}
            self.files.forget({place.file for place in stored.values()} - current)
            self.counts.written += 1
        self._unsaved.discard(client)


UNBOUNDED = math.inf
"""The budget that is never used up."""
