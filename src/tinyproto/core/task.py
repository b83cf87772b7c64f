"""Task and Trainer: what to optimise, separate from how it is executed.

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
"""State as named tensors, which can be saved and compared."""


class Batch(NamedTuple):
    """The samples of one step."""

    inputs: Tensor  # (B, ...) float32, or int64 for token ids
    labels: Tensor  # (B,) int64


def as_seen(stored: Tensor, scale: float | Tensor, shift: float | Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return samples as a network sees them: stored · scale + shift; token ids (int64) as they are."""
    if stored.dtype == torch.int64:
        return stored
    values = stored.to(dtype)
    if not isinstance(scale, Tensor) and (scale, shift) == (1.0, 0.0):
        return values
    return values * scale + shift


@dataclass(frozen=True)
class TensorData:
    """Samples in memory as they are stored (uint8, float32 or int64), converted batch by batch.

    The pool may be shared: sample i is then `pool[rows[i]]`, and a client costs its indices, not its samples.
    """

    pool: Tensor  # (P, ...) as stored
    labels: Tensor  # (N,) int64, of the samples
    scale: float | Tensor = 1.0  # a tensor is broadcast over a sample
    shift: float | Tensor = 0.0
    rows: Tensor | None = None  # (N,) int64, indices into the pool; None: the samples are the pool

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def inputs(self) -> Tensor:
        """Return the samples as stored, (N, ...); a copy if the pool is shared."""
        return self._stored(slice(None))

    def batch(self, indices: Tensor | slice) -> Batch:
        """Return the samples at `indices` as a network sees them."""
        return Batch(self.converted(self._stored(indices)), self.labels[indices])

    def converted(self, stored: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return stored samples as a network sees them."""
        return as_seen(stored, self.scale, self.shift, dtype)

    def subset(self, indices: Tensor) -> TensorData:
        """Return only the samples at `indices`."""
        indices = indices.to(self.labels.device)
        rows = indices if self.rows is None else self.rows[indices]
        return TensorData(self.pool, self.labels[indices], self.scale, self.shift, rows)

    def to(self, device: torch.device | str) -> TensorData:
        """Return the same samples, with the whole pool, on another device; move a shared pool before sharing it."""
        rows = None if self.rows is None else self.rows.to(device)
        scale, shift = (
            factor.to(device) if isinstance(factor, Tensor) else factor for factor in (self.scale, self.shift)
        )
        return TensorData(self.pool.to(device), self.labels.to(device), scale, shift, rows)

    def _stored(self, indices: Tensor | slice) -> Tensor:
        return self.pool[indices if self.rows is None else self.rows[indices]]


@dataclass(frozen=True)
class BatchPlan:
    """The samples of each batch, drawn on the host before anything runs."""

    order: Tensor  # (epochs, samples per epoch) int64
    sizes: tuple[int, ...]  # of the batches of one epoch

    @property
    def epochs(self) -> int:
        """Return the number of passes over the samples."""
        return self.order.shape[0]


class Step(NamedTuple):
    """The result of a loss for one batch."""

    loss: Tensor  # one scalar; mutual losses are summed
    parts: Tensor  # (P,) logged terms, in the order of Task.part_names
    observed: Tensor | None = None  # (B, w): summed by class over the last epoch


class ParamGroup(NamedTuple):
    """One module of a task and the plain SGD that optimises it."""

    module: str
    learning_rate: float
    clip_norm: float | None = None


Loss = Callable[[nn.ModuleDict, Batch, Mapping[str, Tensor]], Step]
Epoch = Callable[[nn.ModuleDict, Batch, Sequence[int], Mapping[str, Tensor], float], Tensor]
"""Takes a step of SGD on each batch, given their sizes, context and learning rate; returns the logged terms' sums."""


@dataclass(frozen=True)
class Task:
    """One client's epochs, or the server's fit of trainable prototypes.

    Tasks with equal keys may share a CUDA graph or a stack, so `loss` must be a function of its three arguments only:
    everything that differs between clients or rounds is in `modules`, `data` or `context`. Modules and context have
    the same shapes for equal keys; the number of samples and of batches may differ. The loss never branches on values
    and never synchronises with the host.
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
    epoch: Epoch | None = None  # the steps by `loss` with their gradients written out: on a CPU autograd takes longer


@dataclass(frozen=True)
class FitResult:
    """The result of a fit, besides the changed modules."""

    parts: Tensor  # (epochs, P) sample-weighted means, float64 on the host
    part_names: tuple[str, ...]
    steps: int
    observed: ClassSums | None  # of the last epoch
    steps_computed: int  # unused ones included, if a trainer runs clients of unequal size together

    def last_epoch(self) -> dict[str, float]:
        """Return the logged terms of the last epoch by name, as the float32 in which they were computed and travel."""
        return dict(zip(self.part_names, self.parts[-1].float().tolist(), strict=True)) if self.steps else {}


class FeatureModel(Protocol):
    """The part of a network that a trainer needs to extract features."""

    @property
    def extractor(self) -> nn.Module:
        """Return the module that maps inputs to (N, d) features."""
        ...


class Trainer(Protocol):
    """Executes tasks; the eager trainer is the reference that each other trainer has to match."""

    device: torch.device
    notes: list[str]  # messages for the user about the execution, removed once shown

    def fit(self, tasks: Sequence[Task]) -> list[FitResult]:
        """Optimise the modules of each task in place."""
        ...

    def features(self, models: Sequence[FeatureModel], data: Sequence[TensorData]) -> list[Tensor]:
        """Return eval-mode features (N_i, d) of each model on its data."""
        ...


FEATURE_BATCH = 512
"""Samples of a client that pass through a network at once for features, where memory allows."""

LastBatch = Literal["join", "keep", "drop"]


def batch_sizes(samples: int, batch_size: int, last: LastBatch) -> tuple[int, ...]:
    """Return the sizes of one epoch's batches.

    `join`: the rest is a batch of its own if it is at least half of one, else it joins the batch before it: one step on
    the batch statistics of three samples can make a deep network diverge. `keep`: the rest is a batch of its own.
    `drop`: the rest is left out, unless there is no full batch.
    """
    full, rest = divmod(samples, batch_size)
    sizes = [batch_size] * full
    own_batch = full == 0 or last == "keep" or (last == "join" and 2 * rest >= batch_size)
    if rest and own_batch:
        sizes.append(rest)
    elif rest and last == "join":
        sizes[-1] += rest
    return tuple(sizes)


def batch_plan(
    samples: int, batch_size: int, epochs: int, *, last: LastBatch, shuffle: torch.Generator | None
) -> BatchPlan:
    """Return the batches of all epochs: with `shuffle` a new permutation each, else always the stored order."""
    sizes = batch_sizes(samples, batch_size, last)
    used = sum(sizes)
    orders = [
        torch.arange(samples) if shuffle is None else torch.randperm(samples, generator=shuffle) for _ in range(epochs)
    ]
    return BatchPlan(torch.stack(orders)[:, :used], sizes)
