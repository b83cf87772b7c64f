"""Defences against well-formed poison: a server side that looks at all uploads before the method sees them.

A defence is a wrapper around any `ServerSide`. It holds the uploads of a round against each other and hands on those
that it trusts (`guard`, `krum`), or the same number of robust ones (`median`, `trimmed_mean`). It needs all uploads at
once, so it ends streaming. docs/security.md has what each can and cannot do, measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from tinyproto.algorithms.base import Algorithm, ClientInfo, Round, ServerSide, Update
from tinyproto.core import robust
from tinyproto.core.messages import Message
from tinyproto.core.prototypes import Prototypes
from tinyproto.core.streams import Streams
from tinyproto.core.task import State, Trainer

DefenceName = Literal["none", "guard", "median", "trimmed_mean", "krum"]


@dataclass(frozen=True)
class Defence:
    """What the server believes of clients, and which defence it has."""

    name: DefenceName = "none"
    tolerance: float = 3.0  # guard: times the typical distance from a class's centre
    hostile: float = 0.2  # trimmed_mean, krum: share of the clients that may be hostile
    size_ratio: float | None = None  # no size that a client claims counts as more than so many times the median

    def check_clients(self, clients: int) -> None:
        """Raise a ValueError where rounds of so many clients are too small for Krum."""
        hostile = int(self.hostile * clients)
        if self.name == "krum" and clients < 2 * hostile + 3:
            raise ValueError(
                f"robust.defence krum with f = {hostile} hostile clients needs rounds of at least 2f + 3 = "
                f"{2 * hostile + 3} clients, not {clients}; use guard or median, or more clients a round"
            )


class DefendedServer:
    """A server side that is given what a defence made of the uploads."""

    def __init__(self, side: ServerSide, defence: Defence, scaled: bool) -> None:
        self.side = side
        self.defence = defence
        self.scaled = scaled  # whether rows are prototypes times n_ij
        self.distrusted: dict[int, int] = {}  # rows (or networks) of the last round that were not handed on, by client

    def init(self, streams: Streams) -> State:
        """The method's own."""
        return self.side.init(streams)

    def broadcast(self, state: State, client: ClientInfo) -> Message:
        """The method's own."""
        return self.side.broadcast(state, client)

    def aggregate(
        self, state: State, updates: Sequence[Update], trainer: Trainer, round_: Round, streams: Streams
    ) -> State:
        """Aggregate what the defence leaves of the uploads."""
        defended = self.defend(updates)
        before = {update.client.id: _size(update.message) for update in updates}
        after = {update.client.id: _size(update.message) for update in defended}
        lost = {client: size - after.get(client, 0) for client, size in before.items()}
        self.distrusted = {client: rows for client, rows in lost.items() if rows}
        return self.side.aggregate(state, defended, trainer, round_, streams)

    def defend(self, updates: Sequence[Update]) -> Sequence[Update]:
        """Return the uploads to aggregate: trusted ones as they are, or robust ones in their place."""
        sent = [update for update in updates if update.message.rows is not None or update.message.tensors]
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
        """Return the rows of the M − f most central clients; of nobody in a round with fewer than 2f + 3."""
        clients = len(stack.updates)
        hostile = int(self.defence.hostile * clients)
        if clients < 2 * hostile + 3:
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
    plain: Tensor  # (M, K, w) without what n_ij explains

    @classmethod
    def of(cls, updates: Sequence[Update], scaled: bool) -> _Stack:
        """Stack rows, or networks whose tensors all have the same names and shapes."""
        rows = [update.message.rows for update in updates]
        if all(own is not None for own in rows):
            values = torch.stack([own.values.double() for own in rows if own is not None])
            present = torch.stack([own.present for own in rows if own is not None])
            values = torch.where(present.unsqueeze(2), values, torch.zeros_like(values))
        else:
            flat = [torch.cat([value.reshape(-1) for value in _ordered(update.message)]) for update in updates]
            values = torch.stack(flat).double().unsqueeze(1)
            present = torch.ones(len(updates), 1, dtype=torch.bool)
        counts = torch.tensor([float(update.client.counted_samples) for update in updates], dtype=torch.float64)
        return cls(updates, values, present, robust.unscaled(values, present, counts) if scaled else values)

    def chosen(self, kept: Tensor) -> list[Update]:
        """Return the uploads with the rows `kept` (M, K) alone; those without any are gone."""
        return [
            self._with(update, self.values[place], kept[place])
            for place, update in enumerate(self.updates)
            if bool(kept[place].any())
        ]

    def replaced(self, centre: Tensor) -> list[Update]:
        """Return the uploads with `centre` (K, w) in place of every row, as long as its share of n_i says."""
        lengths = robust.row_lengths(self.values, self.present) / robust.row_lengths(self.plain, self.present)
        factors = lengths.nan_to_num(posinf=0.0).unsqueeze(2)  # (M, K, 1): n_ij, or 1 where rows are not scaled
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
    """How many rows, or networks, an upload holds."""
    return int(message.rows.present.sum()) if message.rows is not None else int(bool(message.tensors))


def defended(algorithm: Algorithm, defence: Defence) -> ServerSide:
    """Return the algorithm's server side behind a defence; its own where there is none.

    Raises a ValueError where the defence cannot look into what this algorithm exchanges.
    """
    if defence.name == "none" or (algorithm.row_width is None and not algorithm.tensor_shapes):
        return algorithm.server
    if algorithm.tensor_parts:
        raise ValueError(
            f"robust.defence {defence.name} compares uploads value by value, and {algorithm.name} may send a network "
            "in factors of varying size; use `none`"
        )
    return DefendedServer(algorithm.server, defence, scaled=algorithm.agreed.get("scaling") == "count")


def sizes_capped(infos: Mapping[int, ClientInfo], ratio: float | None) -> Mapping[int, ClientInfo]:
    """Return what clients said of themselves, no size above `ratio` times the median client's.

    Sizes weigh uploads and set μ, and nobody can check them: a lie counts as the largest size that is believed.
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
