"""Batch plans: which samples make up which batch, for clients of any size."""

from __future__ import annotations

from typing import Literal

import torch

from tinyproto.core.task import BatchPlan

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
