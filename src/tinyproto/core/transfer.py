"""Move tensors of many clients between the host and a device in few steps: each that waits stops the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item")

MOST_TOGETHER = 1 << 22
"""Values of many clients that are put together: 16 MB of float32, so that a small GPU has room for them."""


def portions(items: Sequence[Item], sizes: Sequence[int], most: int = MOST_TOGETHER) -> Iterator[list[Item]]:
    """Yield items in order, in portions of at most `most` values; a larger item is a portion of its own."""
    portion: list[Item] = []
    held = 0
    for item, size in zip(items, sizes, strict=True):
        if portion and held + size > most:
            yield portion
            portion, held = [], 0
        portion.append(item)
        held += size
    if portion:
        yield portion


def fetched(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of tensors on the host: one transfer for all of a type, or few if they are large."""
    found = list(tensors)
    for device, dtype in dict.fromkeys((tensor.device, tensor.dtype) for tensor in tensors):
        alike = [index for index, tensor in enumerate(tensors) if (tensor.device, tensor.dtype) == (device, dtype)]
        for indices in portions(alike, [tensors[index].numel() for index in alike]):
            joined = torch.cat([tensors[index].detach().flatten() for index in indices])
            if joined.is_cuda:  # pinned memory is used again; any other is new to the host, page by page
                joined = torch.empty(joined.shape, dtype=dtype, pin_memory=True).copy_(joined)
            pieces = torch.split(joined, [tensors[index].numel() for index in indices])
            for index, piece in zip(indices, pieces, strict=True):
                found[index] = piece.view(tensors[index].shape)
    return found
