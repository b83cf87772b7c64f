"""Clients of unequal size in one stack: how many of them a step computes, so that those who are done cost little."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ONE_MORE = 0.15
"""What another client adds to a step, in steps of one client: most of a small step is waiting, not computing."""
ANOTHER_WIDTH = 4.0
"""What a further width costs a round, in steps of one client: it has to be captured once, and kept."""


class Level(NamedTuple):
    """A stretch of steps that the first `width` clients take together."""

    width: int
    start: int
    stop: int


def levels(steps: Sequence[int]) -> list[Level]:
    """The cheapest stretches for clients with so many steps each, most first.

    Once client v is done, so are all after it, and the stack may shrink to v clients. A client that is done and still
    in the stack takes its step in vain: `paid` counts those, too.
    """
    ends = [*steps, 0]  # ends[v]: when a stack of v clients may begin; with all of them, at once
    best: dict[int, tuple[float, int]] = {0: (0.0, 0)}  # by width: cost from its start to the end, and what follows it
    for width in range(1, len(steps) + 1):
        price = 1.0 + ONE_MORE * (width - 1)
        best[width] = min(
            ((ends[after] - ends[width]) * price + ANOTHER_WIDTH * (ends[after] > ends[width]) + best[after][0], after)
            for after in range(width)
        )
    found, width = [], len(steps)
    while width:
        after = best[width][1]
        if ends[after] > ends[width]:
            found.append(Level(width, ends[width], ends[after]))
        width = after
    return found


def paid(found: Sequence[Level], client: int) -> int:
    """Steps that were computed for a client, taken or in vain."""
    return sum(level.stop - level.start for level in found if client < level.width)
