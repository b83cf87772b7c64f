"""Eval-mode features of a stack of clients, in large batches."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import torch
from torch import Tensor

from tinyproto.core.task import TensorData
from tinyproto.models.split import SplitModel
from tinyproto.stacked.capture import GraphStream, capture
from tinyproto.stacked.rehearsal import stacked_form
from tinyproto.stacked.state import StackedState
from tinyproto.stacked.step_loop import gather

LEAST_FEATURES = 32
"""Samples of a client that pass through a network at once; if memory lacks for them, stacks become narrower."""


class FeatureStack:
    """Up to n networks of one architecture over parts of one pool; built once, used every round."""

    def __init__(self, model: SplitModel, data: TensorData, batch: int, clients: int) -> None:
        self.batch = batch  # most samples of each client that pass through the network at once
        self.network = stacked_form(model, data)
        self.alone = self.network.alone
        self.clients = clients
        self.state = StackedState(model, clients)
        self.data = data
        self.device = data.labels.device
        self.graphs = GraphStream.on(self.device)
        self.captured: dict[tuple[int, int], _Batches] = {}  # by number of clients and batch size

    @property
    def largest(self) -> int:
        """Return the most samples of a client that passed through the network at once so far."""
        return max((size for _, size in self.captured), default=self.batch)

    def new_steps(self, data: Sequence[TensorData]) -> list[Callable[[], None]]:
        """Return the step for this number of clients and samples if it never ran."""
        before = len(self.captured)
        batches = self._batches(data)
        return [batches.step] if len(self.captured) > before else []

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
        key = (len(data), size)
        if key not in self.captured or self.captured[key].rows.shape[1] < steps:
            self.captured[key] = _Batches(self, len(data), steps, size)
        return self.captured[key]


class _Batches:
    """Batches of the first `width` clients; sample rows and features lie on the device."""

    def __init__(self, stack: FeatureStack, width: int, steps: int, size: int) -> None:
        self.stack = stack
        self.state = stack.state.slice(0, width)
        self.size = size
        self.rows = torch.zeros(width, steps, size, dtype=torch.int64, device=stack.device)
        self.next = torch.zeros(1, dtype=torch.int64, device=stack.device)
        self.found = torch.zeros(0, device=stack.device)
        self.run = capture(self.step, stack.graphs)

    @torch.no_grad()
    def step(self) -> None:
        """Compute the next batch of all clients."""
        inputs = gather(self.stack.data, self.rows.index_select(1, self.next).squeeze(1))
        features = self.stack.network.features(inputs, self.state.tensors, normalise=False, training=False)
        if not self.found.numel():
            self.found = torch.zeros(*self.rows.shape, features.shape[2], device=self.stack.device)
        self.found.index_copy_(1, self.next, features.unsqueeze(1))
        self.next += 1
