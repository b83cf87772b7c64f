"""Eval-mode features of a stack of clients, in large batches."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import torch
from torch import Tensor

from tinyproto.core.task import TensorData
from tinyproto.engine.training.stacked.capture import Place, Repeated
from tinyproto.engine.training.stacked.samples import Samples, pool_rows
from tinyproto.engine.training.stacked.stack import Form
from tinyproto.engine.training.stacked.state import StackedState
from tinyproto.models.split import SplitModel


class FeatureStack:
    """Up to n networks of one architecture over parts of one pool; built once, used every round."""

    def __init__(self, model: SplitModel, clients: int, data: TensorData, batch: int, form: Form) -> None:
        self.network = form(model)
        self.alone = self.network.alone
        self.clients = clients
        self.state = StackedState(model, clients)
        self.samples = Samples.of(data)
        self.batch = batch
        self.device = data.labels.device
        self.place = Place(self.device)
        self.passes: dict[int, _Pass] = {}  # by number of clients

    def features(self, models: Sequence[SplitModel], data: Sequence[TensorData]) -> Generator[None, None, list[Tensor]]:
        """(N_i, d) of every client, batch by batch; shorter ones are filled up with any sample, which is cut off."""
        self.state.load(models)
        steps = max(-(-len(samples) // self.batch) for samples in data)
        width = len(models)
        if width not in self.passes or self.passes[width].rows.shape[1] < steps:
            self.passes[width] = _Pass(self, width, steps)
        through = self.passes[width]
        for client, samples in enumerate(data):
            rows = pool_rows(samples, torch.arange(len(samples), device=self.device))
            through.rows[client].view(-1)[: len(samples)] = rows
        through.counter.zero_()
        for _ in range(steps):
            through.repeated()
            yield
        return [through.found[client].flatten(0, 1)[: len(samples)].clone() for client, samples in enumerate(data)]


class _Pass:
    """Batches of the first `width` clients; what they take and what is found lies on the device."""

    def __init__(self, stack: FeatureStack, width: int, steps: int) -> None:
        self.stack = stack
        self.state = stack.state.of(0, width)
        self.rows = torch.zeros(width, steps, stack.batch, dtype=torch.int64, device=stack.device)
        self.counter = torch.zeros(1, dtype=torch.int64, device=stack.device)
        self.found = torch.zeros(0, device=stack.device)
        self.repeated = Repeated(self._next, stack.place)

    @torch.no_grad()
    def _next(self) -> None:
        stack = self.stack
        inputs = stack.samples.take(self.rows.index_select(1, self.counter).squeeze(1))
        features = stack.network.features(inputs, self.state.tensors, normalise=False, training=False)
        if not self.found.numel():
            self.found = torch.zeros(*self.rows.shape, features.shape[2], device=stack.device)
        self.found.index_copy_(1, self.counter, features.unsqueeze(1))
        self.counter += 1
