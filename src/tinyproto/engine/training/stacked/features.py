"""Eval-mode features of a stack of clients, in large batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tinyproto.core.task import TensorData
from tinyproto.engine.training.stacked.capture import Repeated
from tinyproto.engine.training.stacked.network import StackedModel
from tinyproto.engine.training.stacked.samples import Samples, pool_rows
from tinyproto.engine.training.stacked.state import StackedState
from tinyproto.models.split import SplitModel


class FeatureStack:
    """n networks of one architecture over parts of one pool; built once, used every round."""

    def __init__(self, models: Sequence[SplitModel], data: TensorData, batch: int) -> None:
        self.network = StackedModel(models[0])
        self.state = StackedState(models)
        self.samples = Samples.of(data)
        self.batch = batch
        self.device = data.labels.device
        self.counter = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.rows = torch.zeros(len(models), 0, batch, dtype=torch.int64, device=self.device)
        self.found = torch.zeros(0, device=self.device)
        self.repeated: Repeated | None = None

    @torch.no_grad()
    def features(self, models: Sequence[SplitModel], data: Sequence[TensorData]) -> list[Tensor]:
        """(N_i, d) of every client; shorter ones are filled up with any sample, which is cut off again."""
        self.state.load(models)
        steps = max(-(-len(samples) // self.batch) for samples in data)
        rows = torch.zeros(len(models), steps * self.batch, dtype=torch.int64, device=self.device)
        for client, samples in enumerate(data):
            rows[client, : len(samples)] = pool_rows(samples, torch.arange(len(samples), device=self.device))
        if self.rows.shape[1] < steps:
            self.rows = torch.zeros(len(models), steps, self.batch, dtype=torch.int64, device=self.device)
            self.found = torch.zeros(0, device=self.device)
            self.repeated = Repeated(self._step, self.device)
        self.rows[:, :steps].copy_(rows.view(len(models), steps, self.batch))
        self.counter.zero_()
        assert self.repeated is not None
        for _ in range(steps):
            self.repeated()
        found = self.found.flatten(1, 2)
        return [found[client, : len(samples)].clone() for client, samples in enumerate(data)]

    def _step(self) -> None:
        rows = self.rows.index_select(1, self.counter).squeeze(1)
        stacked = self.samples.take(rows).transpose(1, 2).contiguous()
        features = self.network.features(stacked, self.state.tensors, normalise=False, training=False)
        if not self.found.numel():
            self.found = torch.zeros(*self.rows.shape, features.shape[1], device=self.device)
        self.found.index_copy_(1, self.counter, features.transpose(1, 2).unsqueeze(1))
        self.counter += 1
