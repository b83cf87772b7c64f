"""How much memory the clients of a simulation may take before the ones not needed go to disk."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

import torch

from tinyproto.errors import ConfigError

AUTO = "auto"
SHARE = 4
"""`auto` is one part in so many of the memory of the machine, or of the GPU where the clients are on one."""

_UNITS = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def bytes_of(text: str) -> int:
    """`2GB`, `500 MB`, `1.5GiB` in bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)", text.strip())
    units = {name.lower(): factor for name, factor in _UNITS.items()}
    if found is None or found[2].lower() not in units or float(found[1]) == 0:
        raise ConfigError(f"{text!r} is no amount of memory; it is a number above 0 with a unit, such as 500MB or 2GB")
    return max(1, int(float(found[1]) * units[found[2].lower()]))


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
