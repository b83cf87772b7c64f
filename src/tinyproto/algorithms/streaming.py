"""Aggregation of uploads as they arrive: one at a time, in memory that does not grow with their number.

For methods whose server needs sums over clients and nothing else of an upload. Parts of a round can be gathered apart,
by edge aggregators say, and merged in any tree; `HolderSums` says by how much that can change the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from tinyproto.algorithms.base import ClientInfo, ServerSide
from tinyproto.core.aggregate import HolderSums
from tinyproto.core.prototypes import PackedRows, Prototypes
from tinyproto.core.task import State


class Gathered:
    """What a server remembers of the uploads of a round: their sums by class, and the sizes of who sent them.

    Where uploads are `measured`, the lengths of their rows are added up, too, and who sent them is kept.
    """

    def __init__(self, num_classes: int, width: int, *, measured: bool = False) -> None:
        self.sums = HolderSums(num_classes, width)
        self.measured = measured
        self.clients: list[int] = []  # who sent uploads, where these are measured
        self.mean_lengths: list[float] = []  # by client: Σ_j ‖n_ij ĉ_ij‖ / n_i, the mean length of its prototypes
        self.uploads = 0
        self.counted_samples = 0  # Σ n_i
        self.counted_classes = 0  # Σ K_i

    def add(self, client: ClientInfo, rows: PackedRows | Prototypes) -> None:
        """Fold in one upload."""
        if isinstance(rows, PackedRows):
            self.sums.fold(rows)
        else:
            self.sums.add(rows)
        if self.measured:
            length = self.sums.measure(rows if isinstance(rows, PackedRows) else rows.packed())
            self.clients.append(client.id)
            self.mean_lengths.append(length / max(client.counted_samples, 1))
        self.uploads += 1
        self.counted_samples += client.counted_samples
        self.counted_classes += client.counted_classes

    def merge(self, other: Gathered) -> None:
        """Fold in what was gathered elsewhere, of other clients of the same round."""
        self.sums.merge(other.sums)
        self.clients += other.clients
        self.mean_lengths += other.mean_lengths
        self.uploads += other.uploads
        self.counted_samples += other.counted_samples
        self.counted_classes += other.counted_classes


def merge_tree(parts: Sequence[Gathered]) -> Gathered:
    """All parts as one, merged pair by pair, level by level; the first of each pair takes the second in."""
    if not parts:
        raise ValueError("nothing to merge")
    while len(parts) > 1:
        for left, right in zip(parts[::2], parts[1::2], strict=False):
            left.merge(right)
        parts = parts[::2]
    return parts[0]


@runtime_checkable
class StreamingSide(ServerSide, Protocol):
    """A server side that can do without `aggregate`: it gathers uploads as they arrive, and concludes the round."""

    def gather(self) -> Gathered:
        """Nothing gathered yet."""
        ...

    def conclude(self, state: State, gathered: Gathered) -> State:
        """The next state from all that was gathered: what `aggregate` would make of the same uploads."""
        ...
