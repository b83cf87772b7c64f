"""Prototypes: class means of penultimate features, and the equations of prototype-based federated learning.

Local prototypes are eq. (3), the pull of training towards global prototypes eq. (6), their mean eq. (9), and inference
by the nearest of them eq. (12). `Message` is what they travel in.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinyproto.core.transfer import fetched

Distance = Literal["mse", "l2"]

TINY = 1e-12
"""Below this a squared distance counts as zero, so that the square root keeps a finite gradient."""


class Prototypes(NamedTuple):
    """One row per class; a class that is not present has a zero row, which no function here reads.

    `width` is d for prototypes in full and s (the CPS dimension) for compressed ones.
    """

    values: Tensor  # (K, w) float
    present: Tensor  # (K,) bool

    @classmethod
    def absent(cls, num_classes: int, width: int, device: torch.device | str = "cpu") -> Prototypes:
        """Return rows of which none is present: what a client holds before the server has sent anything."""
        return cls(
            torch.zeros(num_classes, width, device=device), torch.zeros(num_classes, dtype=torch.bool).to(device)
        )

    @property
    def num_classes(self) -> int:
        """Return K."""
        return self.values.shape[0]

    @property
    def width(self) -> int:
        """Return the number of values per class."""
        return self.values.shape[1]

    def to(self, device: torch.device | str) -> Prototypes:
        """Return the same prototypes on another device."""
        from_host = self.values.device.type == "cpu"  # then a GPU need not complete its other work first
        return Prototypes(*(each.to(device, non_blocking=from_host) for each in self))

    def packed(self) -> PackedRows:
        """Return the rows present, as they travel."""
        present = self.present.cpu()
        return PackedRows(self.num_classes, present.numpy().nonzero()[0], self.values.cpu()[present].numpy())


class PackedRows(NamedTuple):
    """Prototypes as they travel: the rows present, one after the other, and their classes."""

    num_classes: int
    classes: NDArray[np.intp]  # (n,), ascending
    values: NDArray[np.float32]  # (n, w); may be a view of the frame it came in

    @property
    def parameters(self) -> int:
        """Return how many numbers travel."""
        return self.values.size

    def present(self) -> Tensor:
        """Return which classes have a row, (K,) bool."""
        present = torch.zeros(self.num_classes, dtype=torch.bool)
        present.numpy()[self.classes] = True
        return present

    def unpacked(self) -> Prototypes:
        """Return the same rows among zeros, in memory of their own."""
        values = torch.zeros(self.num_classes, self.values.shape[1])
        values.numpy()[self.classes] = self.values
        return Prototypes(values, self.present())


@dataclass(frozen=True)
class Message:
    """The content of a frame before it becomes bytes: rows by class, named tensors and metrics."""

    rows: Prototypes | None = None  # (K, w); only the rows present travel
    tensors: Mapping[str, Tensor] = field(default_factory=dict)  # heads, auxiliary networks, factors
    metrics: Mapping[str, float] = field(default_factory=dict)  # never counted as payload
    _copies: dict[torch.device, Message] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def parameters(self) -> int:
        """Return how many numbers travel as payload: what the paper counts."""
        rows = 0 if self.rows is None else int(self.rows.present.sum()) * self.rows.width
        return rows + sum(tensor.numel() for tensor in self.tensors.values())

    def all_tensors(self) -> list[Tensor]:
        """Return the tensors of rows and the others."""
        return [*(self.rows or ()), *self.tensors.values()]

    def of_classes(self, classes: Tensor) -> Message:
        """Return the message with only the rows of these classes (K,), or without rows if none of them is present."""
        if self.rows is None:
            return self
        present = self.rows.present & classes
        return replace(self, rows=self.rows._replace(present=present) if bool(present.any()) else None)

    def shares_all_with(self, other: Message) -> bool:
        """Return True if metrics are equal and rows and tensors are the same ones in memory."""
        ours, theirs = (() if rows is None else tuple(rows) for rows in (self.rows, other.rows))
        return (
            self.metrics == other.metrics
            and self.tensors.keys() == other.tensors.keys()
            and len(ours) == len(theirs)
            and all(map(operator.is_, ours, theirs))
            and all(tensor is other.tensors[name] for name, tensor in self.tensors.items())
        )

    def on(self, device: torch.device) -> Message:
        """Return the message on a device: one copy for all clients there, which do not change it."""
        if device not in self._copies:
            tensors = {name: tensor.to(device) for name, tensor in self.tensors.items()}
            self._copies[device] = replace(self, rows=self.rows and self.rows.to(device), tensors=tensors)
        return self._copies[device]

    def with_metrics(self, metrics: Mapping[str, float]) -> Message:
        """Return the message with more metrics."""
        return replace(self, metrics={**self.metrics, **metrics})


def on_host(messages: Sequence[Message]) -> list[Message]:
    """Return messages with copies of all tensors on the host; a GPU is waited for once for many, not for each."""
    tensors = [tensor for message in messages for tensor in message.all_tensors()]
    copies = {id(tensor): copy for tensor, copy in zip(tensors, fetched(tensors), strict=True)}
    return [
        replace(
            message,
            rows=message.rows and Prototypes(*(copies[id(tensor)] for tensor in message.rows)),
            tensors={name: copies[id(tensor)] for name, tensor in message.tensors.items()},
        )
        for message in messages
    ]


class AtMost(NamedTuple):
    """A size that varies from message to message, up to a limit."""

    limit: int


Shape = tuple[int | AtMost, ...]
"""The shape of a tensor that travels."""


class ClassSums(NamedTuple):
    """Sums and counts by class, from which means follow."""

    sums: Tensor  # (K, w)
    counts: Tensor  # (K,) int64

    def means(self) -> Prototypes:
        """Return sum over count for each class that was counted at least once."""
        present = self.counts > 0
        means = self.sums / self.counts.clamp_min(1).unsqueeze(1).to(self.sums.dtype)
        return Prototypes(torch.where(present.unsqueeze(1), means, torch.zeros_like(means)), present)

    def add(self, upload: Prototypes) -> None:
        """Add one client's rows to float64 sums in place; its absent classes add exactly nothing."""
        present = upload.present.cpu()
        self.sums[present] += upload.values.cpu()[present].double()
        self.counts.add_(present)


def class_sums(features: Tensor, labels: Tensor, num_classes: int) -> ClassSums:
    """Sum the rows of `features` (N, w) by their class."""
    sums = features.new_zeros(num_classes, features.shape[1]).index_add_(0, labels, features)
    counts = labels.new_zeros(num_classes).index_add_(0, labels, torch.ones_like(labels))
    return ClassSums(sums, counts)


def class_means(features: Tensor, labels: Tensor, num_classes: int) -> Prototypes:
    """Return local prototypes c̄ᴸ_ij, eq. (3): the mean feature of each class among the samples given."""
    return class_sums(features, labels, num_classes).means()


def sum_over_holders(uploads: Sequence[Prototypes]) -> ClassSums:
    """Return Σ over N_j, the clients that hold class j, of their rows, in float64; the counts are |N_j|."""
    if not uploads:
        raise ValueError("nothing to aggregate")
    num_classes, width = uploads[0].values.shape
    total = ClassSums(torch.zeros(num_classes, width, dtype=torch.float64), torch.zeros(num_classes, dtype=torch.int64))
    for upload in uploads:
        total.add(upload)
    return total


def simple_mean(total: ClassSums) -> Prototypes:
    """Return global prototypes c̄ᴳ_j, eq. (9): every holder of a class weighs the same."""
    means = total.means()
    return Prototypes(means.values.float(), means.present)


def stack_rows(uploads: Iterable[Prototypes]) -> tuple[Tensor, Tensor]:
    """Return all rows present, client after client, with their classes: values (N, w) and labels (N,)."""
    uploads = list(uploads)
    values = torch.cat([upload.values[upload.present] for upload in uploads])
    labels = torch.cat([upload.present.nonzero().squeeze(1) for upload in uploads])
    return values, labels


def safe_norm(difference: Tensor) -> Tensor:
    """Return the L2 norm over the last axis, with gradient zero (not NaN) at zero."""
    return difference.square().sum(-1).clamp_min(TINY).sqrt()


def mse_regulariser(features: Tensor, labels: Tensor, prototypes: Prototypes) -> Tensor:
    """Return R of eq. (6) as the published runs compute it: the squared error of each sample to its class's prototype.

    The mean is over all B·d entries; a sample whose class has no prototype contributes zero to the sum.
    """
    wanted = prototypes.present[labels].unsqueeze(1)
    difference = torch.where(wanted, features - prototypes.values[labels], torch.zeros_like(features))
    return difference.square().mean()


def l2_regulariser(features: Tensor, labels: Tensor, prototypes: Prototypes) -> Tensor:
    """Return R of eq. (6) and (11) as printed: Σ_j ρ(c̄ᴸ_j, c̄ᴳ_j), Euclidean.

    c̄ᴸ_j is the mean of class j in the batch.
    """
    batch = class_sums(features, labels, prototypes.num_classes)
    means = batch.sums / batch.counts.clamp_min(1).unsqueeze(1).to(features.dtype)
    wanted = prototypes.present & (batch.counts > 0)
    difference = torch.where(wanted.unsqueeze(1), means - prototypes.values, torch.zeros_like(means))
    return torch.where(wanted, safe_norm(difference), torch.zeros_like(difference[:, 0])).sum()


REGULARISERS: dict[Distance, Callable[[Tensor, Tensor, Prototypes], Tensor]] = {
    "mse": mse_regulariser,
    "l2": l2_regulariser,
}


class Centred(NamedTuple):
    """The prototypes present, relative to the median prototype: the form in which features are compared with them.

    An offset that features and prototypes share would cancel only up to rounding, and a mean would follow a single
    prototype that is far away. Where prototypes form groups far from each other, compared with their spread, float32
    still cannot tell a group's members apart.
    """

    classes: Tensor  # (n,); absent rows take no part, not even in the median
    centre: Tensor  # (d,)
    values: Tensor  # (n, d)

    @classmethod
    def of(cls, prototypes: Prototypes) -> Centred:
        """Return the rows present; at least one is."""
        classes = prototypes.present.nonzero().squeeze(1)
        values = prototypes.values[classes]
        centre = values.sort(0).values[len(classes) // 2]  # not torch.median, which is not deterministic on a GPU
        return cls(classes, centre, values - centre)

    def compare(self, features: Tensor) -> Tensor:
        """Return ‖f − c‖² less ‖f − centre‖², which is equal for all classes, for each feature and class, (N, n)."""
        return torch.addmm(self.values.square().sum(1), features - self.centre, self.values.T, alpha=-2.0)


class CentredSets(NamedTuple):
    """Several sets of prototypes in the form of `Centred`, with absent rows masked instead of left out.

    No shape depends on a value, so a GPU computes it without the host waiting. `nearest` computes less, and is the
    reference.
    """

    absent: Tensor  # (m, 1, K) bool
    centre: Tensor  # (m, 1, d)
    values: Tensor  # (m, K, d), zero where absent

    @classmethod
    def of(cls, sets: Sequence[Prototypes]) -> CentredSets:
        """Return sets of equal shape; one without any row present gives classes that mean nothing."""
        values = torch.stack([each.values for each in sets])
        present = torch.stack([each.present for each in sets]).unsqueeze(2)
        ascending = torch.where(present, values, torch.inf).sort(1).values  # absent rows come last
        middle = (present.sum(1, keepdim=True) // 2).expand(-1, 1, values.shape[2])
        centre = ascending.gather(1, middle)
        return cls(~present.mT, centre, torch.where(present, values - centre, 0.0))

    def nearest(self, features: Tensor) -> Tensor:
        """Return the class of the nearest prototype of each set for each feature, (m, N)."""
        squares = self.values.square().sum(2).unsqueeze(1)
        compared = torch.baddbmm(squares, features - self.centre, self.values.mT, alpha=-2.0)  # (m, N, K)
        return compared.masked_fill_(self.absent, torch.inf).argmin(2)


def nearest(features: Tensor, prototypes: Prototypes) -> Tensor:
    """Return the class of the nearest prototype in L2, eq. (12), for each feature; at least one class is present.

    The paper prints this with local prototypes; its tables need the global ones, so the caller chooses. It takes about
    1.4 times as long as without a centre (3000 × 500 features, 100 classes, one core); float64 takes 2.8 times and
    differences 22 times as long.
    """
    rows = Centred.of(prototypes)
    return rows.classes[rows.compare(features).argmin(1)]
