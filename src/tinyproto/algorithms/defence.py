"""Defences against hostile uploads that are well-formed: a server side that checks all uploads before the method.

A defence wraps any `ServerSide`. It compares the uploads of a round and passes on those that it trusts (`guard`,
`krum`), or as many robust ones (`median`, `trimmed_mean`). It needs all uploads at once, so there is no streaming.
docs/explain/hostile_clients.md has measurements of what each defence can and cannot do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from tinyproto.algorithms.base import Algorithm, ClientInfo, Round, ServerSide, Update
from tinyproto.core import robust
from tinyproto.core.prototypes import AtMost, Message, Prototypes
from tinyproto.core.streams import Streams
from tinyproto.core.task import State, Trainer

DefenceName = Literal["none", "guard", "median", "trimmed_mean", "krum"]


@dataclass(frozen=True)
class Defence:
    """The server's defence, and how far it believes the sizes that clients report."""

    name: DefenceName = "none"
    tolerance: float = 3.0  # guard: in typical distances from a class's centre
    hostile: float = 0.2  # trimmed_mean, krum: share of the clients that may be hostile
    size_ratio: float | None = None  # a size that a client reports counts as at most this many times the median

    def check_clients(self, clients: int) -> None:
        """Raise a ValueError if rounds of this many clients are too small for Krum."""
        hostile = int(self.hostile * clients)
        if self.name == "krum" and not enough_for_krum(clients, hostile):
            raise ValueError(
                f"robust.defence krum with f = {hostile} hostile clients needs rounds of at least 2f + 3 = "
                f"{2 * hostile + 3} clients, not {clients}; use guard or median, or more clients a round"
            )


def enough_for_krum(clients: int, hostile: int) -> bool:
    """Return True if Krum can withstand f hostile clients among these: it needs 2f + 3."""
    return clients >= 2 * hostile + 3


class DefendedServer:
    """A server side that receives uploads through a defence."""

    def __init__(self, side: ServerSide, defence: Defence, *, by_rows: bool, scaled: bool) -> None:
        self.side = side
        self.defence = defence
        self.by_rows = by_rows  # True if clients send rows, whatever else the server may send
        self.scaled = scaled  # True if rows are prototypes times n_ij
        self.distrusted: dict[int, int] = {}  # rows (or networks) of the last round that were not passed on, by client

    def init(self, streams: Streams) -> State:
        """Return the method's state before round 1."""
        return self.side.init(streams)

    def broadcast(self, state: State, client: ClientInfo) -> Message:
        """Return what the method sends."""
        return self.side.broadcast(state, client)

    def aggregate(
        self, state: State, updates: Sequence[Update], trainer: Trainer, round_: Round, streams: Streams
    ) -> State:
        """Aggregate the uploads that the defence passes on."""
        defended = self.defend(updates)
        before = {update.client.id: _size(update.message) for update in updates}
        after = {update.client.id: _size(update.message) for update in defended}
        lost = {client: size - after.get(client, 0) for client, size in before.items()}
        self.distrusted = {client: rows for client, rows in lost.items() if rows}
        return self.side.aggregate(state, defended, trainer, round_, streams)

    def defend(self, updates: Sequence[Update]) -> Sequence[Update]:
        """Return the uploads to aggregate: trusted ones as they are, or robust ones instead of them."""
        sent = [
            update
            for update in updates
            if (update.message.rows is not None if self.by_rows else bool(update.message.tensors))
        ]
        if not sent:
            return updates
        stack = _Stack.of(sent, self.scaled)
        match self.defence.name:
            case "none":
                return updates
            case "guard":
                return stack.chosen(robust.trusted(stack.plain, stack.present, self.defence.tolerance))
            case "krum":
                return stack.chosen(self._central(stack))
            case "median":
                return stack.replaced(robust.coordinate_median(stack.plain, stack.present))
            case "trimmed_mean":
                return stack.replaced(robust.trimmed_mean(stack.plain, stack.present, self.defence.hostile))

    def _central(self, stack: _Stack) -> Tensor:
        """Return the rows of the M − f most central clients, or none if too few clients answered."""
        clients = len(stack.updates)
        hostile = int(self.defence.hostile * clients)
        if not enough_for_krum(clients, hostile):
            return torch.zeros_like(stack.present)
        central = torch.zeros(clients, dtype=torch.bool)
        central[robust.krum_order(stack.plain, stack.present, hostile)[: clients - hostile]] = True
        return stack.present & central.unsqueeze(1)


@dataclass(frozen=True)
class _Stack:
    """The uploads of a round as one tensor; a network is one row."""

    updates: Sequence[Update]
    values: Tensor  # (M, K, w) as sent, float64
    present: Tensor  # (M, K) bool
    plain: Tensor  # (M, K, w) without n_ij

    @classmethod
    def of(cls, updates: Sequence[Update], scaled: bool) -> _Stack:
        """Stack rows, or networks whose tensors have the same names and shapes."""
        rows = [update.message.rows for update in updates]
        if all(sent is not None for sent in rows):
            values = torch.stack([sent.values.double() for sent in rows if sent is not None])
            present = torch.stack([sent.present for sent in rows if sent is not None])
            values = torch.where(present.unsqueeze(2), values, torch.zeros_like(values))
        else:
            flat = [torch.cat([value.reshape(-1) for value in _ordered(update.message)]) for update in updates]
            values = torch.stack(flat).double().unsqueeze(1)
            present = torch.ones(len(updates), 1, dtype=torch.bool)
        counts = torch.tensor([float(update.client.counted_samples) for update in updates], dtype=torch.float64)
        return cls(updates, values, present, robust.unscaled(values, present, counts) if scaled else values)

    def chosen(self, kept: Tensor) -> list[Update]:
        """Return the uploads with only the rows `kept` (M, K); uploads without rows are left out."""
        return [
            self._with(update, self.values[place], kept[place])
            for place, update in enumerate(self.updates)
            if bool(kept[place].any())
        ]

    def replaced(self, centre: Tensor) -> list[Update]:
        """Return the uploads with `centre` (K, w) in place of each row, times the n_ij that its length implies."""
        lengths = robust.row_lengths(self.values, self.present) / robust.row_lengths(self.plain, self.present)
        factors = lengths.nan_to_num(posinf=0.0).unsqueeze(2)  # (M, K, 1): n_ij, or 1 if rows are not scaled
        return [
            self._with(update, centre * factors[place], self.present[place])
            for place, update in enumerate(self.updates)
        ]

    def _with(self, update: Update, values: Tensor, present: Tensor) -> Update:
        message = update.message
        if message.rows is not None:
            rows = Prototypes((values * present.unsqueeze(1)).float(), present)
            return update._replace(message=replace(message, rows=rows))
        tensors, start = {}, 0
        for name, tensor in sorted(message.tensors.items()):
            tensors[name] = values[0, start : start + tensor.numel()].view(tensor.shape).float()
            start += tensor.numel()
        return update._replace(message=replace(message, tensors=tensors))


def _ordered(message: Message) -> list[Tensor]:
    return [tensor for _, tensor in sorted(message.tensors.items())]


def _size(message: Message) -> int:
    """Return how many rows, or networks, an upload holds."""
    return int(message.rows.present.sum()) if message.rows is not None else int(bool(message.tensors))


def is_comparable(algorithm: Algorithm) -> bool:
    """Return True if all uploads of an algorithm have the same shapes, so that a defence can compare their values."""
    return not any(isinstance(size, AtMost) for shape in algorithm.tensor_shapes.values() for size in shape)


def defended(algorithm: Algorithm, defence: Defence) -> ServerSide:
    """Return the algorithm's server side behind a defence, or the server side itself if there is none.

    Raise a ValueError if the defence cannot compare what this algorithm exchanges.
    """
    if defence.name == "none" or (algorithm.row_width is None and not algorithm.tensor_shapes):
        return algorithm.server
    if not is_comparable(algorithm):
        raise ValueError(
            f"robust.defence {defence.name} compares uploads value by value, and {algorithm.name} may send tensors of "
            "varying size; use `none`"
        )
    scaled = algorithm.agreed.get("scaling") == "count"
    return DefendedServer(algorithm.server, defence, by_rows=algorithm.row_width is not None, scaled=scaled)


def sizes_capped(infos: Mapping[int, ClientInfo], ratio: float | None) -> Mapping[int, ClientInfo]:
    """Return what clients reported, with no size above `ratio` times the median client's.

    Sizes weigh uploads and set μ, and the server cannot check them: a false size counts as the largest one believed.
    """
    if ratio is None or not infos:
        return infos
    train, counted = (
        max(int(ratio * float(torch.tensor(sizes, dtype=torch.float64).quantile(0.5))), 1)
        for sizes in zip(*((info.train_samples, info.counted_samples) for info in infos.values()), strict=True)
    )
    return {
        client: info
        if info.train_samples <= train and info.counted_samples <= counted
        else replace(
            info,
            train_samples=min(info.train_samples, train),
            counted_samples=max(min(info.counted_samples, counted), info.counted_classes),
        )
        for client, info in infos.items()
    }
