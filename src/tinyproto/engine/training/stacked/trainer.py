"""The stacked trainer: tasks of one kind run together, everything else one by one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
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
from tinyproto.engine.training.stacked.stacks import Stacks, kind, samples_kind, words
from tinyproto.engine.training.stacked.turns import Work
from tinyproto.models.split import SplitModel

FEATURE_BATCH = 512


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
        for index in sorted(range(len(tasks)), key=lambda index: -len(tasks[index].plan.sizes)):
            groups.setdefault(kind(tasks[index]), []).append(index)
        works = {}
        for key, members in groups.items():
            chosen = [tasks[index] for index in members]
            stack = self._stack(key, chosen)
            if stack is not None:
                works[key] = Work(stack.fit(chosen), stack.place, stack.alone)
        with global_randomness(tasks[0].seed if tasks else 0):
            good, failed = self.stacks.play(works)
        results: dict[int, FitResult] = {}
        for key, members in groups.items():
            chosen = [tasks[index] for index in members]
            if key in failed:
                self.notes.append(words(chosen[0], "trained one by one", failed[key]))
            found = good[key] if key in good else self.one_by_one.fit(chosen)
            results |= dict(zip(members, found, strict=True))
        self._tell_once(len(good), list(results.values()))
        return [results[index] for index in range(len(tasks))]

    def _stack(self, key: Hashable, tasks: Sequence[Task]) -> Stack | None:
        """None for tasks without a network, which are the server's, and for what has no stacked form."""
        if not any(isinstance(module, SplitModel) for module in tasks[0].modules.values()):
            return None
        try:
            return self.stacks.get(key, len(tasks), partial(Stack, tasks[0], form=StackedModel))
        except CannotStack as reason:
            self.notes.append(words(tasks[0], "trained one by one", reason))
            return None

    def _tell_once(self, stacks: int, results: Sequence[FitResult]) -> None:
        """What it costs that clients are of unequal size."""
        if stacks and not self.told:
            self.told = True
            done, computed = sum(each.steps for each in results), sum(each.steps_computed for each in results)
            self.notes.append(f"{len(results)} clients in {stacks} stack(s): {done} steps taken, {computed} computed")

    def features(self, models: Sequence[FeatureModel], data: Sequence[TensorData]) -> list[Tensor]:
        """Eval-mode features (N_i, d) of every model on its data."""
        groups: dict[Hashable, list[int]] = {}
        for index, (model, samples) in enumerate(zip(models, data, strict=True)):
            groups.setdefault((self._architecture(model), samples_kind(samples), len(samples) > 0), []).append(index)
        works = {}
        for key, members in groups.items():
            chosen = [data[index] for index in members]
            split = [model for model in (models[index] for index in members) if isinstance(model, SplitModel)]
            stack = self._feature_stack(key, split, chosen[0]) if len(split) == len(chosen) else None
            if stack is not None:
                works[key] = Work(stack.features(split, chosen), stack.place, stack.alone)
        good, _ = self.feature_stacks.play(works)
        found: dict[int, Tensor] = {}
        for key, members in groups.items():
            alone = [models[index] for index in members], [data[index] for index in members]
            found |= dict(zip(members, good[key] if key in good else self.one_by_one.features(*alone), strict=True))
        return [found[index] for index in range(len(models))]

    def _feature_stack(self, key: Hashable, models: Sequence[SplitModel], data: TensorData) -> FeatureStack | None:
        """None for samples of their own, for no samples, and for what has no stacked form."""
        if data.rows is None or not len(data):
            return None
        build = partial(FeatureStack, models[0], data=data, batch=FEATURE_BATCH, form=StackedModel)
        try:
            return self.feature_stacks.get(key, len(models), build)
        except CannotStack:  # its training has said so
            return None

    def _architecture(self, model: FeatureModel) -> Hashable:
        """Equal for networks that differ in their weights only."""
        if not isinstance(model, SplitModel):
            return id(model)
        if model not in self.architectures:
            shapes = tuple((name, tuple(value.shape)) for name, value in model.state_dict().items())
            self.architectures[model] = (str(model), shapes)
        return self.architectures[model]
