"""Streams, branches and captured graphs; a stand-in for torch.cuda hands out the streams."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from tinyproto.memory import is_out_of_memory
from tinyproto.stacked import capture as capturing
from tinyproto.stacked.capture import STREAMS, WARM_UP, Branch, GraphStream, capture
from tinyproto.stacked.fallback import CannotStack

CUDA = torch.device("cuda", 0)


class Stream:
    """A stand-in for a stream of torch, which hands out a fixed number of each priority in turn."""

    given: dict[int, int]

    def __init__(self, device: torch.device, priority: int = 0) -> None:
        self.device_index = 0
        count = self.given[priority] = self.given.get(priority, -1) + 1
        self.device, self.place = device, (priority, count % STREAMS)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.place == other.place

    def __hash__(self) -> int:
        return hash(self.place)

    def wait_stream(self, other: Stream) -> None:
        pass


class Graph:
    """Counts its replays."""

    replays = 0

    def replay(self) -> None:
        self.replays += 1


class Allocator:
    """Pools of graphs that are being captured."""

    pools: set[object]

    @classmethod
    def end(cls, device: int, pool: object) -> None:
        if pool not in cls.pools:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")


class Generator:
    """Draws no numbers outside of a capture that has not ended for it."""

    capturing = False


class Capturing:
    """torch.cuda.graph: an invalid capture cannot end, and the allocator and the generator do not learn of it."""

    invalid = False

    def __init__(self, graph: Graph, pool: object = None, stream: object = None) -> None:
        self.pool = pool

    def __enter__(self) -> None:
        Generator.capturing = True
        Allocator.pools.add(self.pool)

    def __exit__(self, kind: type[Exception] | None, *_: object) -> None:
        if self.invalid and kind is not None:
            raise RuntimeError("operation failed due to a previous error during capture")
        Generator.capturing = False
        Allocator.pools.discard(self.pool)


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    Stream.given = {}
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(device))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", Capturing)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", Allocator.end, raising=False)
    monkeypatch.setattr(
        torch._C, "_cuda_releasePool", lambda device, pool: Allocator.pools.discard(pool), raising=False
    )
    monkeypatch.setattr(capturing, "_known_streams", {})
    Allocator.pools, Generator.capturing = set(), False


def test_no_stream_serves_two_branches_or_a_branch_and_a_stack() -> None:
    stacks, branches = [], []
    for _ in range(STREAMS + 8):
        stacks.append(GraphStream.on(CUDA))
        branches.append(Branch.on(CUDA))
    used = [branch.stream for branch in branches if branch is not None]
    assert len(set(used)) == len(used) == STREAMS
    assert len({stack.stream for stack in stacks}) == STREAMS
    assert not set(used) & {stack.stream for stack in stacks}
    assert branches[STREAMS:] == [None] * 8
    del branches[3]  # of a stack that was freed
    assert Branch.on(CUDA) is not None


def test_streams_of_freed_stacks_serve_the_next_ones_since_torch_keeps_their_scratch_memory() -> None:
    used: set[object] = set()
    for _ in range(STREAMS):
        stacks, branches = [GraphStream.on(CUDA) for _ in range(4)], [Branch.on(CUDA) for _ in range(2)]
        streams = [each.stream for each in (*stacks, *branches) if each is not None]
        assert len(set(streams)) == 6
        used |= set(streams)
        del stacks, branches
    assert len(used) == 6


def test_a_branch_that_cannot_come_back_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    branch, kept = Branch.on(CUDA), torch.zeros(1)
    assert branch is not None
    with branch.fork(kept):
        pass
    monkeypatch.setattr(Stream, "wait_stream", lambda *_: exec("raise RuntimeError('CUDA error')"))
    with pytest.raises(RuntimeError):
        branch.join()
    branch.join()  # nothing is left to wait for


UNSUPPORTED = RuntimeError("CUDA error: operation not permitted when stream is capturing")


@pytest.mark.parametrize("invalid", [False, True], ids=["ends", "cannot end"])
@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (torch.OutOfMemoryError("tried to allocate"), torch.OutOfMemoryError, "OutOfMemoryError: tried to allocate"),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"), torch.OutOfMemoryError, "CUBLAS_STATUS_ALLOC_FAILED"),
        (UNSUPPORTED, CannotStack, "captured: RuntimeError: CUDA error: operation not permitted"),
        (CannotStack("the odd kernel disagrees"), CannotStack, "^the odd kernel disagrees$"),
    ],
    ids=["memory", "memory of a library", "not permitted", "refused"],
)
def test_a_capture_that_fails_says_why_and_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], words: str, invalid: bool
) -> None:
    calls = 0

    def function() -> None:
        nonlocal calls
        calls += 1
        if calls == WARM_UP + 1:
            monkeypatch.setattr(Capturing, "invalid", invalid)
            raise error

    run = capture(function, GraphStream.on(CUDA))
    for _ in range(WARM_UP):
        run()
    with pytest.raises(kind, match=words) as caught:
        run()
    assert type(caught.value) is kind
    assert is_out_of_memory(caught.value) == (kind is torch.OutOfMemoryError)
    assert not Allocator.pools
    assert not Generator.capturing
    monkeypatch.setattr(Capturing, "invalid", False)
    run()
    assert calls == WARM_UP + 2
