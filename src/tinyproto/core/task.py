"""Task and Trainer: what is to be optimised, kept apart from how it is executed.

An algorithm describes one client's epochs (or the server's fit) as a Task; a trainer runs tasks. Algorithms never
mention devices, graphs or stacks, and trainers never mention algorithms.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from tinyproto.core.prototypes import ClassSums

State = dict[str, Tensor]
"""Explicit state: checkpointable, comparable."""


class Batch(NamedTuple):
    """What a loss sees of the data."""

    inputs: Tensor  # (B, ...) float
    labels: Tensor  # (B,) int64


@dataclass(frozen=True)
class TensorData:
    """Samples in memory as they are stored (uint8 for images), brought to floats batch by batch.

    The pool may be shared: sample i is then `pool[rows[i]]`, and a client costs its indices, not its pixels.
    """

    pool: Tensor  # (P, ...) as stored
    labels: Tensor  # (N,) int64, of the samples
    scale: float = 1.0
    shift: float = 0.0
    rows: Tensor | None = None  # (N,) int64, where in the pool the samples are; None: the samples are the pool

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def inputs(self) -> Tensor:
        """The samples as stored, (N, ...); a copy where the pool is shared."""
        return self._stored(slice(None))

    def batch(self, indices: Tensor | slice) -> Batch:
        """The samples at `indices`, as floats: stored · scale + shift."""
        inputs = self._stored(indices).float()
        if (self.scale, self.shift) != (1.0, 0.0):
            inputs = inputs * self.scale + self.shift
        return Batch(inputs, self.labels[indices])

    def subset(self, indices: Tensor) -> TensorData:
        """Only the samples at `indices`."""
        indices = indices.to(self.labels.device)
        rows = indices if self.rows is None else self.rows[indices]
        return TensorData(self.pool, self.labels[indices], self.scale, self.shift, rows)

    def to(self, device: torch.device | str) -> TensorData:
        """The same samples on another device, the whole pool with them: move a shared pool before it is shared out."""
        rows = None if self.rows is None else self.rows.to(device)
        return TensorData(self.pool.to(device), self.labels.to(device), self.scale, self.shift, rows)

    def _stored(self, indices: Tensor | slice) -> Tensor:
        return self.pool[indices if self.rows is None else self.rows[indices]]


@dataclass(frozen=True)
class BatchPlan:
    """Which samples make up which batch, drawn on the host before anything runs."""

    order: Tensor  # (epochs, samples per epoch) int64
    sizes: tuple[int, ...]  # of the batches of one epoch

    @property
    def epochs(self) -> int:
        """How often the samples are gone through."""
        return self.order.shape[0]


class Step(NamedTuple):
    """What a loss returns for one batch."""

    loss: Tensor  # one scalar; mutual losses are summed
    parts: Tensor  # (P,) logged terms, in the order of Task.part_names
    observed: Tensor | None = None  # (B, w): summed by class over the last epoch


class ParamGroup(NamedTuple):
    """How one module of a task is optimised by plain SGD."""

    module: str
    learning_rate: float
    clip_norm: float | None = None


Loss = Callable[[nn.ModuleDict, Batch, Mapping[str, Tensor]], Step]


@dataclass(frozen=True)
class Task:
    """One client's epochs, or the server's fit of trainable prototypes.

    Tasks with equal keys may share a CUDA graph or a stack, so `loss` has to be a function of its three arguments
    alone: everything that differs between clients or rounds is in `modules`, `data` or `context`. Modules and context
    have the same shapes wherever the key is the same; the number of samples and of batches may differ. The loss never
    branches on values and never synchronises with the host.
    """

    name: str  # for messages: "client 3"
    key: Hashable
    modules: nn.ModuleDict
    groups: Sequence[ParamGroup]
    context: Mapping[str, Tensor]
    loss: Loss
    part_names: tuple[str, ...]
    data: TensorData
    plan: BatchPlan
    num_classes: int
    seed: int  # of dropout and its like


@dataclass(frozen=True)
class FitResult:
    """What a fit leaves behind besides the changed modules."""

    parts: Tensor  # (epochs, P) sample-weighted means, float64 on the host
    part_names: tuple[str, ...]
    steps: int
    observed: ClassSums | None  # of the last epoch
    steps_paid: int = 0  # computed for it, taken or in vain, where a trainer runs clients of unequal size together

    @property
    def steps_computed(self) -> int:
        """Those taken, and where a trainer says so, those in vain."""
        return max(self.steps, self.steps_paid)

    def last_epoch(self) -> dict[str, float]:
        """The logged terms of the last epoch by name, in the float32 they were computed in and travel as."""
        return dict(zip(self.part_names, self.parts[-1].float().tolist(), strict=True)) if self.steps else {}


class FeatureModel(Protocol):
    """What a trainer needs of a network to extract features."""

    @property
    def extractor(self) -> nn.Module:
        """Inputs to (N, d) features."""
        ...


class Trainer(Protocol):
    """How tasks are executed: eager is the reference, every other has to match it."""

    device: torch.device
    notes: list[str]  # what a user should know of how they are executed, taken out once told

    def fit(self, tasks: Sequence[Task]) -> list[FitResult]:
        """Optimise the modules of every task in place."""
        ...

    def features(self, models: Sequence[FeatureModel], data: Sequence[TensorData]) -> list[Tensor]:
        """Eval-mode features (N_i, d) of every model on its data."""
        ...


LastBatch = Literal["join", "keep", "drop"]


def batch_sizes(samples: int, batch_size: int, last: LastBatch) -> tuple[int, ...]:
    """Sizes of one epoch's batches.

    `join`: the rest is a batch of its own where it is at least half of one, else it joins the batch before it: one step
    on the batch statistics of three samples can blow a deep network up. `keep`: the rest is a batch of its own. `drop`:
    the rest is left out, unless it is all there is.
    """
    full, rest = divmod(samples, batch_size)
    sizes = [batch_size] * full
    if rest == 0:
        return tuple(sizes)
    if full == 0 or last == "keep":
        sizes.append(rest)
    elif last == "join":
        if 2 * rest < batch_size:
            sizes[-1] += rest
        else:
            sizes.append(rest)
    return tuple(sizes)


def batch_plan(
    samples: int, batch_size: int, epochs: int, *, last: LastBatch, shuffle: torch.Generator | None
) -> BatchPlan:
    """The batches of all epochs: a new permutation each with `shuffle`, else the stored order every time."""
    sizes = batch_sizes(samples, batch_size, last)
    used = sum(sizes)
    orders = [
        torch.arange(samples) if shuffle is None else torch.randperm(samples, generator=shuffle) for _ in range(epochs)
    ]
    return BatchPlan(torch.stack(orders)[:, :used], sizes)
