"""The server's aggregation of uploads: sums and means over the clients that hold a class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinyproto.core.prototypes import ClassSums, PackedRows, Prototypes

UNIT_ROUNDOFF = 2.0**-53
"""u: the relative error of one addition in float64."""

_COUNTED_AT_ONCE = 256


class HolderSums:
    """Running sums over clients, one upload at a time, in memory O(K·w); two of them merge into one.

    Accumulates in float64. With m holders of a class, whose values of one dimension are x_1 … x_m, the sum is off by at
    most (m − 1)·u·Σ|x_i|, in whatever order uploads were folded in and in whatever tree parts of them were merged; two
    orders differ by at most twice that. Rounding to float32 comes once, at the end. docs/scale.md has the proof.
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
        """|N_j|: how many uploads held each class, (K,) int64."""
        if self._uncounted:
            counts = np.bincount(np.concatenate(self._uncounted), minlength=len(self._holders))
            self._holders += torch.from_numpy(counts)
            self._uncounted.clear()
        return self._holders

    def add(self, upload: Prototypes) -> None:
        """Fold in one client's rows; its absent classes add exactly nothing."""
        present = upload.present.cpu()
        self.sums[present] += upload.values.cpu()[present].double()
        self._holders += present

    def fold(self, upload: PackedRows) -> None:
        """`add`, to the bit, for rows as they travel: the rows concerned are gathered, added to and put back."""
        _, classes, values = upload
        rows = self._sums.take(classes, 0)
        rows += values  # as float64
        self._rows[classes] = rows.view(self._row_type)[:, 0]
        self._uncounted.append(classes)
        if len(self._uncounted) == _COUNTED_AT_ONCE:
            _ = self.holders

    def measure(self, upload: PackedRows) -> float:
        """Add up the lengths of an upload's rows by class; return their sum."""
        lengths = np.sqrt(np.einsum("nw,nw->n", upload.values, upload.values, dtype=np.float64))
        self.lengths.numpy()[upload.classes] += lengths
        return float(lengths.sum())

    def merge(self, other: HolderSums) -> None:
        """Fold in what another accumulator has gathered."""
        if self.sums.shape != other.sums.shape:
            shapes = " and ".join(" × ".join(map(str, part.sums.shape)) for part in (self, other))
            raise ValueError(f"sums of {shapes} do not merge")
        self.sums += other.sums
        self.lengths += other.lengths
        self._holders += other.holders

    def sum(self) -> Prototypes:
        """Σ over N_j, the clients holding class j."""
        return Prototypes(self.sums.float(), self.holders > 0)

    def mean(self) -> Prototypes:
        """1/|N_j| Σ over N_j."""
        means = ClassSums(self.sums, self.holders).means()
        return Prototypes(means.values.float(), means.present)

    def bound(self, magnitudes: Tensor) -> Tensor:
        """(m − 1)·u·Σ|x_i|, how far `sums` can be from the exact ones, (K, w), given Σ|x_i| (K, w) in float64."""
        return (self.holders - 1).clamp_min(0).unsqueeze(1) * UNIT_ROUNDOFF * magnitudes


class RunningSums:
    """Sums of count-scaled rows over the rounds, and of their lengths, by class.

    A round in which a share ρ of the clients takes part replaces as much of the sums: with everybody it starts anew,
    and with few it keeps what the others sent before.
    """

    def __init__(self, sums: Tensor, lengths: Tensor, seen: Tensor) -> None:
        self.sums = sums  # (K, w) float64: Σ_i n_ij ĉ_ij
        self.lengths = lengths  # (K,) float64: Σ_i ‖n_ij ĉ_ij‖
        self.seen = seen  # (largest id + 1,) bool: who ever sent an upload

    def after(self, round_sums: HolderSums, clients: Sequence[int]) -> RunningSums:
        """Return the sums after a round, given its own and the clients that sent uploads."""
        seen = torch.zeros(max(len(self.seen), max(clients) + 1), dtype=torch.bool)
        seen[: len(self.seen)] = self.seen
        seen[list(clients)] = True
        kept = 1.0 - len(clients) / int(seen.sum())
        return RunningSums(kept * self.sums + round_sums.sums, kept * self.lengths + round_sums.lengths, seen)


Uploads = Iterable[Prototypes] | HolderSums
"""All uploads, or what they came to where they were folded in as they arrived."""


def _folded(uploads: Uploads) -> HolderSums:
    if isinstance(uploads, HolderSums):
        return uploads
    folded: HolderSums | None = None
    for upload in uploads:
        if folded is None:
            folded = HolderSums(upload.num_classes, upload.width)
        folded.add(upload)
    if folded is None:
        raise ValueError("nothing to aggregate")
    return folded


def simple_mean(prototypes: Uploads) -> Prototypes:
    """Global prototypes c̄ᴳ_j, eq. (9): every holder of a class weighs the same."""
    return _folded(prototypes).mean()


def count_scaled_mean(scaled: Uploads) -> Prototypes:
    """Global prototypes ĉᴳ_j, eq. (10): 1/|N_j| Σ n_ij ĉ_ij, of uploads that are already n_ij ĉ_ij."""
    return _folded(scaled).mean()


def count_scaled_sum(scaled: Uploads) -> Prototypes:
    """Σ n_ij ĉ_ij, the rule behind the paper's tables: times κ / Σ_i n_ij it is κ times the weighted mean."""
    return _folded(scaled).sum()


def weighed_mean(sums: Tensor, lengths: Tensor, typical: float, present: Tensor) -> Prototypes:
    """Return ℓ · Σ_i n_ij ĉ_ij / Σ_i ‖n_ij ĉ_ij‖, (K, w) over (K,), of the classes present.

    Where all prototypes of a class have the length ℓ, Σ_i ‖n_ij ĉ_ij‖ = ℓ Σ_i n_ij over who sent it, so this is their
    mean weighted by n_ij, and no n_ij is needed. It is never longer than ℓ, and zero where all rows are zero.
    """
    factors = torch.where(lengths > 0, typical / lengths, torch.zeros_like(lengths))
    return Prototypes((sums * factors.unsqueeze(1)).float() * present.unsqueeze(1), present)


def keep_last(new: Prototypes, last: Prototypes) -> Prototypes:
    """A class nobody sent this round keeps its last value."""
    values = torch.where(new.present.unsqueeze(1), new.values, last.values)
    return Prototypes(values, new.present | last.present)


def stack_rows(uploads: Iterable[Prototypes]) -> tuple[Tensor, Tensor]:
    """All rows present, client after client, with their classes: values (N, w) and labels (N,)."""
    uploads = list(uploads)
    values = torch.cat([upload.values[upload.present] for upload in uploads])
    labels = torch.cat([upload.present.nonzero().squeeze(1) for upload in uploads])
    return values, labels


def tensor_mean(uploads: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    """Σ_i w_i·θ_i / Σ_i w_i, tensor by tensor in float64; all alike where the weights add up to nothing."""
    total = float(sum(weights))
    shares = [weight / total if total else 1 / len(weights) for weight in weights]
    means = {}
    for name, first in uploads[0].items():
        mean = torch.zeros(first.shape, dtype=torch.float64)
        for upload, share in zip(uploads, shares, strict=True):
            mean += upload[name].double() * share
        means[name] = mean.float()
    return means
