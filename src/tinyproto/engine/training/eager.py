"""The reference trainer: plain PyTorch, one task after another, one batch after another."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tinyproto.core.prototypes import ClassSums, class_sums
from tinyproto.core.streams import global_randomness
from tinyproto.core.task import FeatureModel, FitResult, ParamGroup, Task, TensorData
from tinyproto.models.split import SplitModel

CHANNELS_LAST_FROM = 16 * 16
"""Pixels of an image from which a CPU convolves half as long with channels last; for smaller ones it gains little."""

FEATURE_PIXELS = 2**17
"""Pixels that go through a network at once on a CPU, whose caches more would leave."""

_NORMALISATION = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


class EagerTrainer:
    """Runs tasks as they read."""

    def __init__(self, device: torch.device | str = "cpu", feature_batch: int = 512) -> None:
        self.device = torch.device(device)
        self.feature_batch = feature_batch
        self.notes: list[str] = []

    def fit(self, tasks: Sequence[Task]) -> list[FitResult]:
        """Optimise the modules of every task in place."""
        results = []
        for task in tasks:
            try:
                with global_randomness(task.seed):
                    results.append(self._fit(task))
            except Exception as error:
                error.add_note(f"while training {task.name}")
                raise
        return results

    def _fit(self, task: Task) -> FitResult:
        task.modules.train()
        self._lay_out(task.modules, task.data)
        groups = [(group, list(task.modules[group.module].parameters())) for group in task.groups]
        normalisation = normalisation_layers(task.modules)
        order = task.plan.order.to(self.device)
        parts = torch.zeros(task.plan.epochs, len(task.part_names), dtype=torch.float64, device=self.device)
        observed: ClassSums | None = None
        for epoch in range(task.plan.epochs):
            observed = None
            samples = task.data.subset(order[epoch])
            start = 0
            for size in task.plan.sizes:
                for layer in normalisation:  # a batch of one has no statistics: for it they use what they have gathered
                    layer.training = size > 1
                batch = samples.batch(slice(start, start + size))
                for _, parameters in groups:
                    for parameter in parameters:
                        parameter.grad = None
                step = task.loss(task.modules, batch, task.context)
                step.loss.backward()  # type: ignore[no-untyped-call]
                for group, parameters in groups:
                    _descend(parameters, group)
                parts[epoch] += step.parts * size
                if step.observed is not None:
                    observed = _plus(observed, class_sums(step.observed, batch.labels, task.num_classes))
                start += size
        samples_per_epoch = max(sum(task.plan.sizes), 1)
        steps = task.plan.epochs * len(task.plan.sizes)
        return FitResult((parts / samples_per_epoch).cpu(), task.part_names, steps, observed)

    @torch.no_grad()
    def features(self, models: Sequence[FeatureModel], data: Sequence[TensorData]) -> list[Tensor]:
        """Eval-mode features (N_i, d) of every model on its data."""
        return [self._features(model, samples) for model, samples in zip(models, data, strict=True)]

    def _features(self, model: FeatureModel, data: TensorData) -> Tensor:
        if isinstance(model, nn.Module):
            self._lay_out(model, data)
        model.extractor.eval()
        size = self._batch(data)
        starts = range(0, max(len(data), 1), size)  # a client without samples still gives (0, d)
        return torch.cat([model.extractor(data.batch(slice(start, start + size)).inputs) for start in starts])

    def _batch(self, data: TensorData) -> int:
        """How many samples go through a network at once when features are all that is wanted."""
        pixels = _pixels(data)
        if self.device.type != "cpu" or not pixels:
            return self.feature_batch
        return min(self.feature_batch, max(FEATURE_PIXELS // pixels, 1))

    def _lay_out(self, module: nn.Module, data: TensorData) -> None:
        """Keep the weights of convolutions with channels last where that is quicker; what they give follows them."""
        if self.device.type != "cpu" or _pixels(data) < CHANNELS_LAST_FROM:
            return
        for network in module.modules():
            if isinstance(network, SplitModel) and network.any_layout:
                for layer in network.modules():
                    if isinstance(layer, nn.Conv2d):
                        layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)


def normalisation_layers(module: nn.Module) -> list[nn.Module]:
    """Those that normalise by a batch's own statistics while training."""
    return [layer for layer in module.modules() if isinstance(layer, _NORMALISATION)]


def _pixels(data: TensorData) -> int:
    """Of one image; none where samples are not images."""
    return math.prod(data.pool.shape[2:]) if data.pool.dim() == 4 else 0


@torch.no_grad()
def _descend(parameters: Sequence[nn.Parameter], group: ParamGroup) -> None:
    """One step of plain SGD, as torch.optim.SGD takes it, without its bookkeeping, which would take as long."""
    if group.clip_norm is not None:
        nn.utils.clip_grad_norm_(parameters, group.clip_norm)
    moved: list[Tensor] = [parameter for parameter in parameters if parameter.grad is not None]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if moved:
        torch._foreach_add_(moved, gradients, alpha=-group.learning_rate)


def _plus(sums: ClassSums | None, more: ClassSums) -> ClassSums:
    return more if sums is None else ClassSums(sums.sums + more.sums, sums.counts + more.counts)
