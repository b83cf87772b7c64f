"""How much memory the clients of a simulation may take before the ones not needed go to disk."""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch

from tinyproto.core.sizes import bytes_of

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
