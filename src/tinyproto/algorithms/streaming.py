"""Aggregation of uploads as they arrive: one at a time, in memory that does not grow with their number.

It serves methods whose server needs only sums over clients. Parts of a round can be gathered separately, by edge
aggregators for example, and merged in any tree; `HolderSums` says how much that can change the result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinyproto.algorithms.base import ClientInfo, ServerSide
from tinyproto.core.prototypes import ClassSums, PackedRows, Prototypes
from tinyproto.core.task import State

UNIT_ROUNDOFF = 2.0**-53
"""u: the relative error of one addition in float64."""

_COUNTED_AT_ONCE = 256


class HolderSums:
    """Running sums over clients, one upload at a time, in memory O(K·w); two of them merge into one.

    Sums are float64. With m holders of a class, whose values of one dimension are x_1 … x_m, the sum is off by at most
    (m − 1)·u·Σ|x_i|, for any order of the uploads and any tree of merges; two orders differ by at most twice that.
    Rounding to float32 happens once, at the end. docs/explain/aggregation.md has the proof.
    """

    def __init__(self, num_classes: int, width: int) -> None:
        self.sums = torch.zeros(num_classes, width, dtype=torch.float64)
        self.lengths = torch.zeros(num_classes, dtype=torch.float64)  # Σ ‖row‖ of uploads that were measured
        self._holders = torch.zeros(num_classes, dtype=torch.int64)
        self._uncounted: list[NDArray[np.intp]] = []  # classes of uploads folded in since holders were last counted
        # The same memory for `fold`; a row as one value of 8·w bytes is put back twice as fast as w numbers.
        self._sums = self.sums.numpy()
        self._row_type = np.dtype((np.void, 8 * width))
        self._rows = self._sums.view(self._row_type)[:, 0]

    @property
    def holders(self) -> Tensor:
        """Return |N_j|, the number of uploads that held each class, (K,) int64."""
        if self._uncounted:
            counts = np.bincount(np.concatenate(self._uncounted), minlength=len(self._holders))
            self._holders += torch.from_numpy(counts)
            self._uncounted.clear()
        return self._holders

    @property
    def totals(self) -> ClassSums:
        """Return the sums with their holders."""
        return ClassSums(self.sums, self.holders)

    def add(self, upload: Prototypes) -> None:
        """Fold in one client's rows."""
        self.totals.add(upload)

    def fold(self, upload: PackedRows) -> None:
        """Fold in rows as they travel, equal to `add` bit for bit: gather the rows, add to them, put them back."""
        _, classes, values = upload
        rows = self._sums.take(classes, 0)
        rows += values  # as float64
        self._rows[classes] = rows.view(self._row_type)[:, 0]
        self._uncounted.append(classes)
        if len(self._uncounted) == _COUNTED_AT_ONCE:
            _ = self.holders

    def measure(self, upload: PackedRows) -> float:
        """Add the lengths of an upload's rows by class; return their sum."""
        lengths = np.sqrt(np.einsum("nw,nw->n", upload.values, upload.values, dtype=np.float64))
        self.lengths.numpy()[upload.classes] += lengths
        return float(lengths.sum())

    def merge(self, other: HolderSums) -> None:
        """Fold in the sums of another accumulator."""
        if self.sums.shape != other.sums.shape:
            shapes = " and ".join(" × ".join(map(str, part.sums.shape)) for part in (self, other))
            raise ValueError(f"sums of {shapes} do not merge")
        self.sums += other.sums
        self.lengths += other.lengths
        self._holders += other.holders

    def bound(self, magnitudes: Tensor) -> Tensor:
        """Return (m − 1)·u·Σ|x_i|, the largest error of `sums`, (K, w), given Σ|x_i| (K, w) in float64."""
        return (self.holders - 1).clamp_min(0).unsqueeze(1) * UNIT_ROUNDOFF * magnitudes


class Gathered:
    """The uploads of a round as a server remembers them: their sums by class, and the sizes of their senders.

    If uploads are `measured`, the lengths of their rows are added up too, and the senders are kept.
    """

    def __init__(self, num_classes: int, width: int, *, measured: bool = False) -> None:
        self.sums = HolderSums(num_classes, width)
        self.measured = measured
        self.clients: list[int] = []  # the senders of measured uploads
        self.mean_lengths: list[float] = []  # by client: Σ_j ‖n_ij ĉ_ij‖ / n_i, the mean length of its prototypes
        self.uploads = 0
        self.counted_samples = 0  # Σ n_i
        self.counted_classes = 0  # Σ K_i

    def add(self, client: ClientInfo, rows: PackedRows | Prototypes) -> None:
        """Fold in one upload."""
        packed = rows if isinstance(rows, PackedRows) else rows.packed()
        self.sums.fold(packed)
        if self.measured:
            self.clients.append(client.id)
            self.mean_lengths.append(self.sums.measure(packed) / max(client.counted_samples, 1))
        self.uploads += 1
        self.counted_samples += client.counted_samples
        self.counted_classes += client.counted_classes

    def merge(self, other: Gathered) -> None:
        """Fold in what was gathered elsewhere, from other clients of the same round."""
        self.sums.merge(other.sums)
        self.clients += other.clients
        self.mean_lengths += other.mean_lengths
        self.uploads += other.uploads
        self.counted_samples += other.counted_samples
        self.counted_classes += other.counted_classes


class OrderedUploads:
    """Folds uploads in order of client id, whatever order they arrive in, so that a run repeats to the bit.

    Early uploads are buffered; an in-order channel needs no buffer, so memory does not grow with the clients.
    """

    def __init__(self, clients: Iterable[ClientInfo], gathered: Gathered) -> None:
        self.gathered = gathered
        self._due = deque(sorted(clients, key=lambda client: client.id))
        self._early: dict[int, PackedRows | None] = {}

    def add(self, client: int, rows: PackedRows | None) -> None:
        """Take a client's rows, or None from a client that sent none or was refused."""
        self._early[client] = rows
        while self._due and self._due[0].id in self._early:
            self._fold(self._due.popleft())

    def close(self) -> Gathered:
        """Fold in the uploads that still wait for a client that did not answer; return everything gathered."""
        for client in self._due:
            self._fold(client)
        self._due.clear()
        return self.gathered

    def _fold(self, client: ClientInfo) -> None:
        rows = self._early.pop(client.id, None)
        if rows is not None:
            self.gathered.add(client, rows)


@runtime_checkable
class StreamingSide(ServerSide, Protocol):
    """A server side that works without `aggregate`: it gathers uploads as they arrive and concludes the round."""

    def gather(self) -> Gathered:
        """Return an empty accumulator for the uploads of a round."""
        ...

    def conclude(self, state: State, gathered: Gathered) -> State:
        """Return the next state from everything gathered: equal to `aggregate` of the same uploads."""
        ...
