"""What is no matrix product in a step of the server's fit of trainable prototypes: the loss, and the bends on its way.

Prototypes are (K, D), uploads (count, D). Biases move in place by −rate times their gradient, which is a sum over the
classes of what a program holds anyway; nothing reads a bias between its use and the end of the step.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinyproto.core.task import Batch

TILE = 8192
"""Values that a program holds of all prototypes when it measures distances, 16 to a thread."""
COLUMNS = (8, 32)
"""Of all prototypes, that a program holds when it adds up gradients: eight are what memory moves at once."""


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
    uploads, learned, slopes, losses, gradient, bias, logged, count, rate,
    K: tl.constexpr, D: tl.constexpr, CLASSES: tl.constexpr, BLOCK: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """Some columns of the gradient of all prototypes; the bias beneath them moves; the first program logs the loss."""
    k = tl.arange(0, CLASSES)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.arange(0, TOGETHER)
    real, inside = k < K, column < D
    both = real[:, None] & inside[None, :]
    place = k[:, None] * D + column[None, :]
    values = tl.load(learned + place, mask=both, other=0.0)
    total = tl.zeros((CLASSES, BLOCK), tl.float32)
    loss = tl.zeros((TOGETHER,), tl.float64)
    for start in range(0, count, TOGETHER):
        loss += tl.load(losses + start + at, mask=start + at < count, other=0.0).to(tl.float64)
        for i in tl.static_range(TOGETHER):
            value, weight = (start + i) * D + column, (start + i) * K + k
            upload = tl.load(uploads + value, mask=inside & (value < count * D), other=0.0)
            slope = tl.load(slopes + weight, mask=real & (weight < count * K), other=0.0)
            total += slope[:, None] * (values - upload[None, :])
    tl.store(gradient + place, total, mask=both)
    before = tl.load(bias + column, mask=inside, other=0.0)
    tl.store(bias + column, before - rate * tl.sum(total, 0), mask=inside)
    first = tl.program_id(0) == 0
    tl.store(logged, tl.load(logged) + tl.sum(loss, 0), mask=first)


@triton.jit
def _through_relu(
    gradient, hidden, bias, rate, K: tl.constexpr, D: tl.constexpr, CLASSES: tl.constexpr, BLOCK: tl.constexpr
):
    """Some columns of the gradient before a ReLU, in place, from those after it; the bias beneath them moves."""
    k = tl.arange(0, CLASSES)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < D
    both = (k < K)[:, None] & inside[None, :]
    place = k[:, None] * D + column[None, :]
    active = tl.load(hidden + place, mask=both, other=0.0)
    values = tl.where(active <= 0.0, 0.0, tl.load(gradient + place, mask=both, other=0.0))
    tl.store(gradient + place, values, mask=both)
    before = tl.load(bias + column, mask=inside, other=0.0)
    tl.store(bias + column, before - rate * tl.sum(values, 0), mask=inside)


class TritonContrast:
    """The two halves of a step's way back that are not matrix products."""

    def of_learned(
        self, batch: Batch, learned: Tensor, penalty: Tensor, bias: Tensor, rate: float, logged: Tensor
    ) -> Tensor:
        """The loss's gradient (K, d); moves the bias of `learned`, adds the sum of the batch's losses to `logged`."""
        (classes, dim), count = learned.shape, len(batch.labels)
        uploads, labels = batch.inputs.contiguous(), batch.labels.contiguous()
        slopes, losses = learned.new_empty(count, classes), learned.new_empty(count)
        gradient = torch.empty_like(learned)
        sizes = {"K": classes, "D": dim, "CLASSES": triton.next_power_of_2(classes)}
        block = min(TILE // sizes["CLASSES"], triton.next_power_of_2(dim))
        pieces = {"BLOCK": block, "TOGETHER": min(4, triton.cdiv(dim, block))}
        _distances[(count,)](uploads, labels, learned, penalty, slopes, losses, count, **sizes, **pieces, num_warps=16)
        grid, tile = _columns(learned)
        _gradient[grid](uploads, learned, slopes, losses, gradient, bias, logged, count, rate, **tile, TOGETHER=16)
        return gradient

    def through_relu(self, gradient: Tensor, hidden: Tensor, bias: Tensor, rate: float) -> None:
        """Make the gradient (K, d) after a ReLU that before it; moves the bias before it."""
        grid, tile = _columns(hidden)
        _through_relu[grid](gradient, hidden, bias, rate, **tile)


def _columns(values: Tensor) -> tuple[tuple[int], dict[str, int]]:
    classes, dim = values.shape
    together = triton.next_power_of_2(classes)
    least, most = COLUMNS
    block = max(least, min(most, 1024 // together))
    return (triton.cdiv(dim, block),), {"K": classes, "D": dim, "CLASSES": together, "BLOCK": block}
