"""Facts about the machine: cores, processor time, utilisation, versions."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_seconds() -> float:
    """Return the processor seconds of this process and, where /proc exists, of its current children."""
    return time.process_time() + sum(_spent(child) for child in _children())


def _children() -> list[int]:
    try:
        threads = list(Path("/proc/self/task").iterdir())
        return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return []


def _spent(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def gpu_share(work: Callable[[], object], device: torch.device) -> float:
    """Run `work` under torch's profiler; return the share of its time in which at least one kernel runs."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        start = time.perf_counter()
        work()
        torch.cuda.synchronize(device)
        seconds = time.perf_counter() - start
    kernels = [
        (event.time_range.start, event.time_range.end)
        for event in profiler.events() or ()
        if event.device_type.name == "CUDA"
    ]
    return union(kernels) / 1e6 / seconds


def union(intervals: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of intervals."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        covered += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return covered


def machine_facts(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Describe the machine and the versions of a measurement, from its environment."""
    versions = ", ".join(f"{name} {environment['packages'][name]}" for name in ("torch", "numpy"))
    package = f"tinyproto {environment['tinyproto']} ({environment['commit'] or 'no checkout'})"
    return [
        ("machine", f"{environment['cpu']}, {environment['cpu_count']} cores, {environment['platform']}"),
        ("versions", f"{package}, Python {environment['python']}, {versions}"),
    ]
