"""How many cells at once the memory takes: measured on the first of them, not guessed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from tinyproto.memory import container_limit, status_bytes

CONTEXT = 600 * 2**20
"""Device memory of a process besides its tensors: CUDA's context, kernels, libraries."""

SAFETY = 1.2
"""Another algorithm may take more than those measured so far."""

UNSEEN = 2.0
"""A cell of another kind, such as with larger images, is taken for so many of the largest seen, until it is seen."""

SHOWN_BY_ROUND = 2
"""The round after which a cell has taken about all it will: prototypes have arrived, graphs are captured."""


class Footprint(NamedTuple):
    """A cell's memory, seen from its process."""

    takes: int  # bytes at its peak; what it shares with other processes is not counted
    room: float  # bytes there are for it and its like


def footprint(device: torch.device) -> Footprint | None:
    """Of this process so far; None where the system does not say."""
    if device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(device)
        takes = torch.cuda.max_memory_reserved(device) + CONTEXT
        return Footprint(takes, free + torch.cuda.memory_reserved(device) + CONTEXT)
    peak, now, available = status_bytes("VmHWM"), status_bytes("RssAnon"), status_bytes("MemAvailable", "/proc/meminfo")
    files, shared = status_bytes("RssFile"), status_bytes("RssShmem")
    if peak is None or now is None or available is None or files is None or shared is None:
        return None
    return Footprint(max(now, peak - files - shared), min(available + now, container_limit()))


class Room:
    """How many may run at once: one until the first has shown what it takes, then as many as fit.

    Where cells are of several kinds, those of a kind that was not seen yet come one at a time.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._takes: dict[str, int | None] = {}  # by kind, the latest seen last; None where the system does not say
        self._room: float | None = None

    def measured(self, found: Footprint | None, kind: str = "") -> bool:
        """Take note of what a cell took; whether this was the first of its kind that did."""
        first, before = kind not in self._takes, self._takes.get(kind)
        self._takes[kind] = before if found is None else max(found.takes, before or 0)
        if found is not None and self._room is None:
            self._room = found.room
        return first

    def has_place(self, kind: str, running: Sequence[str]) -> bool:
        """Whether a cell of a kind may start beside cells of these kinds; alone, it always may."""
        if not running:
            return True
        if len(running) >= self.limit or any(other not in self._takes for other in running):
            return False
        if self._room is None:
            return True
        return SAFETY * sum(map(self._estimate, [*running, kind])) <= self._room

    def _estimate(self, kind: str) -> float:
        takes = self._takes.get(kind)
        return UNSEEN * max(known or 0 for known in self._takes.values()) if takes is None else takes

    @property
    def at_once(self) -> int:
        """Of the kind seen last; never less than one."""
        if not self._takes:
            return 1
        if self._room is None:
            return self.limit
        return max(1, min(self.limit, int(self._room / (SAFETY * self._estimate(list(self._takes)[-1])))))

    def words(self) -> str:
        """The estimate for the kind seen last, for people."""
        many = "1 runs at a time" if self.at_once == 1 else f"{self.at_once} run at once"
        if self._room is None:
            return f"how much memory a cell takes is not known here, so {many}"
        kind = list(self._takes)[-1]
        return (
            f"{f'{kind}: ' if kind else ''}a cell took {self._estimate(kind) / 2**30:.1f} GiB of "
            f"{self._room / 2**30:.1f} GiB in its first rounds; with a margin of {SAFETY - 1:.0%}, {many}"
        )
