"""The store of simulated clients: each is built when first needed; beyond a memory budget, some go to disk."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tinyproto.algorithms.base import Client, ClientInfo
from tinyproto.builder import Setup
from tinyproto.data.dataset import CountedSamples, FederatedData
from tinyproto.engine.measure import Stopwatch
from tinyproto.errors import ClientStateError, one_line
from tinyproto.models import entry_name
from tinyproto.storage.client_files import ClientFiles, Stored, parts_of, put_back
from tinyproto.storage.tensor_files import digest

WHILE_TRAINING = 2
"""Memory that a client needs while it trains, in multiples of its size: gradients, and a copy (`engine/client.py`)."""

UNBOUNDED = math.inf
"""The budget without a limit."""


@dataclass(frozen=True)
class ClientBuilder:
    """Builds any client of a simulation at any time to the same bits."""

    setup: Setup
    data: FederatedData
    counted_samples: CountedSamples
    device: torch.device

    def kind(self, client: int) -> int:
        """Return the index of its network: client i has network i modulo their number."""
        return client % len(self.setup.spec.networks)

    def info(self, client: int) -> ClientInfo:
        """Return what it says of itself, without building its network."""
        counts = self._counts[client]
        samples = len(self.data.shares[client].train)
        return ClientInfo(client, samples, int(counts.sum()), int((counts > 0).sum()))

    def build(self, client: int) -> Client:
        """Build it as it is before round 1."""
        kind = self.kind(client)
        entry = self.setup.spec.networks[kind]
        architecture = entry if isinstance(entry, str) else (kind, entry_name(entry))
        samples = (self._placed.train(client), self._placed.test(client))
        return self.setup.new_client(client, entry, architecture, samples, self._counts[client])

    @cached_property
    def _counts(self) -> Tensor:
        return self.data.counted(self.counted_samples)

    @cached_property
    def _placed(self) -> FederatedData:
        return self.data.to(self.device)


@dataclass
class StoreCounts:
    """Counts of what a store has done so far."""

    built: int = 0  # clients made from their streams, including those read back
    read_back: int = 0
    written: int = 0


class ClientStore(Mapping[int, Client]):
    """Clients by id, in memory up to a budget in bytes.

    An unchanged client can be built again from its stream, so only what has changed is ever written. Results do not
    depend on the budget, nor on the order in which clients are used.
    """

    def __init__(
        self, ids: Iterable[int], builder: ClientBuilder, files: ClientFiles, budget: float, stopwatch: Stopwatch
    ) -> None:
        self.counts = StoreCounts()
        self.files = files
        self.budget = budget
        self._ids = tuple(sorted(ids))
        self._members = frozenset(self._ids)
        self._builder = builder
        self._stopwatch = stopwatch
        self._here: OrderedDict[int, Client] = OrderedDict()  # least recently used first
        self._unsaved: set[int] = set()  # used since they were built, read or written
        self._built: dict[int, dict[str, str]] = {}  # digests of the parts as built
        self._stored: dict[int, Stored] = {}
        self._in_use: frozenset[int] = frozenset()  # these stay in memory
        self._weights: dict[int, int] = {}  # bytes by kind
        self._used = 0
        self._training = 0  # bytes that clients in use may need to train

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
                self._free(self._weight(client))
                self._here[client] = self._fetch(client)
                self._used += self._weight(client)
        self._here.move_to_end(client)
        self._unsaved.add(client)
        return self._here[client]

    def info(self, client: int) -> ClientInfo:
        """Return what it says of itself, without building its network."""
        return self._builder.info(client)

    def total_size(self) -> int:
        """Return the bytes that all clients would take in memory."""
        return sum(map(self._weight, self._ids))

    @cached_property
    def holds_all(self) -> bool:
        """True if the budget holds all clients with what each needs to train."""
        return self.budget == UNBOUNDED or (1 + WHILE_TRAINING) * self.total_size() <= self.budget

    def portions(self, clients: Iterable[int]) -> Iterator[list[int]]:
        """Yield these clients in order of id, at least one at a time and as many as fit while they train."""
        portion: list[int] = []
        left: float = self.budget
        for client in sorted(clients):
            needed = (1 + WHILE_TRAINING) * self._weight(client)
            if portion and needed > left:
                yield portion
                portion, left = [], self.budget
            portion.append(client)
            left -= needed
        if portion:
            yield portion

    @contextmanager
    def holding(self, clients: Sequence[int]) -> Iterator[None]:
        """Keep these clients in memory while open."""
        self._in_use = frozenset(clients)
        self._training = WHILE_TRAINING * sum(map(self._weight, self._in_use))
        try:
            yield
        finally:
            self._in_use, self._training = frozenset(), 0

    def save(self) -> dict[int, Stored]:
        """Write what is not written yet; return the places of all parts that ever changed, for a checkpoint."""
        for client in sorted(self._unsaved):
            self._keep(client)
        self.files.claim()
        return {client: dict(stored) for client, stored in sorted(self._stored.items())}

    def restore(self, stored: Mapping[int, Stored]) -> None:
        """Set all clients to the state they had at `save`; ignore entries of clients that are not here."""
        self._here.clear()
        self._unsaved.clear()
        self._used = 0
        self._stored = {client: dict(parts) for client, parts in stored.items() if client in self._members}

    def _weight(self, client: int) -> int:
        """Return the bytes of a client, which are the same for all clients with its network."""
        kind = self._builder.kind(client)
        if kind not in self._weights:
            self._weights[kind] = memory_of(self._builder.build(client))
        return self._weights[kind]

    def _free(self, needed: int) -> None:
        """Move least recently used clients to disk until so many bytes are free beside what training needs."""
        while self._used + self._training + needed > self.budget:
            oldest = next((client for client in self._here if client not in self._in_use), None)
            if oldest is None:
                return
            try:
                self._keep(oldest)
            except ClientStateError as error:
                raise ClientStateError(f"{error}, or raise train.client_memory") from error
            del self._here[oldest]
            self._used -= self._weight(oldest)

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
        """Write the parts of a client that differ from how they were built or last written."""
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


def memory_of(client: Client) -> int:
    """Return the bytes of all that changes, including prototypes that are still to arrive."""
    parts = parts_of(client)
    values = [value for name in ("model", "modules", "state", "local") for value in parts[name].values()]
    return sum(value.numel() * value.element_size() for value in (*values, *parts["local"].values()))
