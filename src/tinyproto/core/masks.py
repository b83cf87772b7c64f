"""CPS masks: which s of the d dimensions each class owns.

They are found by integer arithmetic in a fixed number of steps. So they are equal on every machine and release, and
never travel.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MaskKind = Literal["balanced", "random", "blocks"]
IntArray = NDArray[np.int64]

_WORD = (1 << 64) - 1
_EXCHANGES_PER_CLASS = 100
_WORK_LIMIT = 10**9  # exchanges · K · d, about 4 s
_BLOCK_CANDIDATES = 1000


def build_masks(kind: MaskKind, num_classes: int, dim: int, cps_dim: int, seed: int) -> Tensor:
    """Return the masks m_j of all classes, (K, d) bool, with s ones per class.

    `balanced`: every dimension is used equally often up to one. Masks are disjoint if K·s ≤ d; otherwise the minimum
    pairwise Hamming distance is made large. `random`, for a study: the same without the search for a large distance.
    `blocks`, for a study: whole blocks of neighbouring dimensions, as the published code builds them.
    """
    if num_classes < 1:
        raise ValueError(f"num_classes must be at least 1, not {num_classes}")
    if not 1 <= cps_dim <= dim:
        raise ValueError(f"cps_dim must be between 1 and dim ({dim}), not {cps_dim}")
    return torch.from_numpy(_search(kind, num_classes, dim, cps_dim, seed) != 0)


def mask_digest(masks: Tensor) -> str:
    """Return a short name for a set of masks: equal digests mean equal masks."""
    return hashlib.blake2b(masks.cpu().numpy().astype("u1").tobytes(), digest_size=16).hexdigest()


class _SplitMix:
    """The splitmix64 generator in Python's integers: library generators may change between releases, this cannot."""

    def __init__(self, seed: int) -> None:
        self.state = seed & _WORD

    def next(self) -> int:
        """Return the next 64-bit word."""
        self.state = (self.state + 0x9E3779B97F4A7C15) & _WORD
        word = self.state
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
        return word ^ (word >> 31)

    def below(self, limit: int) -> int:
        """Return a number in [0, limit)."""
        return self.next() % limit


@lru_cache(maxsize=8)
def _search(kind: MaskKind, num_classes: int, dim: int, cps_dim: int, seed: int) -> IntArray:
    random = _SplitMix(seed)
    if kind == "blocks":
        masks = _blocks(num_classes, dim, cps_dim, random)
    else:
        masks = _least_used_first(num_classes, dim, cps_dim, random)
        if kind == "balanced" and num_classes * cps_dim > dim and cps_dim < dim:
            _exchange(masks, random)
    masks.setflags(write=False)
    return masks


def _least_used_first(num_classes: int, dim: int, cps_dim: int, random: _SplitMix) -> IntArray:
    """Give each class the least used dimensions, ties at random: columns stay balanced, and disjoint while possible."""
    uses = [0] * dim
    masks = np.zeros((num_classes, dim), dtype=np.int64)
    for row in masks:
        for column in sorted(range(dim), key=lambda column: (uses[column], random.next()))[:cps_dim]:
            row[column] = 1
            uses[column] += 1
    return masks


def _exchange(masks: IntArray, random: _SplitMix) -> None:
    """Reduce large overlaps by exchanging one dimension between two classes, which keeps rows and columns balanced.

    Hamming distance is 2·(s − overlap), so a steep penalty on overlaps above their mean drives the minimum distance
    up. For classes a and b the best dimension p (of a only) to trade for q (of b only) follows from the penalty's
    slope; the trade is kept if it does not raise the exact penalty.
    """
    num_classes, dim = masks.shape
    overlaps = masks @ masks.T
    np.fill_diagonal(overlaps, 0)
    mean_overlap = int(overlaps.sum()) // (num_classes * (num_classes - 1))
    # From 40 above the mean on, the penalty is constant, so that sums stay inside 64 bits for any d.
    excess = [min(max(0, overlap - mean_overlap), 40) for overlap in range(dim + 2)]
    penalty = np.array([amount**4 for amount in excess], dtype=np.int64)
    slope = np.diff(penalty)

    for step in range(min(_EXCHANGES_PER_CLASS * num_classes, _WORK_LIMIT // (num_classes * dim))):
        if step % 2:
            a = random.below(num_classes)
        else:
            worst = np.flatnonzero(overlaps.ravel() == overlaps.max())
            a = int(worst[random.below(len(worst))]) // num_classes
        b = (a + 1 + random.below(num_classes - 1)) % num_classes
        pull = slope[overlaps[a]] - slope[overlaps[b]]
        pull[[a, b]] = 0
        gain = pull @ masks  # (d,)
        only_a, only_b = np.flatnonzero(masks[a] > masks[b]), np.flatnonzero(masks[b] > masks[a])
        if len(only_a) == 0:
            continue
        p, q = only_a[gain[only_a].argmax()], only_b[gain[only_b].argmin()]
        change = masks[:, q] - masks[:, p]
        change[[a, b]] = 0
        new_a, new_b = overlaps[a] + change, overlaps[b] - change
        before = penalty[overlaps[a]].sum() + penalty[overlaps[b]].sum()
        if penalty[new_a].sum() + penalty[new_b].sum() <= before:
            masks[a, [p, q]], masks[b, [p, q]] = (0, 1), (1, 0)
            overlaps[a] = overlaps[:, a] = new_a
            overlaps[b] = overlaps[:, b] = new_b


def _blocks(num_classes: int, dim: int, cps_dim: int, random: _SplitMix) -> IntArray:
    """Return the published construction: K blocks of ⌊d/K⌋ dimensions, s / ⌊d/K⌋ of them per class.

    The first class owns the last blocks; each next one is the best of many random choices by the sum of Hamming
    distances to the classes before it. Dimensions from K·⌊d/K⌋ on belong to no class.
    """
    length = dim // num_classes
    if length == 0 or cps_dim % length or cps_dim > length * num_classes:
        raise ValueError(
            f"block masks of {dim} dimensions and {num_classes} classes have blocks of {length}, so cps_dim cannot be "
            f"{cps_dim}; choose a multiple of the block length, or masks: balanced"
        )
    blocks = cps_dim // length
    chosen = np.zeros((num_classes, num_classes), dtype=np.int64)
    chosen[0, num_classes - blocks :] = 1
    for row in range(1, num_classes):
        # Σ distances to the rows before = const + Σ over own ones of (rows before − 2 · their column sum).
        worth = row - 2 * chosen[:row].sum(0)
        words = np.array([random.next() for _ in range(2)], dtype=np.uint64)
        picks = _random_subsets(words, _BLOCK_CANDIDATES, num_classes, blocks)  # (candidates, blocks)
        taken = {tuple(np.flatnonzero(other)) for other in chosen[:row]}
        ranked = np.argsort(-worth[picks].sum(1), kind="stable")
        best = next((pick for pick in picks[ranked] if tuple(pick) not in taken), picks[ranked[0]])
        chosen[row, best] = 1
    masks = np.zeros((num_classes, dim), dtype=np.int64)
    masks[:, : num_classes * length] = np.repeat(chosen, length, axis=1)
    return masks


def _random_subsets(words: NDArray[np.uint64], count: int, universe: int, size: int) -> IntArray:
    """Return `count` random subsets of `size` out of `universe`, each ascending: the ranks of hashed keys."""
    keys = words[0] + np.arange(count * universe, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    keys = (keys ^ (keys >> np.uint64(30)) ^ words[1]) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    order = np.argsort((keys ^ (keys >> np.uint64(31))).reshape(count, universe), axis=1, kind="stable")
    return np.sort(order[:, :size], axis=1)
