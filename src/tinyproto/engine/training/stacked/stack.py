"""One stack: tasks of equal kind, their weights together, their steps one computation."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from tinyproto.core.prototypes import ClassSums
from tinyproto.core.task import Batch, FitResult, State, Task
from tinyproto.engine.training.stacked.capture import Place, Repeated
from tinyproto.engine.training.stacked.contrast import ContrastiveFit, own_step
from tinyproto.engine.training.stacked.levels import Level, levels, paid
from tinyproto.engine.training.stacked.operations import CannotStack
from tinyproto.engine.training.stacked.samples import Samples, pool_rows
from tinyproto.engine.training.stacked.state import StackedState
from tinyproto.models.split import Output, SplitModel

MOST_LANES = 64
"""Beyond so many widths and batch sizes, the oldest is forgotten."""


class Network(Protocol):
    """How the networks of a stack are computed."""

    alone: bool  # nothing may run beside it
    on_demand: bool  # a loss may call it as it likes; for a stack of one

    def features(self, inputs: Tensor, state: State, *, normalise: bool, training: bool) -> Tensor:
        """(n, B, …) to (n, B, d)."""
        ...

    def __call__(self, inputs: Tensor, state: State, *, normalise: bool, training: bool) -> Output:
        """(n, B, …) to features (n, B, d) and logits (n, B, K)."""
        ...


Form = Callable[[SplitModel], Network]


class _Turn(NamedTuple):
    """One step's samples of some clients, and their labels; who of all clients takes part."""

    inputs: Tensor  # (w, B, …)
    labels: Tensor  # (w, B)
    active: Tensor | None  # (n,) float; None: all of those whose samples these are


class Stack:
    """Up to n clients whose tasks have one key; built once, used every round."""

    def __init__(self, first: Task, clients: int, form: Form) -> None:
        self.loss = first.loss
        self.groups = first.groups
        self.part_count = len(first.part_names)
        self.num_classes = first.num_classes
        self.device = first.data.labels.device
        self.place = Place(self.device)
        self.networks = {name: form(module) for name, module in first.modules.items() if isinstance(module, SplitModel)}
        self.plain = {name: module for name, module in first.modules.items() if name not in self.networks}
        self.alone = any(network.alone for network in self.networks.values())
        self.on_demand = any(network.on_demand for network in self.networks.values())
        self.clients = clients
        self.states = {name: StackedState(module, clients) for name, module in first.modules.items()}
        self.context: State = {name: value.new_zeros(clients, *value.shape) for name, value in first.context.items()}
        self.owns_pool = first.data.rows is None  # samples that are new in every round
        pool = first.data.pool.clone() if self.owns_pool else first.data.pool
        self.samples = Samples(pool, first.data.scale, first.data.shift)
        self.dtype = next(parameter.dtype for parameter in first.modules.parameters())
        self.parts = torch.zeros(clients, self.part_count, dtype=torch.float64, device=self.device)
        self.observed: ClassSums | None = None
        self.lanes: dict[tuple[int, int, int], _Lane] = {}  # by first and last client and batch size
        self.epoch: _Epoch | None = None  # of the batch sizes last seen, where there is no network
        self.own_step = own_step(first)
        self.given_up: CannotStack | None = None  # why its own step was

    def fit(self, tasks: Sequence[Task]) -> Generator[None, None, list[FitResult]]:
        """All epochs of all tasks, those with most steps first, step by step, so that other stacks may take turns."""
        self._take_in(tasks)
        placed = [_Placed.of(task, self.device) for task in tasks]
        epochs, full = tasks[0].plan.epochs, [_full_batches(task) for task in tasks]
        plan = levels(full)
        history = torch.zeros(epochs, self.clients, self.part_count, dtype=torch.float64, device=self.device)
        for epoch in range(epochs):
            self.parts.zero_()
            for each in self.observed or ():
                each.zero_()
            if self.networks:
                yield from self._steps(placed, epoch, full, plan)
            else:
                self._whole_epoch(placed[0], epoch)
                yield
            history[epoch] = self.parts
        steps = [epochs * len(task.plan.sizes) for task in tasks]
        for name, state in self.states.items():
            state.store([task.modules[name] for task in tasks], steps)
        yield
        samples = torch.tensor([max(sum(task.plan.sizes), 1) for task in tasks], dtype=torch.float64)
        means = history.cpu()[:, : len(tasks)] / samples[None, :, None]
        return [
            FitResult(
                means[:, client],
                task.part_names,
                steps[client],
                self._observed_by(client),
                steps_paid=epochs * (paid(plan, client) + len(task.plan.sizes) - full[client]),
            )
            for client, task in enumerate(tasks)
        ]

    def _take_in(self, tasks: Sequence[Task]) -> None:
        """Weights, context and, where the samples are the task's own, the samples."""
        for name, state in self.states.items():
            state.load([task.modules[name] for task in tasks])
        if self.context:
            own = [self.context[name][client] for client in range(len(tasks)) for name in self.context]
            torch._foreach_copy_(own, [task.context[name] for task in tasks for name in self.context])
        if self.owns_pool:
            samples = tasks[0].data.pool
            if samples.shape != self.samples.pool.shape:  # fewer or more than the last time
                self.samples = Samples(samples.clone(), self.samples.scale, self.samples.shift)
                self.lanes, self.epoch = {}, None
            else:
                self.samples.pool.copy_(samples)

    def _steps(
        self, placed: Sequence[_Placed], epoch: int, full: Sequence[int], plan: Sequence[Level]
    ) -> Generator[None, None, None]:
        """One epoch: batches of the common size together, what is left of each client alone."""
        batch = next((each.task.plan.sizes[0] for each in placed if each.task.plan.sizes), 0)
        for level in plan:
            lane = self._lane(0, level.width, batch, level.stop - level.start)
            lane.fill(placed[: level.width], epoch, level.start * batch, [count - level.start for count in full])
            for _ in range(level.start, level.stop):
                lane.repeated()
                yield
        for client, each in enumerate(placed):
            start = full[client] * batch
            for size in each.task.plan.sizes[full[client] :]:
                lane = self._lane(client, client + 1, size, 1)
                lane.fill([each], epoch, start, [1])
                lane.repeated()
                start += size
                yield

    def _lane(self, first: int, last: int, batch: int, steps: int) -> _Lane:
        key = (first, last, batch)
        if key not in self.lanes or self.lanes[key].rows.shape[1] < steps:
            if len(self.lanes) >= MOST_LANES:
                del self.lanes[next(iter(self.lanes))]
            self.lanes[key] = _Lane(self, first, last, batch, steps)
        return self.lanes[key]

    def _whole_epoch(self, placed: _Placed, epoch: int) -> None:
        """All steps of one epoch of one client at once, where they are small."""
        sizes = placed.task.plan.sizes
        if self.epoch is None or self.epoch.sizes != sizes:
            self.epoch = _Epoch(self, sizes)
        self.epoch.fill(placed, epoch)
        self.epoch.repeated()

    def step(self, states: Mapping[str, StackedState], turn: _Turn, first: int, last: int) -> None:
        """One step of every client in `first` … `last` that has one; the statistics of others stay as they were."""
        if turn.active is None:
            self._train(states, turn, first, last)
            return
        before = {name: state.flat.clone() for name, state in states.items()}
        self._train(states, turn, first, last)
        for name, values in before.items():
            states[name].keep(values, turn.active)

    def _train(self, states: Mapping[str, StackedState], turn: _Turn, first: int, last: int) -> None:
        """One step of SGD; what a client without a step would have moved is left where it was."""
        if self.own_step is not None and self._in_own_kernels(self.own_step, states, turn):
            return
        batch = turn.labels.shape[1]
        weights = {name: states[name].tensors for name in states}
        context = {name: value[first:last] for name, value in self.context.items()}
        losses, logged, seen = self._losses(weights, turn.inputs, turn.labels, context)
        leaves = [value for name in self.states for value in states[name].parameters.values()]
        active = None if turn.active is None else turn.active[first:last]
        total = losses.sum() if active is None else (losses * active).sum()
        gradients = torch.autograd.grad(total, leaves, allow_unused=True)
        found = dict(zip(map(id, leaves), gradients, strict=True))
        with torch.no_grad():
            for group in self.groups:
                _descend(list(states[group.module].parameters.values()), found, group.learning_rate, group.clip_norm)
            logged = logged if active is None else torch.where(active.unsqueeze(1) > 0, logged, 0.0)
            self.parts[first:last].add_(logged, alpha=batch)
            if seen.shape[-1]:
                self._observe(seen, turn.labels, active, first, last)

    def _in_own_kernels(self, own: ContrastiveFit, states: Mapping[str, StackedState], turn: _Turn) -> bool:
        """Take the step in kernels of our own; given up for good where these prove wrong."""
        weights, penalty = _alone(states["prototypes"].parameters), self.context["penalty"].squeeze(0)
        batch = Batch(turn.inputs.squeeze(0), turn.labels.squeeze(0))
        try:
            own.prove(weights, batch, penalty)
        except CannotStack as reason:
            self.own_step, self.given_up = None, reason
            return False
        own.step(weights, batch, penalty, self.parts)
        return True

    def _losses(
        self, weights: Mapping[str, State], inputs: Tensor, labels: Tensor, context: State
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, logged terms and what is observed, of every client."""
        normalise = inputs.shape[1] > 1
        plain = {name: weights[name] for name in self.plain}
        if self.on_demand or not self.networks:  # one client, whose loss may call its networks as it likes
            modules: dict[str, Any] = {
                name: _OnDemand(network, weights[name], normalise) for name, network in self.networks.items()
            }
            alone = {name: _alone(own) for name, own in plain.items()}
            modules |= {name: _Functional(self.plain[name], own) for name, own in alone.items()}
            batch = Batch(inputs.squeeze(0), labels.squeeze(0))
            loss, logged, seen = self._loss(modules, batch, _alone(context))
            return loss.unsqueeze(0), logged.unsqueeze(0), seen.unsqueeze(0)
        outputs = {
            name: network(inputs, weights[name], normalise=normalise, training=True)
            for name, network in self.networks.items()
        }
        found: tuple[Tensor, Tensor, Tensor] = vmap(self._of_client, randomness="different")(
            outputs, plain, inputs, labels, context
        )
        return found

    def _of_client(
        self, outputs: Mapping[str, Output], plain: Mapping[str, State], inputs: Tensor, labels: Tensor, context: State
    ) -> tuple[Tensor, Tensor, Tensor]:
        modules: dict[str, Any] = {name: _Known(output, inputs) for name, output in outputs.items()}
        modules |= {name: _Functional(self.plain[name], weights) for name, weights in plain.items()}
        return self._loss(modules, Batch(inputs, labels), context)

    def _loss(self, modules: dict[str, Any], batch: Batch, context: State) -> tuple[Tensor, Tensor, Tensor]:
        step = self.loss(cast(nn.ModuleDict, modules), batch, context)
        return step.loss, step.parts, batch.inputs.new_zeros(0) if step.observed is None else step.observed

    def _observe(self, seen: Tensor, labels: Tensor, active: Tensor | None, first: int, last: int) -> None:
        """Sum by class what the loss wants summed, per client."""
        if self.observed is None:
            shape = (self.clients, self.num_classes)
            self.observed = ClassSums(
                torch.zeros(*shape, seen.shape[-1], device=self.device, dtype=seen.dtype),
                torch.zeros(*shape, dtype=torch.int64, device=self.device),
            )
        places = (labels + self.num_classes * torch.arange(first, last, device=self.device).unsqueeze(1)).flatten()
        if active is None:
            active = torch.ones(last - first, device=self.device)
        weighed = (seen * active[:, None, None]).flatten(0, 1)
        self.observed.sums.view(-1, seen.shape[-1]).index_add_(0, places, weighed)
        self.observed.counts.view(-1).index_add_(0, places, active.long().repeat_interleave(labels.shape[1]))

    def _observed_by(self, client: int) -> ClassSums | None:
        if self.observed is None:
            return None
        return ClassSums(self.observed.sums[client].clone(), self.observed.counts[client].clone())


class _Placed(NamedTuple):
    """A task, and where in the pool its samples are in the order of its plan; copied to the device once a fit."""

    task: Task
    rows: Tensor  # (epochs, N)
    labels: Tensor  # (epochs, N)

    @classmethod
    def of(cls, task: Task, device: torch.device) -> _Placed:
        order = task.plan.order.to(device)
        return cls(task, pool_rows(task.data, order), task.data.labels[order])


class _Lane:
    """Steps of the clients from `first` to before `last` with batches of one size.

    Which samples they take lies on the device, so that a step needs no host.
    """

    def __init__(self, stack: Stack, first: int, last: int, batch: int, steps: int) -> None:
        self.stack, self.first, self.last = stack, first, last
        self.states = {name: state.of(first, last) for name, state in stack.states.items()}
        self.rows = torch.zeros(last - first, steps, batch, dtype=torch.int64, device=stack.device)
        self.labels = torch.zeros_like(self.rows)
        self.counter = torch.zeros(1, dtype=torch.int64, device=stack.device)
        self.steps = torch.zeros(stack.clients, dtype=torch.int64, device=stack.device)
        self.repeated = Repeated(self._next, stack.place)

    def fill(self, placed: Sequence[_Placed], epoch: int, start: int, left: Sequence[int]) -> None:
        """The samples of this epoch from `start` on; each client has so many batches left."""
        _, most, batch = self.rows.shape
        counts = [max(0, min(most, count)) for count in left[: len(placed)]]
        for client, (each, count) in enumerate(zip(placed, counts, strict=True)):
            stop = start + count * batch
            self.rows[client, :count] = each.rows[epoch, start:stop].view(count, batch)
            self.labels[client, :count] = each.labels[epoch, start:stop].view(count, batch)
        self.steps[self.first : self.last] = torch.tensor(counts).to(self.steps)
        self.counter.zero_()

    def _next(self) -> None:
        rows = self.rows.index_select(1, self.counter).squeeze(1)
        turn = _Turn(
            self.stack.samples.take(rows, self.stack.dtype),
            self.labels.index_select(1, self.counter).squeeze(1),
            (self.counter < self.steps).float() if self.last - self.first > 1 else None,
        )
        self.stack.step(self.states, turn, self.first, self.last)
        self.counter += 1


class _Epoch:
    """All steps of an epoch of one client, one after another."""

    def __init__(self, stack: Stack, sizes: tuple[int, ...]) -> None:
        self.stack, self.sizes = stack, sizes
        self.states = {name: state.of(0, 1) for name, state in stack.states.items()}
        self.rows = torch.zeros(1, sum(sizes), dtype=torch.int64, device=stack.device)
        self.labels = torch.zeros_like(self.rows)
        self.repeated = Repeated(self._all, stack.place)

    def fill(self, placed: _Placed, epoch: int) -> None:
        """The samples of this epoch."""
        self.rows.copy_(placed.rows[epoch].unsqueeze(0))
        self.labels.copy_(placed.labels[epoch].unsqueeze(0))

    def _all(self) -> None:
        samples = self.stack.samples.take(self.rows, self.stack.dtype)  # at once: a step is small beside a kernel
        parts = (torch.split(each, list(self.sizes), dim=1) for each in (samples, self.labels))
        for inputs, labels in zip(*parts, strict=True):
            self.stack.step(self.states, _Turn(inputs, labels, None), 0, 1)


class _Known:
    """Stands for a network whose output on this batch is there already."""

    def __init__(self, output: Output, inputs: Tensor) -> None:
        self.output = Output(*output)
        self.inputs = inputs

    def __call__(self, inputs: Tensor) -> Output:
        if inputs is not self.inputs:
            raise CannotStack("its loss gives a network other inputs than the batch")
        return self.output


class _OnDemand:
    """A network of one client, computed when the loss asks for it."""

    def __init__(self, network: Network, weights: State, normalise: bool) -> None:
        self.network = network
        self.weights = weights
        self.normalise = normalise

    def __call__(self, inputs: Tensor) -> Output:
        output = self.network(inputs.unsqueeze(0), self.weights, normalise=self.normalise, training=True)
        return Output(*(value.squeeze(0) for value in output))


class _Functional:
    """A small module with one client's weights."""

    def __init__(self, module: nn.Module, weights: State) -> None:
        self.module = module
        self.weights = weights

    def __call__(self, *arguments: Any) -> Any:
        return functional_call(self.module, self.weights, arguments)


def _alone(stacked: State) -> State:
    """Of the one client there is; squeezed rather than indexed, which would copy every gradient."""
    return {name: value.squeeze(0) for name, value in stacked.items()}


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
