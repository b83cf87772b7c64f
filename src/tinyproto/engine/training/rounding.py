"""How a GPU rounds the factors of products: TF32 keeps ten bits of them, and is several times as fast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from tinyproto.core.task import FeatureModel, FitResult, Task, TensorData, Trainer

Precision = Literal["float32", "tf32", "exact"]
"""float32 as PyTorch and the published runs have it: TF32 in convolutions, not in matrix products; tf32 in both, exact
in neither."""


@contextmanager
def rounding(precision: Precision) -> Iterator[None]:
    """Inside, products round as told; a captured graph keeps the rounding it was captured with."""
    convolutions, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = convolutions.allow_tf32, products.allow_tf32
    convolutions.allow_tf32, products.allow_tf32 = precision != "exact", precision == "tf32"
    try:
        yield
    finally:
        convolutions.allow_tf32, products.allow_tf32 = before


class Rounded:
    """A trainer whose products round as told."""

    def __init__(self, trainer: Trainer, precision: Precision) -> None:
        self.trainer = trainer
        self.precision = precision
        self.device = trainer.device
        self.notes = trainer.notes

    def fit(self, tasks: Sequence[Task]) -> list[FitResult]:
        """Optimise the modules of every task in place."""
        with rounding(self.precision):
            return self.trainer.fit(tasks)

    def features(self, models: Sequence[FeatureModel], data: Sequence[TensorData]) -> list[Tensor]:
        """Eval-mode features (N_i, d) of every model on its data."""
        with rounding(self.precision):
            return self.trainer.features(models, data)
