"""Choose and build a trainer; `trainer: auto` takes the fastest for a whole run, preparation included.

On a GPU a step of the eager trainer is hundreds of kernel launches, which take the host longer than the device. A
captured step (`graphed`) costs no more than its kernels, a stacked one the kernels of one client for several. Both have
to be prepared once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from tinyproto.core.task import FEATURE_BATCH, FeatureModel, FitResult, Task, TensorData, Trainer
from tinyproto.engine.eager import EagerTrainer
from tinyproto.engine.estimate import Known, Needs
from tinyproto.engine.graphed import GraphedTrainer
from tinyproto.stacked.trainer import StackedTrainer

__all__ = ["Choice", "EagerTrainer", "Known", "Precision", "TrainerName", "choose", "make_trainer"]

TrainerName = Literal["auto", "eager", "graphed", "stacked"]
Precision = Literal["float32", "tf32", "exact"]
"""`float32` as PyTorch and the published runs: TF32 in convolutions, not in matrix products. `tf32`: TF32 in both.
`exact`: TF32 in neither."""

GRAPHED_FROM = 1_000
"""Steps of all clients in a whole run from which capturing them pays."""
STACKED_FROM = 5_000
"""The same for stacking: on one H200 it prepares for up to a minute, and the eager trainer takes 15 ms a step."""


class Choice(NamedTuple):
    """A trainer, the reason for it, and its limits where memory is short."""

    trainer: Known
    reason: str
    width: int | None = None  # most clients of a stack; None: no limit
    feature_batch: int = FEATURE_BATCH


def choose(name: TrainerName, device: str, steps: int, no_kernels: str | None = None) -> Choice:
    """Return the trainer for a run with this number of steps, summed over clients.

    `no_kernels` is the reason why a GPU cannot run our kernels, which stacks need.
    """
    wanted = _wanted(name, device, steps)
    if wanted.trainer == "stacked" and no_kernels is not None:
        return Choice("graphed", f"{wanted.reason}, but stacks need our kernels: {no_kernels}")
    return wanted


def _wanted(name: TrainerName, device: str, steps: int) -> Choice:
    if name != "auto":
        return Choice(name, f"{name} is set in the config")
    if device == "cpu":
        return Choice("eager", "the fastest on a CPU")
    if steps < GRAPHED_FROM:
        return Choice("eager", f"{steps} steps do not pay for capturing them")
    if steps < STACKED_FROM:
        return Choice("graphed", f"{steps} steps do not pay for building stacks")
    return Choice("stacked", f"{steps} steps pay for building stacks")


def fitted(wanted: Choice, needs: Needs, room: float) -> Choice:
    """Return the choice, or the fastest way to run that fits into `room` bytes by estimate; say what it takes."""
    first, *others = needs.ways(wanted.trainer)
    said = f"{wanted.reason}; an estimated {_gib(first.bytes)} of {_gib(room)} GiB"
    if first.bytes <= room:
        return wanted._replace(reason=said)
    best = next((way for way in others if way.bytes <= room), others[-1])
    limits = [] if best.width is None else [f"{best.width} clients of a network"]
    limits += [f"{best.feature_batch} samples for features"] if best.feature_batch < first.feature_batch else []
    how = f"{best.trainer} with at most {' and '.join(limits)} at a time" if limits else best.trainer
    short = "" if best.bytes <= room else "; if memory runs out, lower train.client_memory or train.batch_size"
    reason = f"{said} do not fit, so {how}: {_gib(best.bytes)} GiB{short}"
    return Choice(best.trainer, reason, best.width, best.feature_batch)


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f}"


def make_trainer(
    name: Known, device: torch.device, precision: Precision = "float32", *, width: int | None = None,
    feature_batch: int = FEATURE_BATCH, shared: bool = False,
) -> Trainer:  # fmt: skip
    """Build a trainer; on a GPU its products have this precision, on a CPU they are always exact.

    `width` limits the clients of a stack. With `shared`, other cells run on the device: running out of memory is then
    raised, since fewer of them have to run at once. Otherwise the trainer continues in a slower way, with a note.
    """
    trainer: Trainer
    if name == "eager":
        trainer = EagerTrainer(device, feature_batch, shared=shared)
    else:
        trainer = GraphedTrainer(device, feature_batch, shared=shared)
        trainer = StackedTrainer(trainer, width, feature_batch, shared=shared) if name == "stacked" else trainer
    return trainer if device.type == "cpu" else WithPrecision(trainer, precision)


class WithPrecision:
    """A trainer whose products have the given precision."""

    def __init__(self, trainer: Trainer, precision: Precision) -> None:
        self.trainer = trainer
        self.precision = precision
        self.device = trainer.device
        self.notes = trainer.notes

    def fit(self, tasks: Sequence[Task]) -> list[FitResult]:
        """Optimise the modules of each task in place."""
        with _products(self.precision):
            return self.trainer.fit(tasks)

    def features(self, models: Sequence[FeatureModel], data: Sequence[TensorData]) -> list[Tensor]:
        """Return the eval-mode features (N_i, d) of each model on its data."""
        with _products(self.precision):
            return self.trainer.features(models, data)


@contextmanager
def _products(precision: Precision) -> Iterator[None]:
    """Set the precision of products inside the block; a graph keeps the precision it was captured with."""
    convolutions, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = convolutions.allow_tf32, products.allow_tf32
    convolutions.allow_tf32, products.allow_tf32 = precision != "exact", precision == "tf32"
    try:
        yield
    finally:
        convolutions.allow_tf32, products.allow_tf32 = before
