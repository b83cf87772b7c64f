"""Memory of this process and of the machine.

Linux is read from /proc: psutil knows neither the peak since a point in time nor the parts of resident memory.
"""

from __future__ import annotations

import gc
import math
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch

from tinyproto.core.sizes import bytes_of


class PeakMemory:
    """The peak memory since this was made: device memory on a GPU, else this process's resident memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            with suppress(OSError):  # only Linux can reset it; elsewhere the peak is that of the whole process
                Path("/proc/self/clear_refs").write_text("5")

    def read(self) -> int:
        """Return the peak in bytes."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        resident = status_bytes("VmHWM")
        if resident is not None:
            return resident
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def status_bytes(field: str, file: str = "/proc/self/status") -> int | None:
    """Return a field of this process's memory, or of the machine's in /proc/meminfo; None if the system has none."""
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)


AUTO = "auto"
SHARE = 4
"""`auto` is 1/SHARE of the memory of the machine, or of the GPU if the clients are on one."""

_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def client_budget(asked: str, device: torch.device, processes: int = 1) -> int:
    """Return the bytes for the clients of one of so many processes."""
    total = bytes_of(asked) if asked != AUTO else total_memory(device) // SHARE
    return max(1, total // processes)


def total_memory(device: torch.device) -> int:
    """Return the bytes of the GPU, or of the machine as far as a container allows."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(installed, container_limit()))


CONTEXT = 600 * 2**20
"""Device memory of a process besides its tensors: CUDA's context, kernels, libraries."""

USABLE = 0.9
"""Share of a GPU's free memory that an estimate may fill; what it leaves out takes the rest."""


def gpu_room(device: torch.device, *, shared: bool) -> float | None:
    """Return the bytes of a GPU that tensors of this process may fill; None if the device is none.

    With `shared`, cells of the same run may take memory, too. They are given as much as they turn out to need, so each
    may count on the whole GPU.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    if shared:
        return USABLE * (total_memory(device) - CONTEXT)
    try:
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError:  # there is not even room for CUDA's context
        return 0.0
    held, cached = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    fraction = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _device: 1.0)(device.index)
    return max(0.0, USABLE * (min(free + cached - held, fraction * total - held) - CONTEXT))


SCRATCH = 8_519_680
SCRATCH_FROM_HOPPER = 32 * 2**20
"""Bytes that cuBLAS takes for each stream and thread that multiply matrices; torch keeps them until a process ends."""


def scratch_memory(device: torch.device) -> int:
    """Return the bytes that matrix products take on each stream, per thread: backward passes have one of their own."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return 0
    return SCRATCH if torch.cuda.get_device_capability(device) < (9, 0) else SCRATCH_FROM_HOPPER


ROOM = 64 * 2**20
"""Bytes that captured steps leave to what runs between them: messages, scores, prototypes."""


def leaves_room(device: torch.device) -> bool:
    """Return False if `ROOM` bytes cannot be allocated. Otherwise torch keeps them at hand, unused."""
    if device.type == "cuda":
        try:
            torch.empty(ROOM, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError:
            return False
    return True


_OUT_OF_MEMORY = ("out of memory", "ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED")
"""The last is what cuBLAS says where there is no room for its context."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for device and host memory; some libraries below torch only say it in the message."""
    words = str(error)
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(each in words for each in _OUT_OF_MEMORY)
    )


def lacked_memory(error: BaseException) -> bool:
    """Return True if an error is one of memory or follows one, as when a capture ends that lacked memory."""
    before = error.__cause__ or error.__context__
    return is_out_of_memory(error) or (before is not None and lacked_memory(before))


def release_unused(device: torch.device) -> None:
    """Return to the device what no tensor uses any more, such as graphs that were just dropped."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


def container_limit() -> float:
    """Return the bytes that a container allows; infinity if there is no limit."""
    for file in _LIMITS:
        with suppress(OSError, ValueError):  # there is no such file, or it says max
            return int(file.read_text())
    return math.inf
