"""Calling the same computation again and again: as it is on a CPU, as one CUDA graph on a GPU."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

WARM_UP = 2


class Place:
    """Where the computations of one stack run: on a GPU, on a stream of their own, with memory of their own.

    Matrix products keep scratch memory per stream. Two graphs captured on one stream would share it, and when replayed
    side by side write over each other's: so a place is used for warming up, for capturing and for replaying alike.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream: torch.cuda.Stream | None = None
        self.pool: Any = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self.pool = torch.cuda.graph_pool_handle()

    def begin(self) -> None:
        """What comes here waits for all that the caller has asked for."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def here(self) -> AbstractContextManager[object]:
        """Whatever is asked for inside happens here."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def end(self) -> None:
        """What the caller asks for next waits for all that happened here."""
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)


class Repeated:
    """A function without arguments that reads and writes tensors which stay where they are; called inside its place.

    On a GPU its first calls run as they are; then it is captured once and replayed, which costs the host ten
    microseconds however many kernels there are.
    """

    def __init__(self, function: Callable[[], None], place: Place) -> None:
        self.function = function
        self.place = place
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Once more."""
        if self.graph is not None:
            self.graph.replay()
        elif self.place.stream is None or self.calls < WARM_UP:
            self.function()
            self.calls += 1
        else:
            graph = torch.cuda.CUDAGraph()
            with _no_garbage_collection(), torch.cuda.graph(graph, pool=self.place.pool, stream=self.place.stream):
                self.function()
            graph.replay()
            self.graph = graph


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """An older graph that is freed while another is captured ends the capture: so none is freed meanwhile."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
