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


class FeatureStack:
    """Up to n networks of one architecture over parts of one pool; built once, used every round."""

    def __init__(self, model: SplitModel, data: TensorData, batch: int, clients: int) -> None:
        self.batch = batch  # samples of each client that pass through the network at once
        self.network = stacked_form(model, data)
        self.alone = self.network.alone
        self.clients = clients
        self.state = StackedState(model, clients)
        self.data = data
        self.device = data.labels.device
        self.graphs = GraphStream.on(self.device)
        self.captured: dict[int, _Batches] = {}  # by number of clients

    def new_steps(self, data: Sequence[TensorData]) -> list[Callable[[], None]]:
        """Return the step for this number of clients if it never ran."""
        if len(data) in self.captured:
            return []
        self.captured[len(data)] = _Batches(self, len(data), self._steps(data))
        return [self.captured[len(data)].step]

    def features(self, models: Sequence[SplitModel], data: Sequence[TensorData]) -> Generator[None, None, list[Tensor]]:
        """Compute (N_i, d) of each client batch by batch; shorter clients are padded with samples that are cut off."""
        self.state.load(models)
        steps = self._steps(data)
        width = len(models)
        if width not in self.captured or self.captured[width].rows.shape[1] < steps:
            self.captured[width] = _Batches(self, width, steps)
        batches = self.captured[width]
        own = [samples.rows for samples in data if samples.rows is not None]
        held = [rows.view(-1)[: len(given)] for rows, given in zip(batches.rows.unbind(), own, strict=True)]
        torch._foreach_copy_(held, own)
        batches.next.zero_()
        for _ in range(steps):
            batches.run()
            yield
        return [batches.found[client].flatten(0, 1)[: len(samples)].clone() for client, samples in enumerate(data)]

    def _steps(self, data: Sequence[TensorData]) -> int:
        return max(-(-len(samples) // self.batch) for samples in data)


class _Batches:
    """Batches of the first `width` clients; sample rows and features lie on the device."""

    def __init__(self, stack: FeatureStack, width: int, steps: int) -> None:
        self.stack = stack
        self.state = stack.state.slice(0, width)
        self.rows = torch.zeros(width, steps, stack.batch, dtype=torch.int64, device=stack.device)
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
