"""The number of cells that fit into memory at once: measured on the first of them, not guessed."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tinyproto.memory import CONTEXT, container_limit, status_bytes

SAFETY = 1.2
"""Another algorithm may take more than those measured so far."""

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
    """The number of cells that may run at once: one until the first is measured, then as many as fit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._measured = False
        self._takes = 0  # by the largest cell so far
        self._available: float | None = None  # None if the system does not say

    def measured(self, found: Footprint | None) -> bool:
        """Note what a cell took; return True if it was the first."""
        first, self._measured = not self._measured, True
        if found is not None:
            self._takes = max(self._takes, found.takes)
            if self._available is None:
                self._available = found.available
        return first

    @property
    def at_once(self) -> int:
        """Cells that fit at once; never less than one."""
        if not self._measured:
            return 1
        if self._available is None:
            return self.limit
        return max(1, min(self.limit, int(self._available / (SAFETY * self._takes))))

    def words(self) -> str:
        """Return a sentence with the estimate."""
        many = "1 runs at a time" if self.at_once == 1 else f"{self.at_once} run at once"
        if self._available is None:
            return f"the memory of a cell cannot be measured here, so {many}"
        return (
            f"a cell took {self._takes / 2**30:.1f} GiB of {self._available / 2**30:.1f} GiB in its first rounds; "
            f"with a margin of {SAFETY - 1:.0%}, {many}"
        )
