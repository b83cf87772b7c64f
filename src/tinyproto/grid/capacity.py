"""The number of cells that fit into memory at once: measured on the first of them, not guessed."""

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
"""A cell of a new kind, such as with larger images, counts as so many of the largest measured, until it is measured."""

MEASURED_FROM_ROUND = 2
"""The round after which a cell has taken about all it will: prototypes have arrived, graphs are captured."""


class Footprint(NamedTuple):
    """A cell's memory, measured in its process."""

    takes: int  # bytes at its peak, without what it shares with other processes
    available: float  # bytes for it and other cells together


def footprint(device: torch.device) -> Footprint | None:
    """Measure this process so far; return None if the system does not say."""
    if device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(device)
        takes = torch.cuda.max_memory_reserved(device) + CONTEXT
        return Footprint(takes, free + torch.cuda.memory_reserved(device) + CONTEXT)
    peak, now, available = status_bytes("VmHWM"), status_bytes("RssAnon"), status_bytes("MemAvailable", "/proc/meminfo")
    files, shared = status_bytes("RssFile"), status_bytes("RssShmem")
    if peak is None or now is None or available is None or files is None or shared is None:
        return None
    return Footprint(max(now, peak - files - shared), min(available + now, container_limit()))


class Capacity:
    """The number of cells that may run at once: one until the first is measured, then as many as fit.

    If there are several kinds of cells, those of a kind that was not measured yet start one at a time.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._takes: dict[str, int | None] = {}  # by kind, the latest measured last; None if the system does not say
        self._available: float | None = None

    def measured(self, found: Footprint | None, kind: str = "") -> bool:
        """Note what a cell took; return True if it was the first of its kind."""
        first, before = kind not in self._takes, self._takes.get(kind)
        self._takes[kind] = before if found is None else max(found.takes, before or 0)
        if found is not None and self._available is None:
            self._available = found.available
        return first

    def has_place(self, kind: str, running: Sequence[str]) -> bool:
        """Return True if a cell of a kind may start beside cells of these kinds; alone, it always may."""
        if not running:
            return True
        if len(running) >= self.limit or any(other not in self._takes for other in running):
            return False
        if self._available is None:
            return True
        return SAFETY * sum(map(self._estimate, [*running, kind])) <= self._available

    def _estimate(self, kind: str) -> float:
        takes = self._takes.get(kind)
        return UNSEEN * max(known or 0 for known in self._takes.values()) if takes is None else takes

    @property
    def at_once(self) -> int:
        """Cells of the kind measured last that fit at once; never less than one."""
        if not self._takes:
            return 1
        if self._available is None:
            return self.limit
        return max(1, min(self.limit, int(self._available / (SAFETY * self._estimate(list(self._takes)[-1])))))

    def words(self) -> str:
        """Return a sentence with the estimate for the kind measured last."""
        many = "1 runs at a time" if self.at_once == 1 else f"{self.at_once} run at once"
        if self._available is None:
            return f"the memory of a cell cannot be measured here, so {many}"
        kind = list(self._takes)[-1]
        return (
            f"{f'{kind}: ' if kind else ''}a cell took {self._estimate(kind) / 2**30:.1f} GiB of "
            f"{self._available / 2**30:.1f} GiB in its first rounds; with a margin of {SAFETY - 1:.0%}, {many}"
        )
