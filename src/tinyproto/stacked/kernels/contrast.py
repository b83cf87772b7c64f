"""Kernels for the server's fit of trainable prototypes: the parts of a step that are not matrix products.

Prototypes are (K, D), uploads (count, D).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinyproto.core.task import Batch

TILE = 8192
"""Values of all prototypes that a program holds when it computes distances, 16 to a thread."""
COLUMNS = 128
"""Columns of one prototype that a warp holds when it sums the gradient."""
NARROW = (8, 32)
"""Fewest and most columns of all prototypes that a program sums; memory moves eight values at once."""


@triton.jit(do_not_specialize=["count"])
def _distances(
    uploads, labels, learned, penalty, slopes, losses, count,
    K: tl.constexpr, D: tl.constexpr, CLASSES: tl.constexpr, BLOCK: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """Compare one upload with all prototypes: store its loss, and the loss's slope along each difference."""
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
def _loss_gradient(
    uploads, learned, slopes, losses, gradient, logged, count,
    K: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """Sum some columns of one prototype's gradient; the first program logs the loss.

    The slope along a difference is one number for all threads; in a tile, threads would have to exchange it.
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
def _relu_gradient(
    of_hidden, hidden, hidden_bias, of_learned, output_bias, rate,
    K: tl.constexpr, D: tl.constexpr, CLASSES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Turn some columns of the gradient after a ReLU into those before it, in place, and move both layers' biases."""
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


def loss_gradient(batch: Batch, learned: Tensor, penalty: Tensor, logged: Tensor) -> Tensor:
    """Return the loss's gradient (K, d); add the sum of the batch's losses to `logged`."""
    (classes, dim), count = learned.shape, len(batch.labels)
    uploads, labels = batch.inputs.contiguous(), batch.labels.contiguous()
    slopes, losses = learned.new_empty(count, classes), learned.new_empty(count)
    gradient = torch.empty_like(learned)
    sizes, padded = {"K": classes, "D": dim}, triton.next_power_of_2(classes)
    block = min(TILE // padded, triton.next_power_of_2(dim))
    tile = {"CLASSES": padded, "BLOCK": block, "TOGETHER": min(4, triton.cdiv(dim, block))}
    _distances[(count,)](uploads, labels, learned, penalty, slopes, losses, count, **sizes, **tile, num_warps=16)
    grid, tile = (classes, triton.cdiv(dim, COLUMNS)), {"BLOCK": COLUMNS, "TOGETHER": 16}
    _loss_gradient[grid](uploads, learned, slopes, losses, gradient, logged, count, **sizes, **tile, num_warps=1)
    return gradient


def relu_gradient(
    of_hidden: Tensor, hidden: Tensor, hidden_bias: Tensor, of_learned: Tensor, output_bias: Tensor, rate: float
) -> None:
    """Turn `of_hidden` (K, d), the gradient after the ReLU, into the one before it; move both layers' biases."""
    classes, dim = hidden.shape
    padded = triton.next_power_of_2(classes)
    least, most = NARROW
    block = max(least, min(most, 1024 // padded))
    sizes = {"K": classes, "D": dim, "CLASSES": padded, "BLOCK": block}
    grid = (triton.cdiv(dim, block),)
    _relu_gradient[grid](of_hidden, hidden, hidden_bias, of_learned, output_bias, rate, **sizes)
