"""How CPS masks are found: integer arithmetic and a fixed number of steps, so equal on every machine and release."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]

_WORD = (1 << 64) - 1
_EXCHANGES_PER_CLASS = 100
_WORK_LIMIT = 10**9  # exchanges · K · d, about 4 s
_BLOCK_CANDIDATES = 1000


class SplitMix:
    """The splitmix64 generator in Python's integers: library generators may change between releases, this cannot."""

    def __init__(self, seed: int) -> None:
        self.state = seed & _WORD

    def next(self) -> int:
        """The next 64-bit word."""
        self.state = (self.state + 0x9E3779B97F4A7C15) & _WORD
        word = self.state
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
        return word ^ (word >> 31)

    def below(self, limit: int) -> int:
        """A number in [0, limit)."""
        return self.next() % limit


@lru_cache(maxsize=8)
def balanced_search(num_classes: int, dim: int, cps_dim: int, seed: int) -> IntArray:
    """Masks with exact row weight and balanced columns whose largest pairwise overlap is small."""
    random = SplitMix(seed)
    masks = _least_used_first(num_classes, dim, cps_dim, random)
    if num_classes * cps_dim > dim and cps_dim < dim:
        _exchange(masks, random)
    masks.setflags(write=False)
    return masks


@lru_cache(maxsize=8)
def random_search(num_classes: int, dim: int, cps_dim: int, seed: int) -> IntArray:
    """The same without the search: balanced columns, and overlaps as they fall."""
    masks = _least_used_first(num_classes, dim, cps_dim, SplitMix(seed))
    masks.setflags(write=False)
    return masks


def _least_used_first(num_classes: int, dim: int, cps_dim: int, random: SplitMix) -> IntArray:
    """Each class takes the least used dimensions, ties at random: columns stay balanced, disjoint while they can."""
    uses = [0] * dim
    masks = np.zeros((num_classes, dim), dtype=np.int64)
    for row in masks:
        for column in sorted(range(dim), key=lambda column: (uses[column], random.next()))[:cps_dim]:
            row[column] = 1
            uses[column] += 1
    return masks


def _exchange(masks: IntArray, random: SplitMix) -> None:
    """Reduce large overlaps by exchanging one dimension between two classes, which keeps rows and columns balanced.

    Hamming distance is 2·(s − overlap), so a steep penalty on overlaps above their mean drives the minimum distance
    up. For classes a and b the best dimension p (of a only) to trade for q (of b only) follows from the penalty's
    slope; the trade is kept if it does not raise the exact penalty.
    """
    num_classes, dim = masks.shape
    overlaps = masks @ masks.T
    np.fill_diagonal(overlaps, 0)
    mean_overlap = int(overlaps.sum()) // (num_classes * (num_classes - 1))
    # Beyond 40 above the mean the penalty goes on flat, so that sums stay inside 64 bits whatever d is.
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


@lru_cache(maxsize=8)
def block_search(num_classes: int, dim: int, cps_dim: int, seed: int) -> IntArray:
    """The published construction: K blocks of ⌊d/K⌋ dimensions, s / ⌊d/K⌋ of them per class.

    The first class owns the last blocks; each next one is the best of many random choices by the sum of Hamming
    distances to the classes before it. Dimensions beyond K·⌊d/K⌋ belong to no class.
    """
    length = dim // num_classes
    if length == 0 or cps_dim % length or cps_dim > length * num_classes:
        raise ValueError(
            f"block masks hand out {dim} dimensions to {num_classes} classes in blocks of {length}, so cps_dim cannot "
            f"be {cps_dim}; choose a multiple of the block length, or the balanced masks"
        )
    blocks = cps_dim // length
    random = SplitMix(seed)
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
    masks.setflags(write=False)
    return masks


def _random_subsets(words: NDArray[np.uint64], count: int, universe: int, size: int) -> IntArray:
    """`count` random subsets of `size` out of `universe`, each ascending: the ranks of hashed keys."""
    keys = words[0] + np.arange(count * universe, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    keys = (keys ^ (keys >> np.uint64(30)) ^ words[1]) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    order = np.argsort((keys ^ (keys >> np.uint64(31))).reshape(count, universe), axis=1, kind="stable")
    return np.sort(order[:, :size], axis=1)
