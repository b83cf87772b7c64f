"""The stacked trainer: tasks of one kind run together, everything else one by one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tinyproto.core.streams import global_randomness
from tinyproto.core.task import FeatureModel, FitResult, Task, TensorData
from tinyproto.engine.training.graphed import GraphedTrainer
from tinyproto.engine.training.stacked.features import FeatureStack
from tinyproto.engine.training.stacked.network import StackedModel
from tinyproto.engine.training.stacked.operations import CannotStack
from tinyproto.engine.training.stacked.stack import Stack
from tinyproto.engine.training.stacked.stacks import Stacks, kind, samples_kind, steps_of
from tinyproto.engine.training.stacked.turns import Work, in_turns
from tinyproto.models.split import SplitModel

FEATURE_BATCH = 512
SPARE = 1.25
"""A stack that has to be built anew because more clients came takes this many times as many."""


class StackedTrainer:
    """Runs the tasks that share a kind as one stack; says why where it cannot."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.one_by_one = GraphedTrainer(device)
        self.notes = self.one_by_one.notes
        self.stacks: Stacks[Stack] = Stacks()
        self.feature_stacks: Stacks[FeatureStack] = Stacks()
        self.told = False
        self.architectures: WeakKeyDictionary[SplitModel, Hashable] = WeakKeyDictionary()

    def fit(self, tasks: Sequence[Task]) -> list[FitResult]:
        """Optimise the modules of every task in place."""
        groups: dict[Hashable, list[int]] = {}
        for index, task in enumerate(tasks):
            groups.setdefault(kind(task), []).append(index)
        results: dict[int, FitResult] = {}
        works: dict[Hashable, Work] = {}
        for key, members in groups.items():
            members.sort(key=lambda index: -steps_of(tasks)[index])
            chosen = [tasks[index] for index in members]
            stack = self._stack(key, chosen)
            if stack is not None:
                works[key] = Work(stack.fit(chosen), stack.place, stack.alone)
        with global_randomness(tasks[0].seed if tasks else 0):
            done = in_turns(works)
        for key, members in groups.items():
            chosen = [tasks[index] for index in members]
            outcome = done.get(key)
            if isinstance(outcome, Exception):
                self.stacks.give_up(key, outcome)
                self._say(chosen[0], outcome)
            elif key in done:
                self.stacks.proven.add(key)
            if not isinstance(outcome, list):
                outcome = self.one_by_one.fit(chosen)
            results |= dict(zip(members, cast(list[FitResult], outcome), strict=True))
        self._tell_once(sum(isinstance(outcome, list) for outcome in done.values()), list(results.values()))
        return [results[index] for index in range(len(tasks))]

    def _tell_once(self, stacks: int, results: Sequence[FitResult]) -> None:
        """What it costs that clients are of unequal size."""
        if stacks and not self.told:
            self.told = True
            done, paid = sum(each.steps for each in results), sum(max(each.steps, each.steps_paid) for each in results)
            self.notes.append(f"{len(results)} clients in {stacks} stack(s): {done} steps taken, {paid} computed")

    def _stack(self, key: Hashable, tasks: Sequence[Task]) -> Stack | None:
        """None for tasks without a network, which are the server's, and for what has no stacked form."""
        if not any(isinstance(module, SplitModel) for module in tasks[0].modules.values()):
            return None
        known = self.stacks.found.get(key)
        if key in self.stacks.found and (known is None or known.clients >= len(tasks)):
            return known
        try:
            self.stacks.found[key] = Stack(tasks, _room(known, len(tasks)), StackedModel)
        except CannotStack as reason:
            self.stacks.found[key] = None
            self._say(tasks[0], reason)
        return self.stacks.found[key]

    def _say(self, task: Task, reason: Exception) -> None:
        self.notes.append(Stacks.words(task.name, "trained one by one", reason))

    def features(self, models: Sequence[FeatureModel], data: Sequence[TensorData]) -> list[Tensor]:
        """Eval-mode features (N_i, d) of every model on its data."""
        groups: dict[Hashable, list[int]] = {}
        for index, (model, samples) in enumerate(zip(models, data, strict=True)):
            groups.setdefault((self._architecture(model), samples_kind(samples), len(samples) > 0), []).append(index)
        works: dict[Hashable, Work] = {}
        for key, members in groups.items():
            chosen = [data[index] for index in members]
            split = [model for model in (models[index] for index in members) if isinstance(model, SplitModel)]
            stack = self._feature_stack(key, split, chosen) if len(split) == len(chosen) else None
            if stack is not None:
                works[key] = Work(stack.features(split, chosen), stack.place, stack.alone)
        done = in_turns(works)
        found: dict[int, Tensor] = {}
        for key, members in groups.items():
            outcome = done.get(key)
            if isinstance(outcome, Exception):
                self.feature_stacks.give_up(key, outcome)
            elif key in done:
                self.feature_stacks.proven.add(key)
            if not isinstance(outcome, list):
                outcome = self.one_by_one.features([models[i] for i in members], [data[i] for i in members])
            found |= dict(zip(members, cast(list[Tensor], outcome), strict=True))
        return [found[index] for index in range(len(models))]

    def _feature_stack(
        self, key: Hashable, models: Sequence[SplitModel], data: Sequence[TensorData]
    ) -> FeatureStack | None:
        if data[0].rows is None or not len(data[0]):
            return None
        stacks = self.feature_stacks.found
        known = stacks.get(key)
        if key in stacks and (known is None or known.clients >= len(models)):
            return known
        try:
            stacks[key] = FeatureStack(models[0], _room(known, len(models)), data[0], FEATURE_BATCH, StackedModel)
        except CannotStack:
            stacks[key] = None
        return stacks[key]

    def _architecture(self, model: FeatureModel) -> Hashable:
        """Equal for networks that differ in their weights only."""
        if not isinstance(model, SplitModel):
            return id(model)
        if model not in self.architectures:
            shapes = tuple((name, tuple(value.shape)) for name, value in model.state_dict().items())
            self.architectures[model] = (str(model), shapes)
        return self.architectures[model]


def _room(known: Stack | FeatureStack | None, clients: int) -> int:
    return clients if known is None else int(SPARE * clients)
