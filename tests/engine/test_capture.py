"""Streams, branches and captured graphs; a stand-in for torch.cuda hands out the streams."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from tinyproto.stacked.capture import STREAMS, Branch, GraphStream

CUDA = torch.device("cuda", 0)


class Stream:
    """One of torch's streams: there are so many of each priority, given out in turn."""

    given: dict[int, int]

    def __init__(self, device: torch.device, priority: int = 0) -> None:
        count = self.given[priority] = self.given.get(priority, -1) + 1
        self.device, self.place = device, (priority, count % STREAMS)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.place == other.place

    def __hash__(self) -> int:
        return hash(self.place)

    def wait_stream(self, other: Stream) -> None:
        pass


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    Stream.given = {}
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(device))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())


def test_no_stream_serves_two_branches_or_a_branch_and_a_stack() -> None:
    stacks, branches = [], []
    for _ in range(STREAMS + 8):
        stacks.append(GraphStream.on(CUDA).stream)
        branches.append(Branch.on(CUDA))
    used = [branch.stream for branch in branches if branch is not None]
    assert len(set(used)) == len(used) == STREAMS
    assert not set(used) & set(stacks)
    assert branches[STREAMS:] == [None] * 8
    del branches[3]  # of a stack that was freed
    assert Branch.on(CUDA) is not None


def test_a_branch_that_cannot_come_back_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    branch, kept = Branch.on(CUDA), torch.zeros(1)
    assert branch is not None
    with branch.fork(kept):
        pass
    monkeypatch.setattr(Stream, "wait_stream", lambda *_: exec("raise RuntimeError('CUDA error')"))
    with pytest.raises(RuntimeError):
        branch.join()
    branch.join()  # nothing is left to wait for
