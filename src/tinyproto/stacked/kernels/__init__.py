"""Triton kernels over a stack as it lies in memory, (clients, channels, samples, height, width), and for the server's fit.

They are imported only on a GPU. Elsewhere, and for shapes they do not cover, PyTorch computes the same. No kernel waits
for another block of its grid, so stacks may run at the same time on several streams. The server's fit does, and is
launched so that the device starts all of its blocks or none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import Any

import torch
import triton

from tinyproto.stacked.fallback import only_compile


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., object]:
    """Return a function that runs a kernel, or only compiles it inside `compiling_together`."""
    return partial(kernel.run, grid=grid, warmup=only_compile.get())


@contextmanager
def compiling_together() -> Iterator[bool]:
    """Compile the kernels that are launched here side by side, without running them; random draws stay the same.

    Yield False where Triton is too old for that; each kernel is then compiled when it first runs.
    """
    mode = getattr(triton, "AsyncCompileMode", None)
    if mode is None or "ignore_errors" not in signature(mode).parameters:
        yield False
        return
    token = only_compile.set(True)
    try:
        with (
            ThreadPoolExecutor(min(16, _cores())) as workers,
            torch.random.fork_rng(devices=[torch.cuda.current_device()]),
            torch.autograd.set_multithreading_enabled(False),  # another thread would not know that it only compiles
        ):
            with mode(workers, ignore_errors=True) as compiling:  # an error comes again when the kernel first runs
                yield True
            _make_launchers([each.kernel for each in compiling.future_kernels.values() if each.kernel], workers)
    finally:
        only_compile.reset(token)


def _make_launchers(kernels: Iterable[Any], workers: Executor) -> None:
    """Let the C compiler make what launches the kernels, side by side; it depends on the types of arguments alone.

    Triton keeps them on disk. It would make each when its first kernel runs, and the device would wait.
    """
    by_types = {tuple(kernel.src.signature.values()): kernel for kernel in kernels}
    launcher = triton.runtime.driver.active.launcher_cls
    list(workers.map(lambda kernel: launcher(kernel.src, kernel.metadata), by_types.values()))
