"""The reference trainer: plain PyTorch, one task after another, one batch after another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tinyproto.core.prototypes import ClassSums, class_sums
from tinyproto.core.streams import global_randomness
from tinyproto.core.task import FeatureModel, FitResult, Task, TensorData

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
        optimisers = [
            torch.optim.SGD(task.modules[group.module].parameters(), lr=group.learning_rate) for group in task.groups
        ]
        order = task.plan.order.to(self.device)
        parts = torch.zeros(task.plan.epochs, len(task.part_names), dtype=torch.float64, device=self.device)
        observed: ClassSums | None = None
        for epoch in range(task.plan.epochs):
            observed = None
            start = 0
            for size in task.plan.sizes:
                set_normalisation(task.modules, training=size > 1)
                batch = task.data.batch(order[epoch, start : start + size])
                step = task.loss(task.modules, batch, task.context)
                for optimiser in optimisers:
                    optimiser.zero_grad()
                step.loss.backward()  # type: ignore[no-untyped-call]
                for group, optimiser in zip(task.groups, optimisers, strict=True):
                    if group.clip_norm is not None:
                        nn.utils.clip_grad_norm_(task.modules[group.module].parameters(), group.clip_norm)
                    optimiser.step()
                parts[epoch] += step.parts * size
                if step.observed is not None:
                    observed = _plus(observed, class_sums(step.observed, batch.labels, task.num_classes))
                start += size
        samples = max(sum(task.plan.sizes), 1)
        return FitResult((parts / samples).cpu(), task.part_names, task.plan.epochs * len(task.plan.sizes), observed)

    @torch.no_grad()
    def features(self, models: Sequence[FeatureModel], data: Sequence[TensorData]) -> list[Tensor]:
        """Eval-mode features (N_i, d) of every model on its data."""
        return [self._features(model.extractor, samples) for model, samples in zip(models, data, strict=True)]

    def _features(self, extractor: nn.Module, data: TensorData) -> Tensor:
        extractor.eval()
        starts = range(0, max(len(data), 1), self.feature_batch)  # a client without samples still gives (0, d)
        return torch.cat([extractor(data.batch(slice(start, start + self.feature_batch)).inputs) for start in starts])


def set_normalisation(modules: nn.Module, training: bool) -> None:
    """A batch of one has no statistics: for it normalisation layers use what they have gathered."""
    for module in modules.modules():
        if isinstance(module, _NORMALISATION):
            module.train(training)


def _plus(sums: ClassSums | None, more: ClassSums) -> ClassSums:
    return more if sums is None else ClassSums(sums.sums + more.sums, sums.counts + more.counts)
