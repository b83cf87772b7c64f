"""Eval-mode features of a stack of clients, in batches as large as they need, up to a limit."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from math import prod

import torch
from torch import Tensor

from tinyproto.core.task import TensorData
from tinyproto.models.split import SplitModel
from tinyproto.stacked.capture import GraphStream, capture
from tinyproto.stacked.convolution import MOST_POSITIONS
from tinyproto.stacked.rehearsal import stacked_form
from tinyproto.stacked.state import StackedState
from tinyproto.stacked.step_loop import MOST_CAPTURED, gather

LEAST_FEATURES = 32
"""The fewest samples of a client that pass through a network at once; if memory lacks for them, stacks get narrower."""


class FeatureStack:
    """Up to n networks of one architecture over parts of one pool; built once, used every round."""

    def __init__(self, model: SplitModel, data: TensorData, batch: int, clients: int) -> None:
        most = MOST_POSITIONS // prod(data.pool.shape[2:])  # that our kernels can count in a map of the input's size
        self.batch = min(batch, max(most, LEAST_FEATURES))  # most samples of each client at once
        self.network = stacked_form(model, data)
        self.alone = self.network.alone
        self.clients = clients
        self.state = StackedState(model, clients)
        self.data = data
        self.device = data.labels.device
        self.graphs = GraphStream.on(self.device)
        self.rows = torch.zeros(0, dtype=torch.int64, device=self.device)  # of the pool, in the order of all batches
        self.found = torch.zeros(0, 0, device=self.device)  # their features
        self.captured: dict[tuple[int, int], _Batches] = {}  # by number of clients and batch size

    @property
    def largest(self) -> int:
        """Return the most samples of a client that passed through the network at once so far."""
        return max((size for _, size in self.captured), default=self.batch)

    def new_steps(self, data: Sequence[TensorData]) -> list[Callable[[], None]]:
        """Return the step for this number of clients and samples if it never ran."""
        known = set(self.captured)
        batches = self._batches(data)
        return [] if batches.key in known else [batches.step]

    def features(self, models: Sequence[SplitModel], data: Sequence[TensorData]) -> Generator[None, None, list[Tensor]]:
        """Compute (N_i, d) of each client batch by batch; shorter clients are padded with samples that are cut off."""
        self.state.load(models)
        batches = self._batches(data)
        own = [samples.rows for samples in data if samples.rows is not None]
        held = [rows.view(-1)[: len(given)] for rows, given in zip(batches.rows.unbind(), own, strict=True)]
        torch._foreach_copy_(held, own)
        batches.next.zero_()
        for _ in range(-(-max(map(len, data)) // batches.size)):
            batches.run()
            yield
        return [batches.found[client].flatten(0, 1)[: len(samples)].clone() for client, samples in enumerate(data)]

    def _batches(self, data: Sequence[TensorData]) -> _Batches:
        """Return batches for these clients: of few sizes, so that few are captured, and no larger than they need."""
        longest = max(map(len, data))
        size = min(self.batch, max(LEAST_FEATURES, 1 << (longest - 1).bit_length()))
        steps = -(-longest // size)
        if len(data) * steps * size > len(self.rows):  # what was captured uses the memory that is too small
            self.captured.clear()
            self.rows, self.found = self.rows.new_zeros(len(data) * steps * size), self.found.new_zeros(0, 0)
        key = (len(data), size)
        if key not in self.captured or self.captured[key].rows.shape[1] < steps:
            if len(self.captured) >= MOST_CAPTURED:
                del self.captured[next(iter(self.captured))]
            self.captured[key] = _Batches(self, key, steps)
        return self.captured[key]


class _Batches:
    """Batches of the first clients; sample rows and features lie on the device, in memory of the stack."""

    def __init__(self, stack: FeatureStack, key: tuple[int, int], steps: int) -> None:
        self.stack = stack
        self.key = key
        width, self.size = key
        self.state = stack.state.slice(0, width)
        self.rows = stack.rows[: width * steps * self.size].view(width, steps, self.size)
        self.next = torch.zeros(1, dtype=torch.int64, device=stack.device)
        self.run = capture(self.step, stack.graphs)

    @property
    def found(self) -> Tensor:
        """Return the features of all batches, (n, steps, size, d)."""
        return self.stack.found[: self.rows.numel()].view(*self.rows.shape, -1)

    @torch.no_grad()
    def step(self) -> None:
        """Compute the next batch of all clients."""
        inputs = gather(self.stack.data, self.rows.index_select(1, self.next).squeeze(1))
        features = self.stack.network.features(inputs, self.state.tensors, normalise=False, training=False)
        if len(self.stack.found) < len(self.stack.rows):
            self.stack.found = features.new_zeros(len(self.stack.rows), features.shape[2])
        self.found.index_copy_(1, self.next, features.unsqueeze(1))
        self.next += 1
