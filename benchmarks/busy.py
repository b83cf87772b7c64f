"""How busy a device was: the share of its time in which it worked."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_seconds() -> float:
    """Seconds that cores have worked for this process and for the children it has now, where the system tells."""
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
    """The share of the seconds `work` takes in which at least one kernel runs, by torch's profiler."""
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
    """The length that intervals cover together."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        covered += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return covered
