"""Batch normalisation as one kernel forward and one backward.

It includes an addition and the activation after it, or stochastic depth and the addition after that. A row is one
channel of one client: B·H·W values in order with a mean and spread of their own. A program handles whole rows, several
if they are short; rows longer than a block are read in pieces.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinyproto.stacked.kernels import launch
from tinyproto.stacked.layers import Depth, RunningStatistics

LONGEST = 16384
"""Longest row that a program holds at once."""
WIDE = 2048
"""Fewest values that a program handles, unless there are fewer."""

ACTIVATIONS = {None: 0, "relu": 1, "relu6": 2, "silu": 3}

# Arguments whose values, or alignment in memory, would only lead to more compiled kernels that are no faster.
_NUMBERS = ["rows", "channels", "samples", "area"]
_BY_ROW = ["draws", "means", "spreads", "running_mean", "running_var", "weight", "bias"]


@triton.jit
def activate(z, ACT: tl.constexpr):
    """Apply the activation; by comparisons, not maxima, so that NaN stays NaN."""
    if ACT == 1:
        z = tl.where(z < 0.0, 0.0, z)
    if ACT == 2:
        z = tl.where(z < 0.0, 0.0, tl.where(z > 6.0, 6.0, z))
    if ACT == 3:
        z = z * tl.sigmoid(z)
    return z


@triton.jit
def slope(z, ACT: tl.constexpr):
    """Return the derivative of the activation."""
    steep = tl.full(z.shape, 1.0, z.dtype)
    if ACT == 1:
        steep = tl.where(z <= 0.0, 0.0, 1.0)
    if ACT == 2:
        steep = tl.where((z <= 0.0) | (z >= 6.0), 0.0, 1.0)
    if ACT == 3:
        gate = tl.sigmoid(z)
        steep = gate * (1.0 + z * (1.0 - gate))
    return steep


@triton.jit
def _kept(draws, row, at, inside, channels, samples, area, dropped):
    """Return what stochastic depth multiplies by: zero for the samples whose draw is below `dropped`."""
    drawn = tl.load(draws + (row // channels)[:, None] * samples + (at // area)[None, :], mask=inside, other=0.0)
    return tl.where(drawn < dropped, 0.0, 1.0 / (1.0 - dropped))


@triton.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=_BY_ROW)
def _forward(
    x, added, draws, y, means, spreads, running_mean, running_var, weight, bias, rows, size, momentum, eps,
    channels, samples, area, dropped, ACT: tl.constexpr, ADDED: tl.constexpr, DROPPED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = row < rows
    at = tl.arange(0, BLOCK)
    start_of = row[:, None].to(tl.int64) * size
    if AT_ONCE:
        inside = real[:, None] & (at < size)[None, :]
        values = tl.load(x + start_of + at[None, :], mask=inside, other=0.0)
        mean = tl.sum(values, 1) / size
        centred = tl.where(inside, values - mean[:, None], 0.0)
        variance = tl.sum(centred * centred, 1) / size
    else:
        total = tl.zeros((ROWS, BLOCK), tl.float32)
        for start in range(0, size, BLOCK):
            inside = real[:, None] & (start + at < size)[None, :]
            total += tl.load(x + start_of + start + at[None, :], mask=inside, other=0.0)
        mean = tl.sum(total, 1) / size
        total = tl.zeros((ROWS, BLOCK), tl.float32)
        for start in range(0, size, BLOCK):
            inside = real[:, None] & (start + at < size)[None, :]
            values = tl.load(x + start_of + start + at[None, :], mask=inside, other=0.0)
            centred = tl.where(inside, values - mean[:, None], 0.0)
            total += centred * centred
        variance = tl.sum(total, 1) / size
    spread = 1.0 / tl.sqrt(variance + eps)
    factor = spread * tl.load(weight + row, mask=real, other=0.0)
    shift = tl.load(bias + row, mask=real, other=0.0)
    if AT_ONCE:
        z = centred * factor[:, None] + shift[:, None]
        if DROPPED:
            z *= _kept(draws, row, at, inside, channels, samples, area, dropped)
        if ADDED:
            z += tl.load(added + start_of + at[None, :], mask=inside, other=0.0)
        tl.store(y + start_of + at[None, :], activate(z, ACT), mask=inside)
    else:
        for start in range(0, size, BLOCK):
            inside = real[:, None] & (start + at < size)[None, :]
            values = tl.load(x + start_of + start + at[None, :], mask=inside, other=0.0)
            z = (values - mean[:, None]) * factor[:, None] + shift[:, None]
            if DROPPED:
                z *= _kept(draws, row, start + at, inside, channels, samples, area, dropped)
            if ADDED:
                z += tl.load(added + start_of + start + at[None, :], mask=inside, other=0.0)
            tl.store(y + start_of + start + at[None, :], activate(z, ACT), mask=inside)
    tl.store(means + row, mean, mask=real)
    tl.store(spreads + row, spread, mask=real)
    old_mean = tl.load(running_mean + row, mask=real, other=0.0)
    old_var = tl.load(running_var + row, mask=real, other=0.0)
    unbiased = variance * (size / (size - 1.0))
    tl.store(running_mean + row, old_mean + momentum * (mean - old_mean), mask=real)
    tl.store(running_var + row, old_var + momentum * (unbiased - old_var), mask=real)


@triton.jit
def _inner(
    g, x, y, place, inside, mean, spread, weight, bias, draws, row, at, channels, samples, area, dropped,
    ACT: tl.constexpr, ADDED: tl.constexpr, DROPPED: tl.constexpr,
):  # fmt: skip
    """Return the gradient before the activation, or before stochastic depth, and the normalised values."""
    gradient = tl.load(g + place, mask=inside, other=0.0)
    values = tl.load(x + place, mask=inside, other=0.0)
    normal = tl.where(inside, (values - mean[:, None]) * spread[:, None], 0.0)
    if ADDED:
        if ACT != 0:
            gradient *= slope(tl.load(y + place, mask=inside, other=0.0), ACT)
    else:
        gradient *= slope(normal * weight[:, None] + bias[:, None], ACT)
    if DROPPED:
        gradient *= _kept(draws, row, at, inside, channels, samples, area, dropped)
    return gradient, normal


@triton.jit(
    do_not_specialize=_NUMBERS,
    do_not_specialize_on_alignment=["draws", "dweight", "dbias", "means", "spreads", "weights", "biases"],
)
def _backward(
    g, x, y, draws, dx, dadded, dweight, dbias, means, spreads, weights, biases, rows, size,
    channels, samples, area, dropped, ACT: tl.constexpr, ADDED: tl.constexpr, DROPPED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = row < rows
    at = tl.arange(0, BLOCK)
    start_of = row[:, None].to(tl.int64) * size
    mean, spread = tl.load(means + row, mask=real, other=0.0), tl.load(spreads + row, mask=real, other=0.0)
    weight, bias = tl.load(weights + row, mask=real, other=0.0), tl.load(biases + row, mask=real, other=0.0)
    if AT_ONCE:
        inside = real[:, None] & (at < size)[None, :]
        place = start_of + at[None, :]
        gradient, normal = _inner(
            g, x, y, place, inside, mean, spread, weight, bias, draws, row, at, channels, samples, area, dropped,
            ACT, ADDED, DROPPED,
        )  # fmt: skip
        of_bias, of_weight = tl.sum(gradient, 1), tl.sum(gradient * normal, 1)
    else:
        sums, products = tl.zeros((ROWS, BLOCK), tl.float32), tl.zeros((ROWS, BLOCK), tl.float32)
        for start in range(0, size, BLOCK):
            inside = real[:, None] & (start + at < size)[None, :]
            place = start_of + start + at[None, :]
            gradient, normal = _inner(
                g, x, y, place, inside, mean, spread, weight, bias, draws, row, start + at, channels, samples, area,
                dropped, ACT, ADDED, DROPPED,
            )  # fmt: skip
            sums += gradient
            products += gradient * normal
        of_bias, of_weight = tl.sum(sums, 1), tl.sum(products, 1)
    tl.store(dbias + row, of_bias, mask=real)
    tl.store(dweight + row, of_weight, mask=real)
    factor, offset, tilt = weight * spread, of_bias / size, of_weight / size
    if AT_ONCE:
        moved = factor[:, None] * (gradient - offset[:, None] - normal * tilt[:, None])
        tl.store(dx + place, moved, mask=inside)
        if ADDED and ACT != 0:
            tl.store(dadded + place, gradient, mask=inside)
    else:
        for start in range(0, size, BLOCK):
            inside = real[:, None] & (start + at < size)[None, :]
            place = start_of + start + at[None, :]
            gradient, normal = _inner(
                g, x, y, place, inside, mean, spread, weight, bias, draws, row, start + at, channels, samples, area,
                dropped, ACT, ADDED, DROPPED,
            )  # fmt: skip
            moved = factor[:, None] * (gradient - offset[:, None] - normal * tilt[:, None])
            tl.store(dx + place, moved, mask=inside)
            if ADDED and ACT != 0:
                tl.store(dadded + place, gradient, mask=inside)


@triton.jit(do_not_specialize_on_alignment=_BY_ROW[3:])
def _by_running(
    x, added, y, running_mean, running_var, weight, bias, size, eps,
    ACT: tl.constexpr, ADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    factor = tl.load(weight + row) / tl.sqrt(tl.load(running_var + row) + eps)
    shift = tl.load(bias + row) - tl.load(running_mean + row) * factor
    z = tl.load(x + row * size + at, mask=inside, other=0.0) * factor + shift
    if ADDED:
        z += tl.load(added + row * size + at, mask=inside, other=0.0)
    tl.store(y + row * size + at, activate(z, ACT), mask=inside)


class TritonNormalisation(torch.autograd.Function):
    """activation(depth(normalise(values) · weight + bias) + added); updates the running statistics in place.

    With stochastic depth there is an addition and no activation.
    """

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor, bias: Tensor, added: Tensor | None, running: RunningStatistics,
        activation: str | None, depth: Depth | None,
    ) -> Tensor:  # fmt: skip
        """Normalise (n, C, B, …) by the statistics of the batch."""
        rows, size = weight.numel(), values[0, 0].numel()
        outcome = torch.empty_like(values)
        means, spreads = torch.empty_like(weight), torch.empty_like(weight)
        grid, tile = _tiles(rows, size)
        ctx.dropped = 0.0 if depth is None else depth.dropped
        ctx.options = {"ACT": ACTIVATIONS[activation], "ADDED": added is not None, "DROPPED": depth is not None, **tile}
        launch(_forward, grid)(
            values, values if added is None else added, values if depth is None else depth.draws, outcome, means,
            spreads, running.mean, running.variance, weight, bias, rows, size, running.momentum, running.eps,
            *_places(values), ctx.dropped, **ctx.options
        )  # fmt: skip
        used = outcome if added is not None and activation is not None else None
        ctx.save_for_backward(values, weight, bias, means, spreads, used, None if depth is None else depth.draws)
        return outcome

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the values, both parameters and the addition."""
        values, weight, bias, means, spreads, outcome, draws = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        rows, size = weight.numel(), values[0, 0].numel()
        of_values, of_weight, of_bias = torch.empty_like(values), torch.empty_like(weight), torch.empty_like(bias)
        of_added = None
        if ctx.options["ADDED"]:
            of_added = gradient if outcome is None else torch.empty_like(values)
        launch(_backward, _tiles(rows, size)[0])(
            gradient, values, values if outcome is None else outcome, values if draws is None else draws, of_values,
            values if of_added is None else of_added, of_weight, of_bias, means, spreads, weight, bias, rows, size,
            *_places(values), ctx.dropped, **ctx.options
        )  # fmt: skip
        return of_values, of_weight, of_bias, of_added, None, None, None


def _places(values: Tensor) -> tuple[int, int, int]:
    """Return channels, samples and positions of a map."""
    return values.shape[1], values.shape[2], values[0, 0, 0].numel()


def normalise_by_running(
    values: Tensor,
    weight: Tensor,
    bias: Tensor,
    added: Tensor | None,
    running: RunningStatistics,
    activation: str | None,
) -> Tensor:
    """Do the same by the running statistics, without a gradient."""
    rows, size = weight.numel(), values[0, 0].numel()
    outcome = torch.empty_like(values)
    block = int(min(1024, triton.next_power_of_2(size)))
    launch(_by_running, (rows, triton.cdiv(size, block)))(
        values, values if added is None else added, outcome, running.mean, running.variance, weight, bias, size,
        running.eps, ACT=ACTIVATIONS[activation], ADDED=added is not None, BLOCK=block
    )  # fmt: skip
    return outcome


def _tiles(rows: int, size: int) -> tuple[tuple[int], dict[str, Any]]:
    """Return the number of programs, and the tile that each handles."""
    at_once = size <= LONGEST
    block = int(triton.next_power_of_2(size)) if at_once else 4096
    together = max(1, min(WIDE // block, int(triton.next_power_of_2(rows)))) if at_once else 1
    warps = 4 if block * together <= 2048 else 8 if block * together <= 4096 else 16
    return (triton.cdiv(rows, together),), {"ROWS": together, "BLOCK": block, "AT_ONCE": at_once, "num_warps": warps}
