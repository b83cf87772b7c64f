"""The stacked trainer: tasks of one kind run as one stack, everything else goes to another trainer.

A stack changes its tasks only at its end, and features change nothing. So where memory runs out, in any round, all
stacks are freed, and what is left runs again: with fewer samples at once, in narrower stacks, at last one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from tinyproto.core.streams import global_randomness
from tinyproto.core.task import FEATURE_BATCH, FeatureModel, FitResult, Task, TensorData, Trainer
from tinyproto.errors import one_line
from tinyproto.memory import ROOM, is_out_of_memory, leaves_room, release_unused
from tinyproto.models.split import SplitModel
from tinyproto.stacked.capture import compile_first
from tinyproto.stacked.fallback import CannotStack, fallback_note, reason_of, still_usable
from tinyproto.stacked.features import LEAST_FEATURES, FeatureStack
from tinyproto.stacked.schedule import Job, run_side_by_side
from tinyproto.stacked.signature import signature
from tinyproto.stacked.step_loop import Stack, full_batches

GROWTH = 1.25
"""Growth factor when a stack is rebuilt for more clients."""

AnyStack = TypeVar("AnyStack", Stack, FeatureStack)
AnyResult = TypeVar("AnyResult")
Groups = dict[Hashable, list[int]]
"""Places of tasks, or of models and their data, by what those of one stack share."""


class StackedTrainer:
    """Runs tasks that share a key and a pool of samples as one stack; `one_by_one` runs all others.

    `width` is the most clients of a stack: None without a limit, 0 where memory is too short for stacks.
    """

    def __init__(
        self, one_by_one: Trainer, width: int | None = None, feature_batch: int = FEATURE_BATCH, *, shared: bool = False
    ) -> None:
        self.one_by_one = one_by_one
        self.width = width
        self.feature_batch = feature_batch
        self.shared = shared  # other cells run on the device, so a lack of memory is raised
        self.device: torch.device = one_by_one.device
        self.notes = one_by_one.notes
        self.stacks: dict[Hashable, Stack | None] = {}  # None: cannot be stacked
        self.feature_stacks: dict[Hashable, FeatureStack | None] = {}
        self.completed: set[Hashable] = set()  # keys whose stack has worked before
        self.lacking = ""  # the last error for lack of memory

    def fit(self, tasks: Sequence[Task]) -> list[FitResult]:
        """Optimise the modules of each task in place."""
        groups: Groups = {}
        for index in sorted(range(len(tasks)), key=lambda index: -full_batches(tasks[index].plan.sizes)):
            task = tasks[index]
            kinds = tuple(map(signature, task.modules.values()))
            alike = (task.key, kinds, (*task.plan.sizes, 0)[0], task.data.pool.data_ptr())
            groups.setdefault(alike, []).append(index)
        found = self._in_parts(groups, partial(self._fit, tasks))
        return [found[index] for index in range(len(tasks))]

    def features(self, models: Sequence[FeatureModel], data: Sequence[TensorData]) -> list[Tensor]:
        """Return the eval-mode features (N_i, d) of each model on its data."""
        groups: Groups = {}
        for index, (model, samples) in enumerate(zip(models, data, strict=True)):
            kind = signature(model) if isinstance(model, SplitModel) else id(model)
            alike = (kind, samples.pool.data_ptr(), samples.rows is None, len(samples) > 0)
            groups.setdefault(alike, []).append(index)
        found = self._in_parts(groups, partial(self._features, models, data), features=True)
        return [found[index] for index in range(len(models))]

    def _in_parts(
        self, groups: Groups, run: Callable[[Groups], dict[int, AnyResult]], *, features: bool = False
    ) -> dict[int, AnyResult]:
        """Run all groups, at most `width` members of each at once; return the results by place.

        `run` returns no results for members that lack memory. They run again in a smaller way.
        """
        results: dict[int, AnyResult] = {}
        widest = max(map(len, groups.values()), default=0)
        while groups:
            part = {key: members[: self.width or None] for key, members in groups.items()}
            results |= run(part)
            if any(index not in results for members in part.values() for index in members):
                self._make_room(max(map(len, part.values())), features=features)
            waiting = {key: [index for index in members if index not in results] for key, members in groups.items()}
            groups = {key: members for key, members in waiting.items() if members}
        self._leave_room(widest, features=features)
        return results

    def _leave_room(self, width: int, *, features: bool) -> None:
        """Free all stacks if they leave no memory to what the caller does next, which nobody could run again."""
        stacks = any((*self.stacks.values(), *self.feature_stacks.values()))
        if stacks and not self.shared and not leaves_room(self.device):
            self.lacking = f"stacks leave less than {ROOM >> 20} MiB"
            self._make_room(min(width, self.width or width), features=features)

    def _make_room(self, width: int, *, features: bool) -> None:
        """Free all stacks, and compute less at once from now on than `width` clients of each network."""
        built = (stack.largest for stack in self.feature_stacks.values() if stack is not None)
        batch = max(built, default=self.feature_batch) if features else 0
        if batch > LEAST_FEATURES:
            self.feature_batch = max(batch // 4, LEAST_FEATURES)
            how = f"features are computed {self.feature_batch} samples at a time"
        else:
            self.width = width - width // 2 if width > 1 else 0
            how = f"clients of a network run {self.width} at a time" if self.width else "clients run one by one"
        self.notes.append(f"from now on {how}, since memory ran out: {self.lacking}")
        self.stacks = {key: None for key, stack in self.stacks.items() if stack is None}
        self.feature_stacks = {key: None for key, stack in self.feature_stacks.items() if stack is None}
        self.completed.clear()
        release_unused(self.device)

    def _fit(self, tasks: Sequence[Task], groups: Groups) -> dict[int, FitResult]:
        """Run each group as a stack, side by side."""
        jobs, new = {}, []
        short: set[Hashable] = set()
        longest = max(groups, key=lambda key: _length(tasks[groups[key][0]]))
        for key, members in groups.items():
            chosen = [tasks[index] for index in members]
            with self._noting_lack(key, short):
                stack = self._stack(key, chosen, urgent=key == longest)
                if stack is not None:
                    new += stack.new_steps(chosen)
                    jobs[key] = Job(stack.fit(chosen), stack.graphs.stream, stack.alone)
        compile_first(new, self.device)
        with global_randomness(tasks[min(index for members in groups.values() for index in members)].seed):
            good, failed = self._run(jobs, self.stacks, short)
        results: dict[int, FitResult] = {}
        for key, members in groups.items():
            if key in short:
                continue
            chosen = [tasks[index] for index in members]
            if key in failed:
                self.notes.append(fallback_note(chosen[0], "one by one", failed[key]))
            found = good[key] if key in good else self.one_by_one.fit(chosen)
            results |= dict(zip(members, found, strict=True))
        return results

    def _features(
        self, models: Sequence[FeatureModel], data: Sequence[TensorData], groups: Groups
    ) -> dict[int, Tensor]:
        """Compute the features of each group as a stack, side by side."""
        jobs, new = {}, []
        short: set[Hashable] = set()
        for key, members in groups.items():
            chosen = [data[index] for index in members]
            split = [model for model in (models[index] for index in members) if isinstance(model, SplitModel)]
            with self._noting_lack(key, short):
                stack = self._feature_stack(key, split, chosen[0]) if len(split) == len(chosen) else None
                if stack is not None:
                    new += stack.new_steps(chosen)
                    jobs[key] = Job(stack.features(split, chosen), stack.graphs.stream, stack.alone)
        compile_first(new, self.device)
        good, failed = self._run(jobs, self.feature_stacks, short)
        for reason in failed.values():
            self.notes.append(f"features of similar networks are computed one by one: {reason_of(reason)}")
        results: dict[int, Tensor] = {}
        for key, members in groups.items():
            if key in short:
                continue
            alone = [models[index] for index in members], [data[index] for index in members]
            results |= dict(zip(members, good[key] if key in good else self.one_by_one.features(*alone), strict=True))
        return results

    @contextmanager
    def _noting_lack(self, key: Hashable, short: set[Hashable]) -> Iterator[None]:
        """Add the key to `short` if memory runs out inside, unless others on the device have to know."""
        try:
            yield
        except Exception as error:
            if self.shared or not is_out_of_memory(error):
                raise
            self.lacking = one_line(error)  # not the error, whose traceback holds the stack
            short.add(key)

    def _stack(self, key: Hashable, tasks: Sequence[Task], *, urgent: bool) -> Stack | None:
        """Return None for tasks without a network, which are the server's, and for those that cannot be stacked."""
        if self.width == 0 or not any(isinstance(module, SplitModel) for module in tasks[0].modules.values()):
            return None
        try:
            return _get(self.stacks, key, len(tasks), self.width, partial(Stack, tasks[0], urgent=urgent))
        except CannotStack as reason:
            self.notes.append(fallback_note(tasks[0], "one by one", reason))
            return None

    def _feature_stack(self, key: Hashable, models: Sequence[SplitModel], data: TensorData) -> FeatureStack | None:
        """Return None for samples outside a shared pool, for no samples, and for networks that cannot be stacked."""
        if self.width == 0 or data.rows is None or not len(data):
            return None
        try:
            build = partial(FeatureStack, models[0], data, self.feature_batch)
            return _get(self.feature_stacks, key, len(models), self.width, build)
        except CannotStack:  # training has reported it
            return None

    def _run(
        self, jobs: Mapping[Hashable, Job], stacks: dict[Hashable, AnyStack | None], short: set[Hashable]
    ) -> tuple[dict[Hashable, list[Any]], dict[Hashable, Exception]]:
        """Run the jobs side by side; return the results, and the exceptions of stacks to be run in another way.

        Stacks that lack memory are added to `short`. Work of a stack that fails in its first use, or is refused, runs
        in another way. Any other failure is raised.
        """
        good: dict[Hashable, list[Any]] = {}
        failed: dict[Hashable, Exception] = {}
        for key, outcome in run_side_by_side(jobs).items():
            if isinstance(outcome, list):
                self.completed.add(key)
                good[key] = outcome
                continue
            assert isinstance(outcome, Exception)
            with self._noting_lack(key, short):
                expected = isinstance(outcome, CannotStack) or not (key in self.completed or is_out_of_memory(outcome))
                if not expected or not still_usable(self.device, outcome):
                    raise outcome
                stacks[key] = None
                failed[key] = outcome
        return good, failed


def _length(task: Task) -> int:
    """Estimate the time of a task by its steps and layers: kernels are small, so their number counts."""
    return len(task.plan.sizes) * sum(1 for _ in task.modules.parameters())


def _get(
    stacks: dict[Hashable, AnyStack | None], key: Hashable, clients: int, most: int | None,
    build: Callable[[int], AnyStack],
) -> AnyStack | None:  # fmt: skip
    """Return the stack for this number of clients; build it if there is none or only a smaller one.

    A stack that grows becomes larger than needed, but has at most `most` clients.
    Raise CannotStack if it cannot be built, and return None from then on.
    """
    known = stacks.get(key)
    if key in stacks and (known is None or known.clients >= clients):
        return known
    try:
        grown = clients if known is None else int(GROWTH * clients)
        built = stacks[key] = build(min(grown, most or grown))
    except CannotStack:
        stacks[key] = None
        raise
    return built
