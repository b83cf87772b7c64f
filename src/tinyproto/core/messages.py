"""Message: what travels between a client and the server, before it becomes bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import Tensor

from tinyproto.core.prototypes import Prototypes


class AtMost(NamedTuple):
    """A size that varies from message to message, up to a limit."""

    limit: int


Shape = tuple[int | AtMost, ...]
"""What a tensor that travels may look like."""


@dataclass(frozen=True)
class Message:
    """Rows by class, named tensors, and metrics; an empty message is one that says nothing."""

    rows: Prototypes | None = None  # (K, w); only the rows present travel
    tensors: Mapping[str, Tensor] = field(default_factory=dict)  # heads, auxiliary networks, factors
    metrics: Mapping[str, float] = field(default_factory=dict)  # never counted as payload

    @property
    def parameters(self) -> int:
        """How many numbers travel as payload: what the paper counts."""
        rows = 0 if self.rows is None else int(self.rows.present.sum()) * self.rows.width
        return rows + sum(tensor.numel() for tensor in self.tensors.values())

    def of_classes(self, classes: Tensor) -> Message:
        """The same message with the rows of these classes (K,) alone; without rows where none of them is there."""
        if self.rows is None:
            return self
        present = self.rows.present & classes
        return replace(self, rows=self.rows._replace(present=present) if bool(present.any()) else None)

    def with_metrics(self, metrics: Mapping[str, float]) -> Message:
        """The same message with more metrics."""
        return replace(self, metrics={**self.metrics, **metrics})


def prototype_parameters(classes_held: Sequence[int], num_classes: int, width: int) -> int:
    """Σ_i (K_i + K) · w: each client sends the classes it holds and receives all K; w is d, or s under CPS."""
    return sum(held + num_classes for held in classes_held) * width


def exchanged_parameters(classes_held: Sequence[int], parameters: int) -> int:
    """M · |θ| · 2: every client sends and receives the same tensors."""
    return 2 * len(classes_held) * parameters
