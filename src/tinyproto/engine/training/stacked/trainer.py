"""The stacked trainer: tasks of one kind run together, everything else as the reference does it."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tinyproto.core.streams import global_randomness
from tinyproto.core.task import FeatureModel, FitResult, Task, TensorData
from tinyproto.engine.training.eager import EagerTrainer
from tinyproto.engine.training.stacked.features import FeatureStack
from tinyproto.engine.training.stacked.operations import CannotStack
from tinyproto.engine.training.stacked.stack import Stack
from tinyproto.errors import one_line
from tinyproto.models.split import SplitModel

FEATURE_BATCH = 512


class StackedTrainer:
    """Runs the tasks that share a key as one stack; says why where it cannot."""

    def __init__(self, device: torch.device | str = "cpu", *, concurrent: bool = True) -> None:
        self.device = torch.device(device)
        self.concurrent = concurrent
        self.streams: list[torch.cuda.Stream] = []
        self.eager = EagerTrainer(device)
        self.stacks: dict[Hashable, Stack | None] = {}
        self.feature_stacks: dict[Hashable, FeatureStack | None] = {}
        self.architectures: WeakKeyDictionary[SplitModel, int] = WeakKeyDictionary()
        self.proven: set[tuple[int, ...]] = set()
        self.notes: list[str] = []

    def fit(self, tasks: Sequence[Task]) -> list[FitResult]:
        """Optimise the modules of every task in place."""
        groups: dict[Hashable, list[int]] = {}
        for index, task in enumerate(tasks):
            groups.setdefault((task.key, _common_batch(task), _samples(task.data)), []).append(index)
        results: dict[int, FitResult] = {}
        running: dict[tuple[int, ...], Generator[None, None, list[FitResult]]] = {}
        for key, members in groups.items():
            chosen = [tasks[index] for index in members]
            stack = self._stack((key, len(members)), chosen)
            if stack is None:
                results |= dict(zip(members, self.eager.fit(chosen), strict=True))
            else:
                running[tuple(members)] = stack.fit(chosen)
        for together, fitted in self._in_turns(running, tasks[0].seed if tasks else 0).items():
            if isinstance(fitted, Exception):
                self._give_up(together, groups, tasks, fitted)
                fitted = self.eager.fit([tasks[index] for index in together])
            else:
                self.proven.add(together)
            results |= dict(zip(together, fitted, strict=True))
        return [results[index] for index in range(len(tasks))]

    def _give_up(
        self, members: tuple[int, ...], groups: Mapping[Hashable, list[int]], tasks: Sequence[Task], reason: Exception
    ) -> None:
        """A stack that failed in its first fit has changed nothing: its clients are trained one by one from now on."""
        key = next(key for key, found in groups.items() if tuple(found) == members)
        if members in self.proven:
            raise reason
        self.stacks[key, len(members)] = None
        self._note(tasks[members[0]], reason)

    def _note(self, task: Task, reason: Exception) -> None:
        words = str(reason) if isinstance(reason, CannotStack) else one_line(reason)
        self.notes.append(f"{task.name} and its like are trained one by one: {words}")

    def _stack(self, key: Hashable, tasks: Sequence[Task]) -> Stack | None:
        if key not in self.stacks:
            try:
                self.stacks[key] = Stack(tasks)
            except CannotStack as reason:
                self.stacks[key] = None
                self._note(tasks[0], reason)
        return self.stacks[key]

    def _in_turns(
        self, running: Mapping[tuple[int, ...], Generator[None, None, list[FitResult]]], seed: int
    ) -> dict[tuple[int, ...], list[FitResult] | Exception]:
        """A step of each in turn, each on a stream of its own, so that small kernels of several fill the device."""
        done: dict[tuple[int, ...], list[FitResult] | Exception] = {}
        lanes = {members: self._stream(place) for place, members in enumerate(running)}
        with global_randomness(seed):
            while len(done) < len(running):
                for members, fit in running.items():
                    if members not in done:
                        with lanes[members]:
                            try:
                                next(fit)
                            except StopIteration as end:
                                done[members] = end.value
                            except Exception as error:  # whatever it is, the reference will say it better
                                done[members] = error
        if self.device.type == "cuda":
            for stream in self.streams:
                torch.cuda.current_stream(self.device).wait_stream(stream)
        return done

    def _stream(self, place: int) -> AbstractContextManager[object]:
        if self.device.type != "cuda" or not self.concurrent:
            return nullcontext()
        while len(self.streams) <= place:
            self.streams.append(torch.cuda.Stream(self.device))  # type: ignore[no-untyped-call]
        self.streams[place].wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(self.streams[place])

    def features(self, models: Sequence[FeatureModel], data: Sequence[TensorData]) -> list[Tensor]:
        """Eval-mode features (N_i, d) of every model on its data."""
        groups: dict[Hashable, list[int]] = {}
        for index, model in enumerate(models):
            groups.setdefault(self._architecture(model), []).append(index)
        found: dict[int, Tensor] = {}
        for key, members in groups.items():
            own = self._features_together(key, [models[i] for i in members], [data[i] for i in members])
            found |= dict(zip(members, own, strict=True))
        return [found[index] for index in range(len(models))]

    def _features_together(
        self, key: Hashable, models: Sequence[FeatureModel], data: Sequence[TensorData]
    ) -> list[Tensor]:
        split = [model for model in models if isinstance(model, SplitModel)]
        shared = len({samples.pool.data_ptr() for samples in data}) == 1 and all(len(samples) for samples in data)
        if len(split) < len(models) or not shared:
            return self.eager.features(models, data)
        longest = max(len(samples) for samples in data)
        full_key = (key, len(models), -(-longest // FEATURE_BATCH))
        if full_key not in self.feature_stacks:
            try:
                self.feature_stacks[full_key] = FeatureStack(split, data[0], FEATURE_BATCH)
            except CannotStack:
                self.feature_stacks[full_key] = None
        stack = self.feature_stacks[full_key]
        if stack is not None and stack.samples.pool.data_ptr() == data[0].pool.data_ptr():
            try:
                return stack.features(split, data)
            except CannotStack:
                self.feature_stacks[full_key] = None
        return self.eager.features(models, data)

    def _architecture(self, model: FeatureModel) -> Hashable:
        """Equal for networks that differ in their weights only."""
        if not isinstance(model, SplitModel):
            return id(model)
        if model not in self.architectures:
            shapes = tuple((name, tuple(value.shape)) for name, value in model.state_dict().items())
            self.architectures[model] = hash((str(model), shapes))
        return self.architectures[model]


def _samples(data: TensorData) -> Hashable:
    """Equal for samples that one stack can take: the same pool, or a pool of the task's own of the same shape."""
    return tuple(data.pool.shape) if data.rows is None else data.pool.data_ptr()


def _common_batch(task: Task) -> int:
    return task.plan.sizes[0] if task.plan.sizes else 0
