"""What is no matrix product in a step of the server's fit of trainable prototypes: the loss, and the bends on its way.

Prototypes are (K, D), uploads (count, D).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinyproto.core.task import Batch

TILE = 8192
"""Values that a program holds of all prototypes when it measures distances, 16 to a thread."""
COLUMNS = 128
"""Of one prototype, that a warp holds when it adds up its gradient."""
NARROW = (8, 32)
"""Columns of all prototypes that a program holds when it sums them: eight values are what memory moves at once."""


@triton.jit(do_not_specialize=["count"])
def _distances(
    uploads, labels, learned, penalty, slopes, losses, count,
    K: tl.constexpr, D: tl.constexpr, CLASSES: tl.constexpr, BLOCK: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """One upload against all prototypes: its loss, and the loss's slope along every difference to a prototype."""
    row = tl.program_id(0)
    k = tl.arange(0, CLASSES)
    at = tl.arange(0, BLOCK)
    real = k < K
    squares = tl.zeros((CLASSES, BLOCK), tl.float32)
    for start in range(0, D, BLOCK * TOGETHER):
        for i in tl.static_range(TOGETHER):
            column = start + i * BLOCK + at
            inside = column < D
            upload = tl.load(uploads + row * D + column, mask=inside, other=0.0)
            both = real[:, None] & inside[None, :]
            values = tl.load(learned + k[:, None] * D + column[None, :], mask=both, other=0.0)
            gap = values - upload[None, :]
            squares += gap * gap
    distance = tl.sqrt(tl.sum(squares, 1))
    label = tl.load(labels + row)
    own = k == label
    score = -(distance + tl.load(penalty + label * K + k, mask=real, other=float("inf")))
    top = tl.max(score, 0)
    share = tl.exp(score - top)
    total = tl.sum(share, 0)
    tl.store(losses + row, top + tl.log(total) - tl.sum(tl.where(own, score, 0.0), 0))
    pull = (tl.where(own, 1.0, 0.0) - share / total) / count
    tl.store(slopes + row * K + k, tl.where(distance == 0.0, 0.0, pull / distance), mask=real)


@triton.jit(do_not_specialize=["count"])
def _gradient(
    uploads, learned, slopes, losses, gradient, logged, count,
    K: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """Some columns of one prototype's gradient; the first program logs the loss.

    The slope along a difference is one number for all threads: spread over a tile it would have to be passed around.
    """
    k = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = tl.arange(0, TOGETHER)
    inside = column < D
    values = tl.load(learned + k * D + column, mask=inside, other=0.0)
    total = tl.zeros((BLOCK,), tl.float32)
    loss = tl.zeros((TOGETHER,), tl.float64)
    for start in range(0, count, TOGETHER):
        loss += tl.load(losses + start + at, mask=start + at < count, other=0.0).to(tl.float64)
        for i in tl.static_range(TOGETHER):
            row = start + i
            real = row < count
            value = row * D + column
            upload = tl.load(uploads + value, mask=inside & (value < count * D), other=0.0)
            slope = tl.load(slopes + row * K + k, mask=real, other=0.0)
            total += slope * (values - upload)
    tl.store(gradient + k * D + column, total, mask=inside)
    first = (k == 0) & (tl.program_id(1) == 0)
    tl.store(logged, tl.load(logged) + tl.sum(loss, 0), mask=first)


@triton.jit
def _through_relu(
    of_hidden, hidden, hidden_bias, of_learned, output_bias, rate,
    K: tl.constexpr, D: tl.constexpr, CLASSES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some columns of the gradient before a ReLU, in place, from those after it; both biases beneath them move."""
    k = tl.arange(0, CLASSES)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < D
    both = (k < K)[:, None] & inside[None, :]
    place = k[:, None] * D + column[None, :]
    active = tl.load(hidden + place, mask=both, other=0.0)
    values = tl.where(active <= 0.0, 0.0, tl.load(of_hidden + place, mask=both, other=0.0))
    tl.store(of_hidden + place, values, mask=both)
    later = tl.load(of_learned + place, mask=both, other=0.0)
    before = tl.load(hidden_bias + column, mask=inside, other=0.0)
    tl.store(hidden_bias + column, before - rate * tl.sum(values, 0), mask=inside)
    before = tl.load(output_bias + column, mask=inside, other=0.0)
    tl.store(output_bias + column, before - rate * tl.sum(later, 0), mask=inside)


class TritonContrast:
    """The two halves of a step's way back that are not matrix products."""

    def of_learned(self, batch: Batch, learned: Tensor, penalty: Tensor, logged: Tensor) -> Tensor:
        """The loss's gradient (K, d); adds the sum of the batch's losses to `logged`."""
        (classes, dim), count = learned.shape, len(batch.labels)
        uploads, labels = batch.inputs.contiguous(), batch.labels.contiguous()
        slopes, losses = learned.new_empty(count, classes), learned.new_empty(count)
        gradient = torch.empty_like(learned)
        sizes, whole = {"K": classes, "D": dim}, triton.next_power_of_2(classes)
        block = min(TILE // whole, triton.next_power_of_2(dim))
        tile = {"CLASSES": whole, "BLOCK": block, "TOGETHER": min(4, triton.cdiv(dim, block))}
        _distances[(count,)](uploads, labels, learned, penalty, slopes, losses, count, **sizes, **tile, num_warps=16)
        grid, tile = (classes, triton.cdiv(dim, COLUMNS)), {"BLOCK": COLUMNS, "TOGETHER": 16}
        _gradient[grid](uploads, learned, slopes, losses, gradient, logged, count, **sizes, **tile, num_warps=1)
        return gradient

    def through_relu(
        self, of_hidden: Tensor, hidden: Tensor, hidden_bias: Tensor, of_learned: Tensor, output_bias: Tensor,
        rate: float,
    ) -> None:  # fmt: skip
        """Make `of_hidden`, the gradient (K, d) after a ReLU, that before it; moves the biases of both layers."""
        classes, dim = hidden.shape
        whole = triton.next_power_of_2(classes)
        least, most = NARROW
        block = max(least, min(most, 1024 // whole))
        sizes = {"K": classes, "D": dim, "CLASSES": whole, "BLOCK": block}
        grid = (triton.cdiv(dim, block),)
        _through_relu[grid](of_hidden, hidden, hidden_bias, of_learned, output_bias, rate, **sizes)
