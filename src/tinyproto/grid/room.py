"""How many cells at once the memory takes: measured on the first of them, not guessed."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tinyproto.simulation.budget import container_limit
from tinyproto.simulation.memory import status_bytes

CONTEXT = 600 * 2**20
"""Device memory of a process besides its tensors: CUDA's context, kernels, libraries."""

SAFETY = 1.2
"""Another algorithm may take more than those measured so far."""

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
    """How many may run at once: one until the first has shown what it takes, then as many as fit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._takes = 0
        self._room: float | None = None
        self._known = False

    def measured(self, found: Footprint | None) -> bool:
        """Take note of what a cell took; whether this was the first that did."""
        first, self._known = not self._known, True
        if found is not None:
            self._takes = max(self._takes, found.takes)
            self._room = found.room if self._room is None else self._room
        return first

    @property
    def at_once(self) -> int:
        """Never less than one."""
        if not self._known:
            return 1
        if self._room is None:
            return self.limit
        return max(1, min(self.limit, int(self._room / (SAFETY * self._takes))))

    def words(self) -> str:
        """The estimate, for people."""
        many = "1 runs at a time" if self.at_once == 1 else f"{self.at_once} run at once"
        if self._room is None:
            return f"how much memory a cell takes is not known here, so {many}"
        return (
            f"a cell took {self._takes / 2**30:.1f} GiB of {self._room / 2**30:.1f} GiB in its first rounds; with a "
            f"margin of {SAFETY - 1:.0%}, {many}"
        )
