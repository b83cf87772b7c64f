"""The eager trainer: plain PyTorch, one task after another, one batch after another. Every other has to match it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from tinyproto.core.prototypes import ClassSums, class_sums
from tinyproto.core.streams import global_randomness
from tinyproto.core.task import FEATURE_BATCH, Batch, FeatureModel, FitResult, Loss, ParamGroup, Step, Task, TensorData
from tinyproto.errors import one_line
from tinyproto.memory import is_out_of_memory, release_unused
from tinyproto.models.split import SplitModel

FEATURE_PIXELS = 2**17
"""Pixels that pass through a network at once on a CPU; more would not fit its caches."""

_NORMALISATION = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


class EagerTrainer:
    """Runs tasks step by step."""

    def __init__(
        self, device: torch.device | str = "cpu", feature_batch: int = FEATURE_BATCH, *, shared: bool = False
    ) -> None:
        self.device = torch.device(device)
        self.feature_batch = feature_batch
        self.shared = shared  # other cells run on the device, so a lack of memory is raised
        self.notes: list[str] = []

    def fit(self, tasks: Sequence[Task]) -> list[FitResult]:
        """Optimise the modules of each task in place."""
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
        self._set_layout(task.modules, task.data)
        sgd = Sgd(task.modules, task.groups)
        order = task.plan.order.to(self.device)
        parts = torch.zeros(task.plan.epochs, len(task.part_names), dtype=torch.float64, device=self.device)
        observed: ClassSums | None = None
        for epoch in range(task.plan.epochs):
            observed = None
            samples = task.data.subset(order[epoch])
            if task.epoch is not None and self.device.type == "cpu":
                sizes, rate = task.plan.sizes, task.groups[0].learning_rate
                parts[epoch] = task.epoch(task.modules, samples.batch(slice(sum(sizes))), sizes, task.context, rate)
                continue
            start = 0
            for size in task.plan.sizes:
                batch = samples.batch(slice(start, start + size))
                step = sgd.step(task.loss, batch, task.context)
                parts[epoch] += step.parts * size
                if step.observed is not None:
                    more = class_sums(step.observed, batch.labels, task.num_classes)
                    observed = more if observed is None else ClassSums(*map(torch.add, observed, more))
                start += size
        task.modules.zero_grad()  # gradients take as much memory as the networks
        samples_per_epoch = max(sum(task.plan.sizes), 1)
        steps = task.plan.epochs * len(task.plan.sizes)
        return FitResult((parts / samples_per_epoch).cpu(), task.part_names, steps, observed, steps)

    @torch.no_grad()
    def features(self, models: Sequence[FeatureModel], data: Sequence[TensorData]) -> list[Tensor]:
        """Return the eval-mode features (N_i, d) of each model on its data."""
        return [self._features(model, samples) for model, samples in zip(models, data, strict=True)]

    def _features(self, model: FeatureModel, data: TensorData) -> Tensor:
        if isinstance(model, nn.Module):
            self._set_layout(model, data)
        model.extractor.eval()
        while True:
            try:
                return self._in_batches(model, data)
            except Exception as error:
                if self.shared or self.feature_batch == 1 or not is_out_of_memory(error):
                    raise
                self.feature_batch //= 2
                self.notes.append(f"features are computed {self.feature_batch} samples at a time: {one_line(error)}")
            release_unused(self.device)

    def _in_batches(self, model: FeatureModel, data: TensorData) -> Tensor:
        size, pixels = self.feature_batch, _pixels(data)
        if self.device.type == "cpu" and pixels:
            size = min(size, max(FEATURE_PIXELS // pixels, 1))
        starts = range(0, max(len(data), 1), size)  # a client without samples still gives (0, d)
        return torch.cat([model.extractor(data.batch(slice(start, start + size)).inputs) for start in starts])

    def _set_layout(self, module: nn.Module, data: TensorData) -> None:
        """Store the weights of convolutions with channels last where that is faster; their outputs follow."""
        if self.device.type != "cpu" or not _pixels(data):
            return
        for network in module.modules():
            if isinstance(network, SplitModel) and network.any_layout:
                for layer in network.modules():
                    if isinstance(layer, nn.Conv2d):
                        layer.weight.data = _channels_last(layer.weight.data)


class Sgd:
    """Plain SGD as in torch.optim.SGD, without its bookkeeping, which would take as long as the step."""

    def __init__(self, modules: nn.ModuleDict, groups: Sequence[ParamGroup]) -> None:
        self.modules = modules
        self.groups = [(group, list(modules[group.module].parameters())) for group in groups]
        layers = (layer for layer in modules.modules() if isinstance(layer, _NORMALISATION))
        self.normalisation = [layer for layer in layers if layer.training]  # some networks keep theirs in evaluation

    def step(self, loss: Loss, batch: Batch, context: Mapping[str, Tensor]) -> Step:
        """Take one step on a batch and return the loss's outcome."""
        for layer in self.normalisation:  # a single sample has no statistics: use the running ones
            layer.training = len(batch.labels) > 1
        for _, parameters in self.groups:
            for parameter in parameters:
                parameter.grad = None
        step = loss(self.modules, batch, context)
        step.loss.backward()  # type: ignore[no-untyped-call]
        for group, parameters in self.groups:
            _descend(parameters, group)
        return step


@torch.no_grad()
def _descend(parameters: Sequence[nn.Parameter], group: ParamGroup) -> None:
    if group.clip_norm is not None:
        nn.utils.clip_grad_norm_(parameters, group.clip_norm)
    moved: list[Tensor] = [parameter for parameter in parameters if parameter.grad is not None]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if moved:
        torch._foreach_add_(moved, gradients, alpha=-group.learning_rate)


def _channels_last(weight: Tensor) -> Tensor:
    """Return the weight of a convolution with channels last, also by its strides.

    PyTorch chooses the layout of a result by strides. For a depthwise convolution, or a map of one pixel, both layouts
    are the same bytes, and `contiguous` would keep strides that lead to kernels up to 200 times slower.
    """
    _, channels, height, width = weight.shape
    strides = (channels * height * width, 1, channels * width, channels)
    if weight.stride() == strides:
        return weight
    return torch.empty_strided(weight.shape, strides, dtype=weight.dtype, device=weight.device).copy_(weight)


def _pixels(data: TensorData) -> int:
    """Return the pixels of one image; 0 if samples are not images."""
    return math.prod(data.pool.shape[2:]) if data.pool.dim() == 4 else 0
