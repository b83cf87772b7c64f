"""What `trainer: auto` takes: the quickest for a whole run, the time to prepare included.

On a GPU a step of the reference is hundreds of kernel launches, which take the host longer than the device. A captured
step costs no more than its kernels, a stacked one the kernels of one client for several; both have to be prepared once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from tinyproto.core.task import FeatureModel, FitResult, Task, TensorData, Trainer

TrainerName = Literal["auto", "eager", "graphed", "stacked"]
Known = Literal["eager", "graphed", "stacked"]

GRAPHED_PAYS = 1_000
"""Steps of all clients over a whole run from which capturing them pays."""
STACKED_PAYS = 5_000
"""The same for stacking: on one H200 it prepares for up to a minute, and the reference takes 15 ms a step."""


class Choice(NamedTuple):
    """A trainer, and why."""

    trainer: Known
    reason: str


def choose(name: TrainerName, device: str, steps: int) -> Choice:
    """The trainer for a run of so many steps of single clients."""
    if name != "auto":
        return Choice(name, "as the config says")
    if device == "cpu":
        return Choice("eager", "on a CPU nothing is quicker")
    if steps < GRAPHED_PAYS:
        return Choice("eager", f"{steps} steps are too few to prepare for")
    if steps < STACKED_PAYS:
        return Choice("graphed", f"{steps} steps are too few for stacks")
    return Choice("stacked", f"{steps} steps are worth the preparation")


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
