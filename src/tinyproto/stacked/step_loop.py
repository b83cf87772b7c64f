"""The step loop: all SGD steps of a round for clients of one network, each step computed once for all of them.

`Stack.fit` is the loop over epochs and steps. `_Steps.step` is one step from top to bottom: gather the batches, forward
of the stack, loss of each client, backward, update. On a GPU `capture` records it as one CUDA graph, and `_Steps.run`
replays that.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from tinyproto.core.prototypes import ClassSums
from tinyproto.core.task import Batch, FitResult, State, Task, TensorData
from tinyproto.models.split import Output, SplitModel
from tinyproto.stacked.capture import Branch, GraphStream, branching, capture
from tinyproto.stacked.fallback import CannotStack
from tinyproto.stacked.rehearsal import stacked_form
from tinyproto.stacked.schedule import computed_steps, plan_widths
from tinyproto.stacked.state import StackedState

Samples = tuple[Tensor, Tensor]
"""Rows of the pool and labels, (epochs, N) each, in the order of a client's plan."""

MOST_CAPTURED = 64
"""Widths and batch sizes a stack keeps captured besides a remaining batch of each client; then it discards the oldest.

First it discards steps of single clients, which are taken once an epoch.
"""


class Stack:
    """Up to n clients whose tasks share a key; built once, used every round.

    An urgent stack is the one that others would wait for.
    """

    def __init__(self, first: Task, clients: int, *, urgent: bool = False) -> None:
        self.clients = clients
        self.loss, self.groups, self.num_classes = first.loss, first.groups, first.num_classes
        self.data = first.data  # for its pool, which all clients share
        self.device = first.data.labels.device
        self.graphs = GraphStream.on(self.device, urgent=urgent)
        networks = {name: module for name, module in first.modules.items() if isinstance(module, SplitModel)}
        self.networks = {name: stacked_form(network, first.data) for name, network in networks.items()}
        self.others = {name: module for name, module in first.modules.items() if name not in self.networks}
        self.alone = any(network.alone for network in self.networks.values())
        # Gradients of a layer that is used twice are added before the branch comes back.
        branched = self.graphs.stream is not None and not any(each.repeats for each in self.networks.values())
        self.branch = Branch.on(self.device, urgent=urgent) if branched else None
        self.states = {name: StackedState(module, clients) for name, module in first.modules.items()}
        self.context: State = {name: value.new_zeros(clients, *value.shape) for name, value in first.context.items()}
        self.dtype = next(parameter.dtype for parameter in first.modules.parameters())
        self.parts = torch.zeros(clients, len(first.part_names), dtype=torch.float64, device=self.device)
        self.observed: ClassSums | None = None
        self.captured: dict[tuple[int, int, int], _Steps] = {}  # by first and last client and batch size

    def fit(self, tasks: Sequence[Task]) -> Generator[None, None, list[FitResult]]:
        """Run all epochs of all tasks, those with most steps first; yield after each step so that stacks alternate.

        The tasks change only once nothing can fail any more, so after an exception another trainer may run them.
        """
        self._load(tasks)
        epochs, batch = tasks[0].plan.epochs, (*tasks[0].plan.sizes, 0)[0]
        samples = _samples(tasks, self.device)
        full = [full_batches(task.plan.sizes) for task in tasks]
        stretches = plan_widths(full)
        history = torch.zeros(epochs, *self.parts.shape, dtype=torch.float64, device=self.device)
        for epoch in range(epochs):
            self.parts.zero_()
            for sums in self.observed or ():
                sums.zero_()
            for width, start, stop in stretches:  # batches of the common size: clients together
                steps = self._steps(0, width, batch, stop - start)
                steps.fill(samples[:width], epoch, start * batch, [count - start for count in full])
                for _ in range(start, stop):
                    steps.run()
                    yield
            for client, task in enumerate(tasks):  # a remaining batch of another size: each client alone
                start = full[client] * batch
                for size in task.plan.sizes[full[client] :]:
                    steps = self._steps(client, client + 1, size, 1)
                    steps.fill([samples[client]], epoch, start, [1])
                    steps.run()
                    start += size
                    yield
            history[epoch] = self.parts
        observed = [
            self.observed and ClassSums(*(sums[client].clone() for sums in self.observed))
            for client in range(len(tasks))
        ]
        taken = [epochs * len(task.plan.sizes) for task in tasks]
        normalised = [epochs * sum(size > 1 for size in task.plan.sizes) for task in tasks]  # by a batch's statistics
        for name, state in self.states.items():
            state.store([task.modules[name] for task in tasks], normalised)
        yield
        counts = torch.tensor([max(sum(task.plan.sizes), 1) for task in tasks], dtype=torch.float64)
        means = history.cpu()[:, : len(tasks)] / counts[None, :, None]
        return [
            FitResult(
                means[:, client],
                task.part_names,
                taken[client],
                observed[client],
                steps_computed=epochs * (computed_steps(stretches, client) + len(task.plan.sizes) - full[client]),
            )
            for client, task in enumerate(tasks)
        ]

    def new_steps(self, tasks: Sequence[Task]) -> list[Callable[[], None]]:
        """Return the steps that these tasks need and that never ran, but for remaining batches."""
        batch = (*tasks[0].plan.sizes, 0)[0]
        stretches = plan_widths([full_batches(task.plan.sizes) for task in tasks])
        return [
            self._steps(0, width, batch, stop - start).step
            for width, start, stop in stretches
            if (0, width, batch) not in self.captured
        ]

    def _load(self, tasks: Sequence[Task]) -> None:
        """Copy the tasks' weights and context into the stack."""
        for name, state in self.states.items():
            state.load([task.modules[name] for task in tasks])
        for name, value in self.context.items():  # types mixed in one call would be copied one by one
            torch._foreach_copy_(list(value[: len(tasks)].unbind()), [task.context[name] for task in tasks])

    def _steps(self, first: int, last: int, batch: int, steps: int) -> _Steps:
        key = (first, last, batch)
        if key not in self.captured or self.captured[key].rows.shape[1] < steps:
            if len(self.captured) >= MOST_CAPTURED + self.clients:
                del self.captured[min(self.captured, key=lambda known: known[1] - known[0] > 1)]
            self.captured[key] = _Steps(self, first, last, batch, steps)
        return self.captured[key]


class _Steps:
    """Steps of the clients from `first` to before `last` with batches of one size.

    The samples of all steps and the number of the next step lie on the device, so that a step needs no host.
    """

    def __init__(self, stack: Stack, first: int, last: int, batch: int, steps: int) -> None:
        self.stack, self.first, self.last = stack, first, last
        self.states = {name: state.slice(first, last) for name, state in stack.states.items()}
        self.rows = torch.zeros(last - first, steps, batch, dtype=torch.int64, device=stack.device)
        self.labels = torch.zeros_like(self.rows)
        self.next = torch.zeros(1, dtype=torch.int64, device=stack.device)
        self.counts = torch.zeros(stack.clients, dtype=torch.int64, device=stack.device)
        self.run = capture(self.step, stack.graphs)

    def fill(self, samples: Sequence[Samples], epoch: int, start: int, left: Sequence[int]) -> None:
        """Set the samples of this epoch from `start` on; `left` counts the batches each client still has."""
        _, most, batch = self.rows.shape
        counts = [max(0, min(most, count)) for count in left[: len(samples)]]
        held, given = [], []
        for client, (own, count) in enumerate(zip(samples, counts, strict=True)):
            if count:
                held += [self.rows[client, :count], self.labels[client, :count]]
                given += [each[epoch, start : start + count * batch].view(count, batch) for each in own]
        if held:
            torch._foreach_copy_(held, given)  # at once, not client by client
        self.counts[self.first : self.last].copy_(torch.tensor(counts), non_blocking=True)
        self.next.zero_()

    def step(self) -> None:
        """Take one step of SGD for every client that has one; clients without one stay as they are."""
        try:
            self._take_step()
        except BaseException:
            if self.stack.branch is not None:
                self.stack.branch.join()  # a capture cannot end while a branch is open
            raise

    def _take_step(self) -> None:
        stack, clients, states = self.stack, slice(self.first, self.last), self.states

        # Gather the batch of each client.
        rows = self.rows.index_select(1, self.next).squeeze(1)  # (w, B)
        labels = self.labels.index_select(1, self.next).squeeze(1)  # (w, B)
        inputs = gather(stack.data, rows, stack.dtype)  # (w, B, …)
        several = self.last - self.first > 1
        active = (self.next < self.counts).float() if several else None  # (n,) who has a step; None: the only client
        before = {name: state.flat.clone() for name, state in states.items()} if several else {}

        # Forward: each network once for all clients, by the batch's statistics unless the batch is a single sample.
        with branching(stack.branch):
            outputs = {
                name: network(inputs, states[name].tensors, normalise=rows.shape[1] > 1, training=True)
                for name, network in stack.networks.items()
            }

        # Loss of each client.
        weights = {name: states[name].tensors for name in stack.others}
        context = {name: value[clients] for name, value in stack.context.items()}
        losses, logged, seen = vmap(self._loss, randomness="different")(outputs, weights, inputs, labels, context)

        # Backward: a client without a step has no gradient.
        leaves = [value for state in states.values() for value in state.parameters.values()]
        total = losses.sum() if active is None else (losses * active[clients]).sum()
        gradients = dict(zip(map(id, leaves), torch.autograd.grad(total, leaves, allow_unused=True), strict=True))
        if stack.branch is not None:
            stack.branch.join()

        # Update: weights, running statistics, logged terms.
        with torch.no_grad():
            for group in stack.groups:
                parameters = list(states[group.module].parameters.values())
                _descend(parameters, gradients, group.learning_rate, group.clip_norm)
            if active is not None:
                logged = torch.where(active[clients].unsqueeze(1) > 0, logged, 0.0)
            stack.parts[clients].add_(logged, alpha=rows.shape[1])
            if seen.shape[-1]:
                self._observe(seen, labels, active)
        if active is not None:
            for name, values in before.items():
                states[name].restore_idle(values, active)
        self.next += 1

    def _loss(
        self, outputs: dict[str, Output], weights: dict[str, State], inputs: Tensor, labels: Tensor, context: State
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return one client's loss, logged terms and observed values; empty where it observes nothing."""
        modules: dict[str, Any] = {name: _computed(output, inputs) for name, output in outputs.items()}
        modules |= {name: _with_weights(self.stack.others[name], values) for name, values in weights.items()}
        step = self.stack.loss(cast(nn.ModuleDict, modules), Batch(inputs, labels), context)
        return step.loss, step.parts, inputs.new_zeros(0) if step.observed is None else step.observed

    def _observe(self, seen: Tensor, labels: Tensor, active: Tensor | None) -> None:
        """Add the observed values (w, B, v) to the sums by client and class."""
        stack, classes = self.stack, self.stack.num_classes
        if stack.observed is None:
            shape = (stack.clients, classes)
            stack.observed = ClassSums(
                torch.zeros(*shape, seen.shape[-1], device=stack.device, dtype=seen.dtype),
                torch.zeros(*shape, dtype=torch.int64, device=stack.device),
            )
        offsets = classes * torch.arange(self.first, self.last, device=stack.device).unsqueeze(1)
        places = (labels + offsets).flatten()
        counted = torch.ones(1, device=stack.device) if active is None else active[self.first : self.last]
        values = (seen * counted[:, None, None]).flatten(0, 1)
        stack.observed.sums.view(-1, seen.shape[-1]).index_add_(0, places, values)
        stack.observed.counts.view(-1).index_add_(0, places, counted.long().repeat_interleave(labels.shape[1]))


def _samples(tasks: Sequence[Task], device: torch.device) -> list[Samples]:
    """Return the samples of each task in the order of its plan, gathered for all tasks at once."""
    data = [task.data for task in tasks]
    rows = torch.cat([torch.arange(len(each), device=device) if each.rows is None else each.rows for each in data])
    labels = torch.cat([each.labels for each in data])
    starts = accumulate([len(each) for each in data], initial=0)
    orders = [task.plan.order + start for task, start in zip(tasks, starts, strict=False)]
    places = torch.cat(orders, 1).to(device, non_blocking=True)  # (epochs, of all tasks)
    lengths = [order.shape[1] for order in orders]
    return list(zip(torch.split(rows[places], lengths, 1), torch.split(labels[places], lengths, 1), strict=True))


def gather(data: TensorData, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the samples at `rows` (n, B) of the pool as networks see them, (n, B, …)."""
    stored = data.pool.index_select(0, rows.flatten())
    return data.converted(stored.view(*rows.shape, *stored.shape[1:]), dtype)


def _computed(output: Output, batch: Tensor) -> Callable[[Tensor], Output]:
    """Return a stand-in for a network whose output on this batch is already computed."""

    def network(inputs: Tensor) -> Output:
        if inputs is not batch:
            raise CannotStack("its loss passes a network inputs other than the batch")
        return Output(*output)

    return network


def _with_weights(module: nn.Module, weights: State) -> Callable[..., Any]:
    return lambda *arguments: functional_call(module, weights, arguments)


def _descend(weights: list[Tensor], gradients: Mapping[int, Tensor | None], rate: float, clip: float | None) -> None:
    """Move the stacked weights against their gradients, clipped by each client's norm."""
    moved = [weight for weight in weights if gradients[id(weight)] is not None]
    found = [gradient for weight in weights if (gradient := gradients[id(weight)]) is not None]
    if not found:
        return
    if clip is None:
        torch._foreach_add_(moved, found, alpha=-rate)
        return
    # All tensors of a client at once: three kernels for each would be most of the kernels of a step.
    by_client = [list(own) for own in zip(*(gradient.unbind() for gradient in found), strict=True)]
    norms = torch.stack(torch._foreach_norm([gradient for own in by_client for gradient in own]))
    factors = (clip / (norms.view(len(by_client), -1).norm(dim=1) + 1e-6)).clamp_max(1.0)  # (n,)
    for client, (own, factor) in enumerate(zip(by_client, factors.unbind(), strict=True)):
        torch._foreach_add_([weight[client] for weight in moved], torch._foreach_mul(own, factor), alpha=-rate)


def full_batches(sizes: Sequence[int]) -> int:
    """Count the batches before the first one of another size."""
    return next((index for index, size in enumerate(sizes) if size != sizes[0]), len(sizes))
