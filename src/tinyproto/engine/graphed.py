"""The graphed trainer: the eager trainer's steps, captured once per kind of task and replayed, one task after another.

It takes any network, so the stacked trainer falls back to it. It also runs the server's fit, many epochs in
one kernel or an epoch in one graph. On a CPU nothing is captured.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from tinyproto.core.prototypes import ClassSums, class_sums
from tinyproto.core.streams import global_randomness
from tinyproto.core.task import FEATURE_BATCH, Batch, FitResult, State, Task, TensorData
from tinyproto.engine.eager import EagerTrainer, Sgd
from tinyproto.engine.prototype_fit import PrototypeFit, prototype_fit
from tinyproto.memory import is_out_of_memory, release_unused
from tinyproto.models.split import SplitModel
from tinyproto.stacked.capture import GraphStream, capture, in_order
from tinyproto.stacked.fallback import CannotStack, fallback_note, still_usable
from tinyproto.stacked.rehearsal import check_repeats
from tinyproto.stacked.signature import signature

MOST_CAPTURED = 64
"""Batch sizes a kind of task keeps captured; beyond that it discards the oldest."""


class GraphedTrainer(EagerTrainer):
    """Captures the steps of each kind of task; where that fails the eager trainer runs it, and a note says why.

    Features are the eager trainer's: large batches need no graph.
    """

    def __init__(
        self, device: torch.device | str = "cpu", feature_batch: int = FEATURE_BATCH, *, shared: bool = False
    ) -> None:
        super().__init__(device, feature_batch, shared=shared)
        self.captured: dict[Hashable, CapturedTask | None] = {}  # None: cannot be captured

    def fit(self, tasks: Sequence[Task]) -> list[FitResult]:
        """Optimise the modules of each task in place."""
        return [self._fit_captured(task) for task in tasks]

    def _fit_captured(self, task: Task) -> FitResult:
        key = (task.key, tuple(map(signature, task.modules.values())), task.data.pool.shape[1:])
        if key in self.captured and self.captured[key] is None:
            return super().fit([task])[0]
        captured = None
        try:
            captured = self.captured[key] = self.captured.get(key) or CapturedTask(task, shared=self.shared)
            with global_randomness(task.seed):
                result = captured.fit(task)
        except Exception as error:  # an unfinished fit has changed nothing yet, so the eager trainer can take over
            lacking = is_out_of_memory(error)
            first = captured is not None and not captured.completed
            expected = not self.shared if lacking else first or isinstance(error, CannotStack)
            if not expected or not still_usable(self.device, error):
                error.add_note(f"while training {task.name}")
                raise
            self.captured[key] = captured = None
            self.notes.append(fallback_note(task, "without graphs", error))
        else:
            if captured.kernel_error is not None:
                self.notes.append(fallback_note(task, "without their own kernels", captured.kernel_error))
                captured.kernel_error = None
            return result
        if lacking:  # what other kinds of tasks captured makes room, and is captured again
            self.captured = {known: None for known, held in self.captured.items() if held is None}
            release_unused(self.device)
        return super().fit([task])[0]


class CapturedTask:
    """Copies of a task's modules and context that stay in place, and the captured steps that train them.

    A task of this kind is copied in, trained, and copied back.
    """

    def __init__(self, task: Task, *, shared: bool = False) -> None:
        for module in task.modules.values():
            check_repeats(module, task.data)
        self.loss, self.num_classes = task.loss, task.num_classes
        self.modules = copy.deepcopy(task.modules).train()
        self.context = {name: torch.empty_like(value) for name, value in task.context.items()}
        self.sgd = Sgd(self.modules, task.groups)
        self.kernels = prototype_fit(task, shared=shared)
        self.kernel_error: CannotStack | None = None  # why the kernels are no longer used
        self.epoch_at_once = not any(isinstance(module, SplitModel) for module in task.modules.values())
        self.parts = torch.zeros(len(task.part_names), dtype=torch.float64, device=task.data.labels.device)
        self.observed: ClassSums | None = None
        self.graphs = GraphStream.on(self.parts.device)
        self.captured: dict[tuple[int, ...], tuple[Batch, Callable[[], None]]] = {}  # by batch sizes
        self.completed = False

    def fit(self, task: Task) -> FitResult:
        """Run all epochs of a task."""
        with in_order([self.graphs.stream]), torch.cuda.stream(self.graphs.stream):
            return self._fit(task)

    def _fit(self, task: Task) -> FitResult:
        plan = task.plan
        _copy(task.modules, self.modules)
        for name, value in self.context.items():
            value.copy_(task.context[name])
        order = plan.order.to(self.parts.device)
        kernels = self._checked_kernels(plan.sizes)
        if kernels is not None:
            sums = kernels.run(self._weights(), task.data, order, plan.sizes[0], self.context["penalty"]).unsqueeze(1)
        else:
            sums = self._run_graphs(plan.sizes, task.data, order)
        means = sums.cpu() / max(sum(plan.sizes), 1)
        if kernels is not None and not bool(means.isfinite().all()):  # the task's modules are still as they were
            self.kernels, self.kernel_error = None, CannotStack("its loss is not finite with them")
            return self._fit(task)
        observed = None
        if self.observed is not None and plan.sizes:  # without a step they are those of another task of this kind
            observed = ClassSums(*(sums.clone() for sums in self.observed))
        _copy(self.modules, task.modules)  # the last thing that could fail: until then the task is as it was
        self.completed = True
        steps = plan.epochs * len(plan.sizes)
        return FitResult(means, task.part_names, steps, observed, steps)

    def _checked_kernels(self, sizes: tuple[int, ...]) -> PrototypeFit | None:
        """Return the server's own kernels if they apply to such batches; discard them if they fail their check."""
        if self.kernels is None or not sizes or any(size != sizes[0] for size in sizes[:-1]) or sizes[-1] > sizes[0]:
            return None
        try:
            self.kernels.check(self._weights(), sizes[0], self.context["penalty"])
        except CannotStack as reason:
            self.kernels, self.kernel_error = None, reason
        return self.kernels

    def _weights(self) -> State:
        return dict(self.modules["prototypes"].named_parameters())

    def _run_graphs(self, sizes: tuple[int, ...], data: TensorData, order: Tensor) -> Tensor:
        """Take the steps of all epochs; return the sums of the logged terms, (epochs, P)."""
        history = torch.zeros(len(order), len(self.parts), dtype=torch.float64, device=self.parts.device)
        for epoch, rows in enumerate(order):
            self.parts.zero_()
            for sums in self.observed or ():
                sums.zero_()
            self._run(sizes, data.subset(rows))
            history[epoch] = self.parts
        return history

    def _run(self, sizes: tuple[int, ...], samples: TensorData) -> None:
        """Take the steps of an epoch, captured as one graph or one for each step."""
        start = 0
        for each in [sizes] if self.epoch_at_once and sizes else [(size,) for size in sizes]:
            stop = start + sum(each)
            self._run_captured(each, samples.batch(slice(start, stop)))
            start = stop

    def _run_captured(self, sizes: tuple[int, ...], samples: Batch) -> None:
        """Take a step for each batch size on consecutive samples, captured as one graph."""
        if sizes not in self.captured:
            if len(self.captured) >= MOST_CAPTURED:
                del self.captured[next(iter(self.captured))]
            held = Batch(*map(torch.empty_like, samples))
            self.captured[sizes] = held, capture(partial(self._steps, sizes, held), self.graphs)
        held, run = self.captured[sizes]
        for target, given in zip(held, samples, strict=True):
            target.copy_(given)
        run()

    def _steps(self, sizes: tuple[int, ...], samples: Batch) -> None:
        for inputs, labels in zip(*(torch.split(each, list(sizes)) for each in samples), strict=True):
            self._step(Batch(inputs, labels))

    def _step(self, batch: Batch) -> None:
        """Take one step of SGD as the eager trainer does."""
        step = self.sgd.step(self.loss, batch, self.context)
        self.parts += step.parts * len(batch.labels)
        if step.observed is not None:
            more = class_sums(step.observed, batch.labels, self.num_classes)
            if self.observed is None:
                self.observed = ClassSums(*map(torch.zeros_like, more))
            for sums, added in zip(self.observed, more, strict=True):
                sums += added


@torch.no_grad()
def _copy(source: nn.Module, target: nn.Module) -> None:
    """Copy parameters and buffers."""
    for tensors in (nn.Module.parameters, nn.Module.buffers):
        given, held = list(tensors(source)), list(tensors(target))
        if held:
            torch._foreach_copy_(held, given)
