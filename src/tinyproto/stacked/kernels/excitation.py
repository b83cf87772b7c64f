"""Squeeze-and-excitation in five kernels forward and eight backward.

A row is one feature map of one sample and client, and has one mean and one gate. The two products in between are small.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinyproto.stacked.capture import current_branch, forked
from tinyproto.stacked.convolution import product
from tinyproto.stacked.kernels import launch
from tinyproto.stacked.kernels.fused import ACTIVATIONS, activate, slope

WIDE = 2048
"""Fewest values that a program handles, unless there are fewer."""


@triton.jit(do_not_specialize=["rows"])
def _means(x, y, rows, size, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, size, BLOCK):
        inside = (row < rows)[:, None] & (start + at < size)[None, :]
        total += tl.load(x + row[:, None] * size + start + at[None, :], mask=inside, other=0.0)
    tl.store(y + row, tl.sum(total, 1) / size, mask=row < rows)


@triton.jit(do_not_specialize=["rows"])
def _activation_forward(z, bias, y, rows, size, ACT: tl.constexpr, BLOCK: tl.constexpr):
    """Add the bias of each row in place, and write the activation of the sum to y."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < rows * size
    values = tl.load(z + at, mask=inside, other=0.0) + tl.load(bias + at // size, mask=inside, other=0.0)
    tl.store(z + at, values, mask=inside)
    tl.store(y + at, activate(values, ACT), mask=inside)


@triton.jit
def _activation_backward(g, z, dbias, size, ACT: tl.constexpr, BLOCK: tl.constexpr):
    """Turn the gradient of a row into that before the activation, in place, and sum it."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        inside = start + at < size
        place = row * size + start + at
        gradient = tl.load(g + place, mask=inside, other=0.0) * slope(tl.load(z + place, mask=inside, other=0.0), ACT)
        tl.store(g + place, gradient, mask=inside)
        total += tl.where(inside, gradient, 0.0)
    tl.store(dbias + row, tl.sum(total, 0))


@triton.jit
def _share(gates, biases, row, rows, samples):
    gate = tl.load(gates + row, mask=row < rows, other=0.0)
    return tl.sigmoid(gate + tl.load(biases + row // samples, mask=row < rows, other=0.0))


@triton.jit(do_not_specialize=["rows", "samples"])
def _gate_forward(x, gates, biases, y, rows, size, samples, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    share = _share(gates, biases, row, rows, samples)
    for start in range(0, size, BLOCK):
        inside = (row < rows)[:, None] & (start + at < size)[None, :]
        place = row[:, None] * size + start + at[None, :]
        tl.store(y + place, tl.load(x + place, mask=inside, other=0.0) * share[:, None], mask=inside)


@triton.jit(do_not_specialize=["rows", "samples"])
def _gate_gradient(g, x, gates, biases, dgates, rows, size, samples, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    share = _share(gates, biases, row, rows, samples)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, size, BLOCK):
        inside = (row < rows)[:, None] & (start + at < size)[None, :]
        place = row[:, None] * size + start + at[None, :]
        total += tl.load(g + place, mask=inside, other=0.0) * tl.load(x + place, mask=inside, other=0.0)
    tl.store(dgates + row, tl.sum(total, 1) * share * (1.0 - share), mask=row < rows)


@triton.jit(do_not_specialize=["rows", "samples"])
def _input_gradient(g, gates, biases, dmeans, dx, rows, size, samples, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    share = _share(gates, biases, row, rows, samples)
    of_mean = tl.load(dmeans + row, mask=row < rows, other=0.0) / size
    for start in range(0, size, BLOCK):
        inside = (row < rows)[:, None] & (start + at < size)[None, :]
        place = row[:, None] * size + start + at[None, :]
        gradient = tl.load(g + place, mask=inside, other=0.0) * share[:, None] + of_mean[:, None]
        tl.store(dx + place, gradient, mask=inside)


class TritonExcitation(torch.autograd.Function):
    """values (n, C, B, H, W) · σ(second · activation(first · means + first_bias) + second_bias)."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, first: Tensor, first_bias: Tensor, second: Tensor, second_bias: Tensor,
        activation: str,
    ) -> Tensor:  # fmt: skip
        """Scale each map by its share, (n, C, B, H, W)."""
        grid, sizes, tile = _tiles(values)
        means = values.new_empty(values.shape[:3])
        launch(_means, grid)(values, means, *sizes[:2], **tile)
        squeezed = product(first, means)  # (n, S, B)
        active, count = torch.empty_like(squeezed), squeezed.numel()
        launch(_activation_forward, (triton.cdiv(count, 512),))(
            squeezed, first_bias, active, first_bias.numel(), squeezed.shape[2], ACT=ACTIVATIONS[activation], BLOCK=512
        )
        gates = product(second, active)  # (n, C, B), still without their bias
        outcome = torch.empty_like(values)
        launch(_gate_forward, grid)(values, gates, second_bias, outcome, *sizes, **tile)
        ctx.save_for_backward(values, first, second, second_bias, means, squeezed, active, gates)
        ctx.activation, ctx.branch = activation, current_branch()
        return outcome

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the values, weights and biases."""
        values, first, second, second_bias, means, squeezed, active, gates = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        grid, sizes, tile = _tiles(values)
        of_gates = torch.empty_like(gates)
        launch(_gate_gradient, grid)(gradient, values, gates, second_bias, of_gates, *sizes, **tile)
        with forked(ctx.branch, of_gates, active):
            of_second, of_second_bias = product(of_gates, active.transpose(1, 2)), of_gates.sum(2)
        of_squeezed, samples = product(second.transpose(1, 2), of_gates), squeezed.shape[2]
        of_first_bias = of_squeezed.new_empty(squeezed.shape[:2])
        launch(_activation_backward, (of_first_bias.numel(),))(
            of_squeezed, squeezed, of_first_bias, samples, ACT=ACTIVATIONS[ctx.activation],
            BLOCK=min(512, triton.next_power_of_2(samples)),
        )  # fmt: skip
        with forked(ctx.branch, of_squeezed, means):
            of_first = product(of_squeezed, means.transpose(1, 2))
        of_means, of_values = product(first.transpose(1, 2), of_squeezed), torch.empty_like(values)
        launch(_input_gradient, grid)(gradient, gates, second_bias, of_means, of_values, *sizes, **tile)
        return of_values, of_first, of_first_bias, of_second, of_second_bias, None


def _tiles(values: Tensor) -> tuple[tuple[int], tuple[int, int, int], dict[str, int]]:
    """Return the number of programs; maps, positions of a map and samples; and the tile of a program."""
    clients, channels, samples = values.shape[:3]
    rows, size = clients * channels * samples, values[0, 0, 0].numel()
    block = int(min(512, triton.next_power_of_2(size)))
    together = max(1, WIDE // block)
    return (triton.cdiv(rows, together),), (rows, size, samples), {"ROWS": together, "BLOCK": block}
