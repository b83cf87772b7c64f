"""The samples of a stack: one pool on the device, from which every client takes its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tinyproto.core.task import TensorData


@dataclass(frozen=True)
class Samples:
    """A pool as it is stored, and how its values become floats."""

    pool: Tensor  # (P, …)
    scale: float
    shift: float

    @classmethod
    def of(cls, data: TensorData) -> Samples:
        """The pool behind a client's samples."""
        return cls(data.pool, data.scale, data.shift)

    def take(self, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The samples at `rows` (n, B) of the pool, (n, B, …)."""
        stored = self.pool.index_select(0, rows.flatten())
        values = stored.view(*rows.shape, *stored.shape[1:]).to(dtype)
        return values if (self.scale, self.shift) == (1.0, 0.0) else values * self.scale + self.shift


def pool_rows(data: TensorData, order: Tensor) -> Tensor:
    """Where in the pool the samples at `order` are."""
    return order if data.rows is None else data.rows[order]
