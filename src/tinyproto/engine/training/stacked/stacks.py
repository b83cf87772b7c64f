"""The stacks built so far, and what is said where there is none."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

import torch

from tinyproto.core.task import Task, TensorData
from tinyproto.engine.training.stacked.operations import CannotStack
from tinyproto.errors import one_line

Kind = TypeVar("Kind")


class Stacks(Generic[Kind]):
    """By kind of work its stack, or None once it has proved to have none."""

    def __init__(self) -> None:
        self.found: dict[Hashable, Kind | None] = {}
        self.proven: set[Hashable] = set()

    def give_up(self, key: Hashable, reason: Exception) -> None:
        """A stack that failed in its first use has changed nothing; one that worked before has no excuse.

        Neither has one that found no memory: whoever runs several at once has to hear of it.
        """
        if key in self.proven or isinstance(reason, MemoryError | torch.OutOfMemoryError):
            raise reason
        self.found[key] = None

    @staticmethod
    def words(name: str, how: str, reason: Exception) -> str:
        """For the log: whose work is done otherwise, and why."""
        return f"{name} and its like are {how}: {reason if isinstance(reason, CannotStack) else one_line(reason)}"


def kind(task: Task) -> Hashable:
    """Equal for tasks that one stack can take."""
    return (task.key, task.plan.sizes[0] if task.plan.sizes else 0, samples_kind(task.data))


def samples_kind(data: TensorData) -> Hashable:
    """Equal for samples of one pool, or of pools of their own whose samples are alike."""
    return tuple(data.pool.shape[1:]) if data.rows is None else data.pool.data_ptr()


def steps_of(tasks: Sequence[Task]) -> list[int]:
    """How many steps an epoch of each has."""
    return [len(task.plan.sizes) for task in tasks]
