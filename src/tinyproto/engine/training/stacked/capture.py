"""Calling the same computation again and again: as it is on a CPU, as one CUDA graph on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

WARM_UP = 2


class Repeated:
    """A function without arguments that reads and writes tensors which stay where they are.

    On a GPU its first calls run as they are, on a stream of their own as capturing wants it; then it is captured once
    and replayed, which costs the host ten microseconds however many kernels there are.
    """

    def __init__(self, function: Callable[[], None], device: torch.device) -> None:
        self.function = function
        self.device = device
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Once more."""
        if self.device.type != "cuda":
            self.function()
            return
        if self.graph is not None:
            self.graph.replay()
            return
        if self.calls < WARM_UP:
            self._aside(self.function)
            self.calls += 1
            return
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.function()
        self.graph.replay()

    def _aside(self, function: Callable[[], None]) -> None:
        current = torch.cuda.current_stream(self.device)
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            function()
        current.wait_stream(stream)
