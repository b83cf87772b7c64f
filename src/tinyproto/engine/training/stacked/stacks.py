"""The stacks built so far, by kind of work; and what is done where there is none."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import torch

from tinyproto.core.task import Task, TensorData
from tinyproto.engine.training.stacked.operations import CannotStack
from tinyproto.engine.training.stacked.turns import Work, in_turns
from tinyproto.errors import one_line

SPARE = 1.25
"""A stack that has to be built anew because more clients came has room for so many times as many."""


class Sized(Protocol):
    """Has room for so many clients."""

    clients: int


Kind = TypeVar("Kind", bound=Sized)


class Stacks(Generic[Kind]):
    """By kind of work its stack, or None once it has proved to have none."""

    def __init__(self) -> None:
        self.found: dict[Hashable, Kind | None] = {}
        self.proven: set[Hashable] = set()

    def get(self, key: Hashable, clients: int, build: Callable[[int], Kind]) -> Kind | None:
        """The stack for so many clients, built where there is none or a smaller one.

        CannotStack where it cannot be built; from then on None.
        """
        known = self.found.get(key)
        if key in self.found and (known is None or known.clients >= clients):
            return known
        self.found[key] = None
        built = self.found[key] = build(clients if known is None else int(SPARE * clients))
        return built

    def play(self, works: Mapping[Hashable, Work]) -> tuple[dict[Hashable, list[Any]], dict[Hashable, Exception]]:
        """What each gives, side by side; and of those whose stack failed, why. Their work is still to be done."""
        good: dict[Hashable, list[Any]] = {}
        failed: dict[Hashable, Exception] = {}
        for key, outcome in in_turns(works).items():
            if isinstance(outcome, list):
                self.proven.add(key)
                good[key] = outcome
            else:
                assert isinstance(outcome, Exception)
                self._give_up(key, outcome)
                failed[key] = outcome
        return good, failed

    def _give_up(self, key: Hashable, reason: Exception) -> None:
        """A stack that failed in its first use has changed nothing; one that worked before has no excuse.

        Neither has one that found no memory: whoever runs several at once has to hear of it.
        """
        if key in self.proven or isinstance(reason, MemoryError | torch.OutOfMemoryError):
            raise reason
        self.found[key] = None


def words(task: Task, how: str, reason: Exception) -> str:
    """For the log: whose work is done otherwise, and why."""
    return f"{task.name} and its like are {how}: {reason if isinstance(reason, CannotStack) else one_line(reason)}"


def kind(task: Task) -> Hashable:
    """Equal for tasks that one stack can take."""
    return (task.key, task.plan.sizes[0] if task.plan.sizes else 0, samples_kind(task.data))


def samples_kind(data: TensorData) -> Hashable:
    """Equal for samples of one pool, or of pools of their own whose samples are alike."""
    return tuple(data.pool.shape[1:]) if data.rows is None else data.pool.data_ptr()
