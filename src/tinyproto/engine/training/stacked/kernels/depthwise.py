"""The three kernels of a depthwise convolution: forward, gradient of the inputs, gradient of the filters.

A program handles a block of positions of one channel of one client; (client, channel) are the rows of the stack, and a
row is B·H·W values in order. Maps are small (1 to 32 pixels wide), so a filter's k·k taps are unrolled; their
sizes are known when a kernel is compiled, so that a division by a width of 8 is a shift.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinyproto.engine.training.stacked.kernels import quotient

BLOCK = 512


@triton.jit
def _forward(
    x,
    w,
    y,
    size_out,
    H: tl.constexpr,
    W: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    K: tl.constexpr,
    S: tl.constexpr,
    PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size_out
    sample, place = at // (P * Q), at % (P * Q)
    p, q = place // Q, place % Q
    size_in = (size_out // (P * Q)) * H * W
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(K):
        for j in tl.static_range(K):
            h, v = p * S - PAD + i, q * S - PAD + j
            ok = inside & (h >= 0) & (h < H) & (v >= 0) & (v < W)
            values = tl.load(x + row * size_in + sample * H * W + h * W + v, mask=ok, other=0.0)
            total += values * tl.load(w + row * K * K + i * K + j)
    tl.store(y + row * size_out + at, total, mask=inside)


@triton.jit
def _input_gradient(
    g,
    w,
    dx,
    size_in,
    H: tl.constexpr,
    W: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    K: tl.constexpr,
    S: tl.constexpr,
    PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size_in
    sample, place = at // (H * W), at % (H * W)
    h, v = place // W, place % W
    size_out = (size_in // (H * W)) * P * Q
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(K):
        for j in tl.static_range(K):
            up, left = h + PAD - i, v + PAD - j
            p, q = quotient(up, S), quotient(left, S)
            ok = inside & (up >= 0) & (left >= 0) & (p * S == up) & (q * S == left) & (p < P) & (q < Q)
            values = tl.load(g + row * size_out + sample * P * Q + p * Q + q, mask=ok, other=0.0)
            total += values * tl.load(w + row * K * K + i * K + j)
    tl.store(dx + row * size_in + at, total, mask=inside)


@triton.jit
def _filter_gradient(
    x, g, dw, rows, size_out, part, H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr,
    K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    tap = tl.arange(0, TAPS)
    i = quotient(tap, K)
    j = tap - i * K
    size_in = (size_out // (P * Q)) * H * W
    total = tl.zeros((TAPS, BLOCK), tl.float32)
    end = tl.minimum((piece + 1) * part, size_out)
    for start in range(piece * part, end, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < end
        sample, place = at // (P * Q), at % (P * Q)
        h = ((place // Q) * S - PAD)[None, :] + i[:, None]
        v = ((place % Q) * S - PAD)[None, :] + j[:, None]
        ok = inside[None, :] & (tap < K * K)[:, None] & (h >= 0) & (h < H) & (v >= 0) & (v < W)
        values = tl.load(x + row * size_in + (sample * H * W)[None, :] + h * W + v, mask=ok, other=0.0)
        total += values * tl.load(g + row * size_out + at, mask=inside, other=0.0)[None, :]
    tl.store(dw + (piece * rows + row) * K * K + tap, tl.sum(total, axis=1), mask=tap < K * K)


class TritonDepthwise(torch.autograd.Function):
    """Depthwise convolution with a square filter, one stride and one padding for both axes."""

    @classmethod
    def on(cls, values: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        """(n, C, B, H, W) to (n, C, B, P, Q)."""
        outcome: Tensor = cls.apply(values, weight, stride, padding)  # type: ignore[no-untyped-call]
        return outcome

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        """(n, C, B, H, W) to (n, C, B, P, Q)."""
        clients, channels, batch, height, width = values.shape
        kernel = weight.shape[-1]
        high = (height + 2 * padding - kernel) // stride + 1
        wide = (width + 2 * padding - kernel) // stride + 1
        outcome = values.new_empty(clients, channels, batch, high, wide)
        size = batch * high * wide
        block = _block(size)
        _forward[(clients * channels, triton.cdiv(size, block))](
            values, weight, outcome, size, height, width, high, wide, K=kernel, S=stride, PAD=padding, BLOCK=block
        )
        ctx.save_for_backward(values, weight)
        ctx.geometry = (stride, padding, high, wide)
        return outcome

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Of the inputs and of the filters."""
        values, weight = ctx.saved_tensors
        stride, padding, high, wide = ctx.geometry
        clients, channels, batch, height, width = values.shape
        gradient = gradients[0].contiguous()
        kernel = weight.shape[-1]
        rows, size_in, size_out = clients * channels, batch * height * width, batch * high * wide
        of_values = torch.empty_like(values)
        geometry = {"K": kernel, "S": stride, "PAD": padding}
        block = _block(size_in)
        _input_gradient[(rows, triton.cdiv(size_in, block))](
            gradient, weight, of_values, size_in, height, width, high, wide, BLOCK=block, **geometry
        )
        taps = triton.next_power_of_2(kernel * kernel)
        block = max(16, min(_block(size_out), 4096 // taps))
        pieces, part = _pieces(size_out, block, rows)
        of_weight = weight.new_empty(pieces, *weight.shape)
        _filter_gradient[(rows, pieces)](
            values, gradient, of_weight, rows, size_out, part, height, width, high, wide,
            TAPS=taps, BLOCK=block, **geometry
        )  # fmt: skip
        return of_values, of_weight[0] if pieces == 1 else of_weight.sum(0), None, None


def _pieces(size: int, block: int, rows: int) -> tuple[int, int]:
    """Into how many parts a long row is cut, and their length: so many that the device has work, and no more."""
    pieces = max(1, min(8, size // (4 * block), 4096 // rows))
    part = triton.cdiv(triton.cdiv(size, pieces), block) * block
    return triton.cdiv(size, part), part


def _block(size: int) -> int:
    """No wider than a row, which for the last maps of a network is short."""
    return int(min(BLOCK, triton.next_power_of_2(size)))
