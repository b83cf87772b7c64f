"""Run the same computation many times: directly on a CPU, as one CUDA graph on a GPU."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from weakref import WeakSet

import torch

from tinyproto.errors import one_line
from tinyproto.memory import lacked_memory
from tinyproto.stacked.fallback import CannotStack

WARM_UP = 2
"""Calls that run directly before a computation is captured; they compile kernels and fill caches."""


STREAMS = 32
"""Streams of one priority on a device; torch hands them out in turn, and after the last the first again."""


class GraphStream:
    """A CUDA stream and the memory pool of the graphs captured on it; both are None on a CPU.

    Matrix products keep scratch memory per stream. Two graphs captured on one stream share it and overwrite each
    other's when they are replayed at the same time. So one stream serves for warm-up, capture and replay alike.
    """

    def __init__(self, stream: torch.cuda.Stream | None = None, pool: Any = None) -> None:
        self.stream = stream
        self.pool = pool
        _graph_streams.add(self)

    @classmethod
    def on(cls, device: torch.device, *, urgent: bool = False) -> GraphStream:
        """Take a stream on this device; kernels of an urgent one start before those of all others.

        Two get the same stream only if there are more of them than streams. Those of branches have other priorities.
        """
        if device.type != "cuda":
            return cls()
        priority = -3 if urgent else -1
        stream = _free_stream(device, priority)
        if stream is None:
            stream = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]
        return cls(stream, torch.cuda.graph_pool_handle())


_graph_streams: WeakSet[GraphStream] = WeakSet()
_known_streams: dict[tuple[torch.device, int], list[torch.cuda.Stream]] = {}


def _free_stream(device: torch.device, priority: int) -> torch.cuda.Stream | None:
    """Return a stream that serves no stack and no branch, if possible one that did before; None if all serve one.

    On each stream a thread uses, cuBLAS has scratch memory (`memory.scratch_memory`), and torch keeps it until the
    process ends. A process with several runs lost gigabytes to streams of stacks that were gone.
    """
    taken = [*(each.stream for each in _graph_streams), *(branch.stream for branch in _branches)]
    known = _known_streams.setdefault((device, priority), [])
    for stream in known:
        if stream not in taken:
            return stream
    for _ in range(STREAMS):
        stream = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]
        if stream not in known and stream not in taken:
            known.append(stream)
            return stream
    return None


def capture(function: Callable[[], None], on: GraphStream) -> Callable[[], None]:
    """Return a function that repeats `function`, which reads and writes tensors that stay where they are.

    On a CPU this is `function` itself. On a GPU the first calls run it directly, the next call captures it as a graph,
    and later calls replay that graph: ten microseconds on the host, whatever the number of kernels. `on.stream` has to
    be the current stream of each call. A capture that fails raises OutOfMemoryError or CannotStack.
    """
    stream, pool = on.stream, on.pool
    if stream is None:
        return function
    calls = 0
    graph: torch.cuda.CUDAGraph | None = None

    def run() -> None:
        nonlocal calls, graph
        if graph is not None:
            graph.replay()
        elif calls < WARM_UP:
            function()
            calls += 1
        else:
            captured = torch.cuda.CUDAGraph()
            try:
                with _no_garbage_collection(), torch.cuda.graph(captured, pool=pool, stream=stream):
                    function()
            except Exception as error:
                _end_in_torch(stream, pool)
                raise _verdict(error) from error
            captured.replay()
            graph = captured

    return run


def _verdict(error: Exception) -> Exception:
    """Return OutOfMemoryError or CannotStack for the error of a capture, with the words of the first of its chain.

    What fails inside invalidates the capture, whose end then fails with other words.
    """
    first: BaseException = error
    while not isinstance(first, CannotStack) and first.__context__ is not None:
        first = first.__context__
    if isinstance(first, CannotStack):
        return CannotStack(str(first))
    kind = torch.OutOfMemoryError if lacked_memory(error) else CannotStack
    return kind(f"a step could not be captured: {one_line(first)}")


def _end_in_torch(stream: torch.cuda.Stream, pool: Any) -> None:
    """End a capture for torch, too, if its end failed: torch would neither free memory nor draw numbers any more."""
    with suppress(Exception), warnings.catch_warnings():  # an error: it has ended, or this torch has no such function
        torch._C._cuda_endAllocateToPool(stream.device_index, pool)
        torch._C._cuda_releasePool(stream.device_index, pool)
        warnings.simplefilter("ignore")  # the graph is empty
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):  # its end tells the random generator
            pass


class Branch:
    """A second stream for results that a step needs only at its end, such as gradients of filters.

    The branch starts from the current stream in `fork` and comes back to it in `join`. In a captured graph it runs
    beside the rest of the step. Tensors that it reads are kept until then, or the current stream might reuse them.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream
        self._read: list[torch.Tensor] = []
        _branches.add(self)

    @classmethod
    def on(cls, device: torch.device, *, urgent: bool = False) -> Branch | None:
        """Create a branch; None if other branches have all streams: two on one stream would share scratch memory."""
        stream = _free_stream(device, -2 if urgent else 0)
        return None if stream is None else cls(stream)

    @contextmanager
    def fork(self, *read: torch.Tensor) -> Iterator[None]:
        """Run what follows on the branch, after all that is queued on the current stream."""
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        self._read += read
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Let the current stream wait for the branch; no-op if nothing runs on it."""
        if not self._read:
            return
        try:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
        finally:
            self._read.clear()


_branches: WeakSet[Branch] = WeakSet()
_branch: ContextVar[Branch | None] = ContextVar("branch", default=None)


@contextmanager
def branching(branch: Branch | None) -> Iterator[None]:
    """Let differentiable functions that are called here put late results on a branch in their backward pass."""
    token = _branch.set(branch)
    try:
        yield
    finally:
        _branch.reset(token)


def current_branch() -> Branch | None:
    """Return the branch of this step, if it has one."""
    return _branch.get()


def forked(branch: Branch | None, *read: torch.Tensor) -> AbstractContextManager[None]:
    """Run what follows on the branch, if there is one."""
    return nullcontext() if branch is None else branch.fork(*read)


OLDEST = (8, 0)
"""Compute capability from which Triton is supported."""


def why_no_kernels(device: torch.device) -> str | None:
    """Return why our Triton kernels cannot be used on a GPU; None if they can, or if there is no GPU."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_capability(device)
    old = None if found >= OLDEST else f"Triton needs compute capability 8.0, and this GPU has {found[0]}.{found[1]}"
    return why_no_triton() or old


def why_no_triton() -> str | None:
    """Return why Triton cannot be imported; None if it can."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    try:
        import_module("triton")
    except Exception as error:  # built for another system, for instance
        return f"Triton cannot be imported ({one_line(error)})"
    return None


def compile_first(functions: Sequence[Callable[[], None]], device: torch.device) -> None:
    """Compile all kernels of these functions side by side, where that is possible; what they compute is meaningless.

    This only saves time, so an error is left to the first use of the function, where another trainer takes over. What
    Triton sets for this time is set in a context of its own: an error cannot leave it set.
    """
    if device.type != "cuda" or not functions or why_no_kernels(device) is not None:
        return
    with suppress(Exception):
        copy_context().run(_compile_together, functions, device)


def _compile_together(functions: Sequence[Callable[[], None]], device: torch.device) -> None:
    from tinyproto.stacked.kernels import compiling_together

    with torch.cuda.device(device), compiling_together() as possible:  # each GPU has its own kernels
        for function in functions if possible else ():
            with suppress(Exception):
                function()


@contextmanager
def in_order(streams: Iterable[torch.cuda.Stream | None]) -> Iterator[None]:
    """Let the streams wait for what the caller has queued, and what the caller queues next wait for the streams."""
    used = [stream for stream in streams if stream is not None]
    for stream in used:
        stream.wait_stream(torch.cuda.current_stream(stream.device))
    try:
        yield
    finally:
        for stream in used:
            torch.cuda.current_stream(stream.device).wait_stream(stream)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Suspend garbage collection: freeing an older graph would end the capture of another."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
