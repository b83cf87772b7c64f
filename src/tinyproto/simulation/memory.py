"""Peak memory of a stretch of work."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch


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
