"""The graphed trainer: one task after another, each step captured once per kind of task and replayed.

It needs no stacked form of a network, so it is also what the stacked trainer falls back to. On a CPU nothing is
captured, and it computes what the reference computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from tinyproto.core.streams import global_randomness
from tinyproto.core.task import FeatureModel, FitResult, Task, TensorData
from tinyproto.engine.training.eager import EagerTrainer
from tinyproto.engine.training.stacked.stack import Stack
from tinyproto.engine.training.stacked.stacks import Stacks, kind, words
from tinyproto.engine.training.stacked.turns import Work
from tinyproto.engine.training.stacked.whole import WholeModel


class GraphedTrainer:
    """Captures the steps of each kind of task; falls back to the reference where that fails, and says so."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.eager = EagerTrainer(device)
        self.stacks: Stacks[Stack] = Stacks()
        self.notes: list[str] = []

    def fit(self, tasks: Sequence[Task]) -> list[FitResult]:
        """Optimise the modules of every task in place."""
        return [self._fit(task) for task in tasks]

    def _fit(self, task: Task) -> FitResult:
        key = kind(task)
        stack = self.stacks.get(key, 1, partial(Stack, task, form=WholeModel))
        if stack is None:
            return self.eager.fit([task])[0]
        with global_randomness(task.seed):
            good, failed = self.stacks.play({key: Work(stack.fit([task]), stack.place, alone=True)})
        if key in failed:
            self.notes.append(words(task, "trained as the reference does it", failed[key]))
            return self.eager.fit([task])[0]
        if stack.given_up is not None:
            self.notes.append(words(task, "trained without kernels of their own", stack.given_up))
            stack.given_up = None
        result: FitResult = good[key][0]
        return result

    def features(self, models: Sequence[FeatureModel], data: Sequence[TensorData]) -> list[Tensor]:
        """Eval-mode features (N_i, d) of every model on its data: in large batches, which fill a device as they are."""
        return self.eager.features(models, data)
