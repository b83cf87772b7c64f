"""The stacked trainer: tasks of one kind run as one stack, everything else goes to another trainer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tinyproto.core.streams import global_randomness
from tinyproto.core.task import FeatureModel, FitResult, Task, TensorData, Trainer
from tinyproto.models.split import SplitModel
from tinyproto.stacked.capture import compile_first
from tinyproto.stacked.fallback import OUT_OF_MEMORY, CannotStack, fallback_note
from tinyproto.stacked.features import FeatureStack
from tinyproto.stacked.schedule import Job, run_side_by_side
from tinyproto.stacked.step_loop import Stack

GROWTH = 1.25
"""Growth factor when a stack is rebuilt for more clients."""

AnyStack = TypeVar("AnyStack", Stack, FeatureStack)


class StackedTrainer:
    """Runs tasks that share a key and a pool of samples as one stack; `one_by_one` runs all others."""

    def __init__(self, one_by_one: Trainer) -> None:
        self.one_by_one = one_by_one
        self.device: torch.device = one_by_one.device
        self.notes = one_by_one.notes
        self.stacks: dict[Hashable, Stack | None] = {}  # None: cannot be stacked
        self.feature_stacks: dict[Hashable, FeatureStack | None] = {}
        self.completed: set[Hashable] = set()  # keys whose stack has worked before
        self.architectures: WeakKeyDictionary[SplitModel, Hashable] = WeakKeyDictionary()

    def fit(self, tasks: Sequence[Task]) -> list[FitResult]:
        """Optimise the modules of each task in place."""
        groups: dict[Hashable, list[int]] = {}
        for index in sorted(range(len(tasks)), key=lambda index: -len(tasks[index].plan.sizes)):
            task = tasks[index]
            alike = (task.key, (*task.plan.sizes, 0)[0], task.data.pool.data_ptr())
            groups.setdefault(alike, []).append(index)
        jobs, new = {}, []
        for key, members in groups.items():
            chosen = [tasks[index] for index in members]
            stack = self._stack(key, chosen)
            if stack is not None:
                new += stack.new_steps(chosen)
                jobs[key] = Job(stack.fit(chosen), stack.graphs.stream, stack.alone)
        compile_first(new, self.device)
        with global_randomness(tasks[0].seed if tasks else 0):
            good, failed = self._run(jobs, self.stacks)
        results: dict[int, FitResult] = {}
        for key, members in groups.items():
            chosen = [tasks[index] for index in members]
            if key in failed:
                self.notes.append(fallback_note(chosen[0], "one by one", failed[key]))
            found = good[key] if key in good else self.one_by_one.fit(chosen)
            results |= dict(zip(members, found, strict=True))
        return [results[index] for index in range(len(tasks))]

    def features(self, models: Sequence[FeatureModel], data: Sequence[TensorData]) -> list[Tensor]:
        """Return the eval-mode features (N_i, d) of each model on its data."""
        groups: dict[Hashable, list[int]] = {}
        for index, (model, samples) in enumerate(zip(models, data, strict=True)):
            alike = (self._architecture(model), samples.pool.data_ptr(), samples.rows is None, len(samples) > 0)
            groups.setdefault(alike, []).append(index)
        jobs, new = {}, []
        for key, members in groups.items():
            chosen = [data[index] for index in members]
            split = [model for model in (models[index] for index in members) if isinstance(model, SplitModel)]
            stack = self._feature_stack(key, split, chosen[0]) if len(split) == len(chosen) else None
            if stack is not None:
                new += stack.new_steps(chosen)
                jobs[key] = Job(stack.features(split, chosen), stack.graphs.stream, stack.alone)
        compile_first(new, self.device)
        good, _ = self._run(jobs, self.feature_stacks)
        found: dict[int, Tensor] = {}
        for key, members in groups.items():
            alone = [models[index] for index in members], [data[index] for index in members]
            found |= dict(zip(members, good[key] if key in good else self.one_by_one.features(*alone), strict=True))
        return [found[index] for index in range(len(models))]

    def _stack(self, key: Hashable, tasks: Sequence[Task]) -> Stack | None:
        """Return None for tasks without a network, which are the server's, and for those that cannot be stacked."""
        if not any(isinstance(module, SplitModel) for module in tasks[0].modules.values()):
            return None
        try:
            return _get(self.stacks, key, len(tasks), partial(Stack, tasks[0]))
        except CannotStack as reason:
            self.notes.append(fallback_note(tasks[0], "one by one", reason))
            return None

    def _feature_stack(self, key: Hashable, models: Sequence[SplitModel], data: TensorData) -> FeatureStack | None:
        """Return None for samples outside a shared pool, for no samples, and for networks that cannot be stacked."""
        if data.rows is None or not len(data):
            return None
        try:
            return _get(self.feature_stacks, key, len(models), partial(FeatureStack, models[0], data))
        except CannotStack:  # training has reported it
            return None

    def _run(
        self, jobs: Mapping[Hashable, Job], stacks: dict[Hashable, AnyStack | None]
    ) -> tuple[dict[Hashable, list[Any]], dict[Hashable, Exception]]:
        """Run the jobs side by side; return the results, and the exceptions of stacks to be run in another way.

        A stack that fails in its first use has changed nothing, so another trainer can take over. A failure later on,
        or for lack of memory, is raised.
        """
        good: dict[Hashable, list[Any]] = {}
        failed: dict[Hashable, Exception] = {}
        for key, outcome in run_side_by_side(jobs).items():
            if isinstance(outcome, list):
                self.completed.add(key)
                good[key] = outcome
            else:
                assert isinstance(outcome, Exception)
                if key in self.completed or isinstance(outcome, OUT_OF_MEMORY):
                    raise outcome
                stacks[key] = None
                failed[key] = outcome
        return good, failed

    def _architecture(self, model: FeatureModel) -> Hashable:
        """Return a key that is equal for networks that differ only in their weights."""
        if not isinstance(model, SplitModel):
            return id(model)
        if model not in self.architectures:
            shapes = tuple((name, tuple(value.shape)) for name, value in model.state_dict().items())
            self.architectures[model] = (str(model), shapes)
        return self.architectures[model]


def _get(
    stacks: dict[Hashable, AnyStack | None], key: Hashable, clients: int, build: Callable[[int], AnyStack]
) -> AnyStack | None:
    """Return the stack for this number of clients; build it if there is none or only a smaller one.

    Raise CannotStack if it cannot be built, and return None from then on.
    """
    known = stacks.get(key)
    if key in stacks and (known is None or known.clients >= clients):
        return known
    stacks[key] = None
    built = stacks[key] = build(clients if known is None else int(GROWTH * clients))
    return built
