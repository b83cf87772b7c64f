"""Squeeze-and-excitation's gate, values · σ(gates): one kernel forward, one backward."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDE = 2048
"""Values that a program handles, unless a row is longer."""


@triton.jit
def _forward(x, gates, y, rows, size, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    real = row < rows
    share = tl.sigmoid(tl.load(gates + row, mask=real, other=0.0))
    for start in range(0, size, BLOCK):
        inside = real[:, None] & (start + at < size)[None, :]
        place = row[:, None] * size + start + at[None, :]
        tl.store(y + place, tl.load(x + place, mask=inside, other=0.0) * share[:, None], mask=inside)


@triton.jit
def _backward(g, x, gates, dx, dgates, rows, size, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    real = row < rows
    share = tl.sigmoid(tl.load(gates + row, mask=real, other=0.0))
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, size, BLOCK):
        inside = real[:, None] & (start + at < size)[None, :]
        place = row[:, None] * size + start + at[None, :]
        gradient = tl.load(g + place, mask=inside, other=0.0)
        total += gradient * tl.load(x + place, mask=inside, other=0.0)
        tl.store(dx + place, gradient * share[:, None], mask=inside)
    tl.store(dgates + row, tl.sum(total, 1) * share * (1.0 - share), mask=real)


class TritonGate(torch.autograd.Function):
    """values (n, C, B, H, W) times σ(gates), gates (n, C, B, 1, 1)."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, gates: Tensor) -> Tensor:
        """Scale each map by its gate, (n, C, B, H, W)."""
        ctx.save_for_backward(values, gates)
        outcome = torch.empty_like(values)
        grid, sizes, tile = _tiles(values, gates)
        _forward[grid](values, gates, outcome, *sizes, **tile)
        return outcome

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of both."""
        values, gates = ctx.saved_tensors
        of_values, of_gates = torch.empty_like(values), torch.empty_like(gates)
        grid, sizes, tile = _tiles(values, gates)
        _backward[grid](gradients[0].contiguous(), values, gates, of_values, of_gates, *sizes, **tile)
        return of_values, of_gates


def _tiles(values: Tensor, gates: Tensor) -> tuple[tuple[int], tuple[int, int], dict[str, int]]:
    rows, size = gates.numel(), values.numel() // gates.numel()
    block = int(min(512, triton.next_power_of_2(size)))
    together = max(1, WIDE // block)
    return (triton.cdiv(rows, together),), (rows, size), {"ROWS": together, "BLOCK": block}
