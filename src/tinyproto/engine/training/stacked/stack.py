"""One stack: tasks of equal kind, their weights together, their steps one computation."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from tinyproto.core.prototypes import ClassSums
from tinyproto.core.task import Batch, FitResult, State, Task
from tinyproto.engine.training.stacked.capture import Repeated
from tinyproto.engine.training.stacked.network import StackedModel
from tinyproto.engine.training.stacked.operations import CannotStack
from tinyproto.engine.training.stacked.samples import Samples, pool_rows
from tinyproto.engine.training.stacked.state import StackedState
from tinyproto.models.split import Output, SplitModel


class _Turn(NamedTuple):
    """One step's samples: where in the pool, and their labels; who takes part."""

    rows: Tensor  # (n, B)
    labels: Tensor  # (n, B)
    active: Tensor  # (n,) float


class Stack:
    """n clients whose tasks have one key; built once, used every round."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        first = tasks[0]
        self.loss = first.loss
        self.groups = first.groups
        self.part_count = len(first.part_names)
        self.num_classes = first.num_classes
        self.device = first.data.labels.device
        self.networks = {
            name: StackedModel(module) for name, module in first.modules.items() if isinstance(module, SplitModel)
        }
        self.plain = {name: module for name, module in first.modules.items() if name not in self.networks}
        self.states = {name: StackedState([task.modules[name] for task in tasks]) for name in first.modules}
        self.context: State = {name: torch.stack([task.context[name] for task in tasks]) for name in first.context}
        self.owns_pool = first.data.rows is None  # samples that are new in every round
        pool = first.data.pool.clone() if self.owns_pool else first.data.pool
        self.samples = Samples(pool, first.data.scale, first.data.shift)
        self.dtype = next(parameter.dtype for parameter in first.modules.parameters())
        clients = len(tasks)
        self.clients = clients
        self.parts = torch.zeros(clients, self.part_count, dtype=torch.float64, device=self.device)
        self.observed: ClassSums | None = None
        self.lanes: dict[int, _Lane] = {}  # by batch size

    def fit(self, tasks: Sequence[Task]) -> Generator[None, None, list[FitResult]]:
        """All epochs of all tasks, step by step, so that other stacks may take turns."""
        self._take_in(tasks)
        epochs = tasks[0].plan.epochs
        history = torch.zeros(epochs, self.clients, self.part_count, dtype=torch.float64, device=self.device)
        for epoch in range(epochs):
            self.parts.zero_()
            for each in self.observed or ():
                each.zero_()
            yield from self._epoch(tasks, epoch)
            history[epoch] = self.parts
        steps = [epochs * len(task.plan.sizes) for task in tasks]
        for name, state in self.states.items():
            state.store([task.modules[name] for task in tasks], steps)
        yield
        samples = torch.tensor([max(sum(task.plan.sizes), 1) for task in tasks], dtype=torch.float64)
        means = history.cpu() / samples[None, :, None]
        return [
            FitResult(means[:, client], task.part_names, steps[client], self._observed_by(client))
            for client, task in enumerate(tasks)
        ]

    def _take_in(self, tasks: Sequence[Task]) -> None:
        """Weights, context and, where the samples are the task's own, the samples."""
        for name, state in self.states.items():
            state.load([task.modules[name] for task in tasks])
        for name, stacked in self.context.items():
            for client, task in enumerate(tasks):
                stacked[client].copy_(task.context[name])
        if self.owns_pool:
            self.samples.pool.copy_(tasks[0].data.pool)

    def _epoch(self, tasks: Sequence[Task], epoch: int) -> Generator[None, None, None]:
        full = [_full_batches(task) for task in tasks]
        batch = next((task.plan.sizes[0] for task in tasks if task.plan.sizes), 0)
        yield from self._together(tasks, epoch, batch, [0] * len(tasks), full)
        for client, task in enumerate(tasks):
            rest = task.plan.sizes[full[client] :]
            if self.clients == 1 and len(rest) == 1:
                yield from self._together(tasks, epoch, rest[0], [full[0] * batch], [1])
            elif rest:
                self._rest(client, task, epoch, full[client])
                yield

    def _together(
        self, tasks: Sequence[Task], epoch: int, batch: int, starts: Sequence[int], steps: Sequence[int]
    ) -> Generator[None, None, None]:
        """Batches of one size: where their samples are is copied at once, then step after step."""
        if max(steps, default=0) == 0:
            return
        lane = self.lanes.get(batch)
        if lane is None or lane.rows.shape[1] < max(steps):
            lane = self.lanes[batch] = _Lane(self, max(steps), batch)
        lane.place(tasks, epoch, starts, steps)
        for _ in range(max(steps)):
            lane.repeated()
            yield

    def step(self, turn: _Turn) -> None:
        """One step of every client that has one; the statistics of the others stay as they were."""
        before = {name: state.flat.clone() for name, state in self.states.items() if self.clients > 1}
        self._train(self.states, turn, self.context, self.parts, self.observed, normalise=turn.rows.shape[1] > 1)
        for name, values in before.items():
            state = self.states[name]
            state.flat.copy_(torch.where(turn.active[state.owner] > 0, state.flat, values))

    def _rest(self, client: int, task: Task, epoch: int, full: int) -> None:
        """The batches of a client that are not of the common size, alone."""
        start = sum(task.plan.sizes[:full])
        for size in task.plan.sizes[full:]:
            order = task.plan.order[epoch, start : start + size].to(self.device)
            turn = _Turn(
                pool_rows(task.data, order).unsqueeze(0),
                task.data.labels[order].unsqueeze(0),
                torch.ones(1, device=self.device),
            )
            observed = self.observed
            if observed is not None:
                observed = ClassSums(observed.sums[client : client + 1], observed.counts[client : client + 1])
            self._train(
                {name: state.of(client) for name, state in self.states.items()},
                turn,
                {name: value[client : client + 1] for name, value in self.context.items()},
                self.parts[client : client + 1],
                observed,
                normalise=size > 1,
            )
            start += size

    def _train(
        self, states: Mapping[str, StackedState], turn: _Turn, context: State, parts: Tensor,
        observed: ClassSums | None, *, normalise: bool,
    ) -> None:  # fmt: skip
        """One step of SGD; what a client without a step would have moved is left where it was."""
        batch = turn.rows.shape[1]
        inputs = self.samples.take(turn.rows, self.dtype)  # (n, B, …)
        stacked = inputs.transpose(1, 2).contiguous() if self.networks else inputs
        outputs = {
            name: network(stacked, states[name].tensors, normalise=normalise, training=True)
            for name, network in self.networks.items()
        }
        plain = {name: states[name].tensors for name in self.plain}
        losses, logged, seen = vmap(self._per_client, randomness="different")(
            outputs, plain, inputs, turn.labels, context
        )
        leaves = [value for name in self.states for value in states[name].parameters.values()]
        gradients = torch.autograd.grad((losses * turn.active).sum(), leaves, allow_unused=True)
        found = dict(zip(map(id, leaves), gradients, strict=True))
        with torch.no_grad():
            for group in self.groups:
                _descend(list(states[group.module].parameters.values()), found, group.learning_rate, group.clip_norm)
            parts += logged.double() * turn.active.double().unsqueeze(1) * batch
            if seen.shape[-1]:
                self._observe(seen, turn, observed)

    def _per_client(
        self, outputs: Mapping[str, Output], plain: Mapping[str, State], inputs: Tensor, labels: Tensor, context: State
    ) -> tuple[Tensor, Tensor, Tensor]:
        modules: dict[str, Any] = {name: _Known(output, inputs) for name, output in outputs.items()}
        for name, weights in plain.items():
            modules[name] = _Functional(self.plain[name], weights)
        step = self.loss(cast(nn.ModuleDict, modules), Batch(inputs, labels), context)
        return step.loss, step.parts, inputs.new_zeros(0) if step.observed is None else step.observed

    def _observe(self, seen: Tensor, turn: _Turn, observed: ClassSums | None) -> None:
        """Sum by class what the loss wants summed, per client."""
        if observed is None:
            shape = (self.clients, self.num_classes)
            observed = self.observed = ClassSums(
                torch.zeros(*shape, seen.shape[-1], device=self.device, dtype=seen.dtype),
                torch.zeros(*shape, dtype=torch.int64, device=self.device),
            )
        clients = len(seen)
        places = (turn.labels + self.num_classes * torch.arange(clients, device=self.device).unsqueeze(1)).flatten()
        weights = turn.active[:, None, None].expand_as(seen)
        observed.sums.view(-1, seen.shape[-1]).index_add_(0, places, (seen * weights).flatten(0, 1))
        observed.counts.view(-1).index_add_(0, places, turn.active.long().repeat_interleave(turn.labels.shape[1]))

    def _observed_by(self, client: int) -> ClassSums | None:
        if self.observed is None:
            return None
        return ClassSums(self.observed.sums[client].clone(), self.observed.counts[client].clone())


class _Lane:
    """Steps with batches of one size: which samples they take lies on the device, so that a step needs no host."""

    def __init__(self, stack: Stack, steps: int, batch: int) -> None:
        self.stack = stack
        self.rows = torch.zeros(stack.clients, steps, batch, dtype=torch.int64, device=stack.device)
        self.labels = torch.zeros_like(self.rows)
        self.counter = torch.zeros(1, dtype=torch.int64, device=stack.device)
        self.steps = torch.zeros(stack.clients, dtype=torch.int64, device=stack.device)
        self.repeated = Repeated(self._next, stack.device)

    def place(self, tasks: Sequence[Task], epoch: int, starts: Sequence[int], steps: Sequence[int]) -> None:
        """The samples of this epoch, from each client's `starts` on."""
        batch = self.rows.shape[2]
        for client, (task, start, count) in enumerate(zip(tasks, starts, steps, strict=True)):
            order = task.plan.order[epoch, start : start + count * batch].to(self.stack.device)
            self.rows[client, :count] = pool_rows(task.data, order).view(count, batch)
            self.labels[client, :count] = task.data.labels[order].view(count, batch)
        self.steps.copy_(torch.tensor(steps))
        self.counter.zero_()

    def _next(self) -> None:
        self.stack.step(
            _Turn(
                self.rows.index_select(1, self.counter).squeeze(1),
                self.labels.index_select(1, self.counter).squeeze(1),
                (self.counter < self.steps).float(),
            )
        )
        self.counter += 1


class _Known:
    """Stands for a network whose output on this batch is there already."""

    def __init__(self, output: Output, inputs: Tensor) -> None:
        self.output = Output(*output)
        self.inputs = inputs

    def __call__(self, inputs: Tensor) -> Output:
        if inputs is not self.inputs:
            raise CannotStack("its loss gives a network other inputs than the batch")
        return self.output


class _Functional:
    """A small module with one client's weights."""

    def __init__(self, module: nn.Module, weights: State) -> None:
        self.module = module
        self.weights = weights

    def __call__(self, *arguments: Any) -> Any:
        return functional_call(self.module, self.weights, arguments)


def _descend(weights: list[Tensor], gradients: Mapping[int, Tensor | None], rate: float, clip: float | None) -> None:
    pairs = [(weight, gradient) for weight in weights if (gradient := gradients[id(weight)]) is not None]
    moved, found = [weight for weight, _ in pairs], [gradient for _, gradient in pairs]
    if clip is not None:
        squares = torch.stack([gradient.flatten(1).square().sum(1) for gradient in found]).sum(0)
        factor = (clip / (squares.sqrt() + 1e-6)).clamp_max(1.0)  # (n,)
        found = [gradient * factor.view(-1, *[1] * (gradient.dim() - 1)) for gradient in found]
    torch._foreach_add_(moved, found, alpha=-rate)


def _full_batches(task: Task) -> int:
    """How many batches come before the first of another size."""
    sizes = task.plan.sizes
    return next((index for index, size in enumerate(sizes) if size != sizes[0]), len(sizes))
