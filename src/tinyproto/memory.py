"""Peak memory of a stretch of work."""

from __future__ import annotations

import math
import os
import resource
import sys
from pathlib import Path

import torch

from tinyproto.core.sizes import bytes_of


class PeakMemory:
    """The largest memory in use since this was made: device memory on a GPU, else this process's resident memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            self._reset_resident()

    def read(self) -> int:
        """Bytes."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        resident = status_bytes("VmHWM")
        if resident is not None:
            return resident
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    @staticmethod
    def _reset_resident() -> None:
        """Linux can start the high-water mark anew; elsewhere it stays that of the whole process."""
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            return


def status_bytes(field: str, file: str = "/proc/self/status") -> int | None:
    """What Linux says of this process's memory, or in /proc/meminfo of all; None where it does not say."""
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)


AUTO = "auto"
SHARE = 4
"""`auto` is one part in so many of the memory of the machine, or of the GPU where the clients are on one."""

_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def client_budget(asked: str, device: torch.device, processes: int = 1) -> int:
    """Bytes for the clients of one of so many processes."""
    whole = bytes_of(asked) if asked != AUTO else total_memory(device) // SHARE
    return max(1, whole // processes)


def total_memory(device: torch.device) -> int:
    """Of the GPU, or of the machine as far as this process may have it."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(installed, container_limit()))


def container_limit() -> float:
    """Bytes that a container allows; without end where there is none."""
    return min((found for found in map(_limit, _LIMITS) if found), default=math.inf)


def _limit(file: Path) -> int | None:
    """What a container is allowed; None where it may have all."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
