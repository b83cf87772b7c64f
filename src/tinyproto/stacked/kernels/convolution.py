"""Kernels of dense and depthwise convolutions of a stack: forward, gradient of the inputs, gradient of the filters.

Map sizes are known when a kernel is compiled, so that a division by a width of 8 is a shift.

A dense convolution is matrix products of each client's filters with patches that are never written to memory. K counts
the taps of a filter, channel by channel: `k = (c, i, j)`. Forward multiplies filters (F, K) by patches (K, L). The
gradient of the inputs multiplies filters (C, (o, i, j)) by patches of the gradient. The gradient of the filters
multiplies gradients (F, L) by patches (K, L) transposed, in parts of L that are summed in a fixed order.

A program of a depthwise convolution handles a block of positions of one channel of one client. (client, channel) are
the rows of the stack, and a row is B·H·W values in order. Maps are small (1 to 32 pixels wide), so a filter's k·k taps
are unrolled.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinyproto.stacked.capture import current_branch, forked
from tinyproto.stacked.kernels import launch

BLOCK = 512
"""Positions that a program of a depthwise convolution handles at most."""


@triton.jit
def quotient(value, divisor: tl.constexpr):
    """Return value // divisor for values that are not negative, computed in floats.

    Where sizes are compile-time constants, Triton 3.6 assumes that integer quotients and remainders, shifted or spread
    over a tile, are equal for more neighbours than they are, and merges their loads and masks.
    """
    return ((value.to(tl.float32) + 0.5) * (1.0 / divisor)).to(tl.int32)


@triton.jit
def _forward(
    x, w, y, C: tl.constexpr, F: tl.constexpr, size_out, H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr,
    K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr,
    BO: tl.constexpr, BL: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    out = tl.program_id(1) * BO + tl.arange(0, BO)
    at = tl.program_id(0) * BL + tl.arange(0, BL)
    taps = C * K * K
    sample, place = at // (P * Q), at % (P * Q)
    top, left = (place // Q) * S - PAD, (place % Q) * S - PAD
    size_in = (size_out // (P * Q)) * H * W
    x += client * C * size_in
    w += client * F * taps
    total = tl.zeros((BO, BL), tl.float32)
    for start in range(0, taps, BK):
        k = start + tl.arange(0, BK)
        channel = quotient(k, K * K)
        tap = k - channel * K * K
        i = quotient(tap, K)
        h, v = top[None, :] + i[:, None], left[None, :] + (tap - i * K)[:, None]
        ok = (k < taps)[:, None] & (at < size_out)[None, :] & (h >= 0) & (h < H) & (v >= 0) & (v < W)
        patches = tl.load(x + channel[:, None] * size_in + (sample * H * W)[None, :] + h * W + v, mask=ok, other=0.0)
        known = (out < F)[:, None] & (k < taps)[None, :]
        filters = tl.load(w + out[:, None] * taps + k[None, :], mask=known, other=0.0)
        total = tl.dot(filters, patches, total, input_precision=PRECISION)
    inside = (out < F)[:, None] & (at < size_out)[None, :]
    tl.store(y + client * F * size_out + out[:, None] * size_out + at[None, :], total, mask=inside)


@triton.jit
def _input_gradient(
    g, w, dx, C: tl.constexpr, F: tl.constexpr, size_in, H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr,
    K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr,
    BC: tl.constexpr, BL: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    at = tl.program_id(0) * BL + tl.arange(0, BL)
    sample, place = at // (H * W), at % (H * W)
    below, right = place // W + PAD, place % W + PAD
    size_out = (size_in // (H * W)) * P * Q
    g += client * F * size_out
    w += client * F * C * K * K
    total = tl.zeros((BC, BL), tl.float32)
    for start in range(0, F * K * K, BK):
        k = start + tl.arange(0, BK)
        out = quotient(k, K * K)
        tap = k - out * K * K
        i = quotient(tap, K)
        up, across = below[None, :] - i[:, None], right[None, :] - (tap - i * K)[:, None]
        p, q = quotient(up, S), quotient(across, S)
        ok = (out < F)[:, None] & (at < size_in)[None, :] & (up >= 0) & (across >= 0) & (p < P) & (q < Q)
        ok = ok & (p * S == up) & (q * S == across)
        patches = tl.load(g + out[:, None] * size_out + (sample * P * Q)[None, :] + p * Q + q, mask=ok, other=0.0)
        known = (channel < C)[:, None] & (out < F)[None, :]
        filters = tl.load(w + channel[:, None] * (F * K * K) + k[None, :], mask=known, other=0.0)
        total = tl.dot(filters, patches, total, input_precision=PRECISION)
    inside = (channel < C)[:, None] & (at < size_in)[None, :]
    tl.store(dx + client * C * size_in + channel[:, None] * size_in + at[None, :], total, mask=inside)


@triton.jit(do_not_specialize=["clients"])
def _filter_gradient(
    x, g, dw, C: tl.constexpr, F: tl.constexpr, size_out, H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, clients, part,
    K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr,
    BO: tl.constexpr, BK: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    piece, client = tl.program_id(2) // clients, (tl.program_id(2) % clients).to(tl.int64)
    out = tl.program_id(1) * BO + tl.arange(0, BO)
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    taps = C * K * K
    channel = quotient(k, K * K)
    tap = k - channel * K * K
    i = quotient(tap, K)
    size_in = (size_out // (P * Q)) * H * W
    x += client * C * size_in
    g += client * F * size_out
    total = tl.zeros((BO, BK), tl.float32)
    end = tl.minimum((piece + 1) * part, size_out)
    for start in range(piece * part, end, BL):
        at = start + tl.arange(0, BL)
        sample, place = at // (P * Q), at % (P * Q)
        h = ((place // Q) * S - PAD)[:, None] + i[None, :]
        v = ((place % Q) * S - PAD)[:, None] + (tap - i * K)[None, :]
        ok = (at < end)[:, None] & (k < taps)[None, :] & (h >= 0) & (h < H) & (v >= 0) & (v < W)
        patches = tl.load(x + channel[None, :] * size_in + (sample * H * W)[:, None] + h * W + v, mask=ok, other=0.0)
        known = (out < F)[:, None] & (at < end)[None, :]
        gradients = tl.load(g + out[:, None] * size_out + at[None, :], mask=known, other=0.0)
        total = tl.dot(gradients, patches, total, input_precision=PRECISION)
    inside = (out < F)[:, None] & (k < taps)[None, :]
    tl.store(dw + (piece * clients + client) * F * taps + out[:, None] * taps + k[None, :], total, mask=inside)


class TritonConvolution(torch.autograd.Function):
    """Dense convolution with a square filter, one stride and one padding for both axes."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        """Convolve (n, C, B, H, W) with (n, F, C, k, k) to (n, F, B, P, Q)."""
        clients, channels, batch, height, width = values.shape
        outputs, kernel = weight.shape[1], weight.shape[-1]
        high, wide = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
        outcome = values.new_empty(clients, outputs, batch, high, wide)
        size = batch * high * wide
        options = {"K": kernel, "S": stride, "PAD": padding, "PRECISION": _precision()}
        tile = _tile(outputs, size, clients)
        launch(_forward, (triton.cdiv(size, tile[1]), triton.cdiv(outputs, tile[0]), clients))(
            values, weight, outcome, channels, outputs, size, height, width, high, wide,
            BO=tile[0], BL=tile[1], BK=tile[2], num_warps=4, num_stages=3, **options
        )  # fmt: skip
        ctx.save_for_backward(values, weight)
        ctx.branch = current_branch()
        ctx.geometry = (high, wide, options)
        return outcome

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        """Return the gradients of the inputs, if needed, and of the filters."""
        values, weight = ctx.saved_tensors
        high, wide, options = ctx.geometry
        clients, channels, batch, height, width = values.shape
        outputs, kernel = weight.shape[1], weight.shape[-1]
        gradient = gradients[0].contiguous()
        size, taps = batch * high * wide, channels * kernel * kernel
        programs = clients * triton.cdiv(outputs, 32) * triton.cdiv(taps, 64)
        pieces, part = _pieces(size, min(16, 264 // programs, size // 256), 32)
        with forked(ctx.branch, gradient, values):
            of_weight = weight.new_empty(pieces, *weight.shape)
            launch(_filter_gradient, (triton.cdiv(taps, 64), triton.cdiv(outputs, 32), clients * pieces))(
                values, gradient, of_weight, channels, outputs, size, height, width, high, wide, clients, part,
                BO=32, BK=64, BL=32, num_warps=4, num_stages=3, **options
            )  # fmt: skip
            of_weight = of_weight[0] if pieces == 1 else of_weight.sum(0)
        of_values = None
        if ctx.needs_input_grad[0]:
            of_values = torch.empty_like(values)
            size = batch * height * width
            tile = _tile(channels, size, clients)
            by_channel = weight.transpose(1, 2).contiguous()  # so that a program reads its filters contiguously
            launch(_input_gradient, (triton.cdiv(size, tile[1]), triton.cdiv(channels, tile[0]), clients))(
                gradient, by_channel, of_values, channels, outputs, size, height, width, high, wide,
                BC=tile[0], BL=tile[1], BK=tile[2], num_warps=4, num_stages=3, **options
            )  # fmt: skip
        return of_values, of_weight, None, None


def _precision() -> str:
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


def _tile(rows: int, size: int, clients: int) -> tuple[int, int, int]:
    """Return rows, columns and depth of a program's product: large, unless most of the device would be idle."""
    programs = clients * triton.cdiv(rows, 64) * triton.cdiv(size, 64)
    return (64, 64, 32) if rows >= 64 and programs >= 264 else (32, 32, 64)


def _pieces(size: int, most: int, block: int) -> tuple[int, int]:
    """Return the number of parts of a long sum, at most `most`, and their length in whole blocks."""
    part = triton.cdiv(triton.cdiv(size, max(1, most)), block) * block
    return triton.cdiv(size, part), part


@triton.jit
def _depthwise_forward(
    x, w, y, size_out, H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr,
    K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
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
def _depthwise_input_gradient(
    g, w, dx, size_in, H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr,
    K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
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


@triton.jit(do_not_specialize=["rows"])
def _depthwise_filter_gradient(
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

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        """Convolve (n, C, B, H, W) with (n, C, k, k) to (n, C, B, P, Q)."""
        clients, channels, batch, height, width = values.shape
        kernel = weight.shape[-1]
        high = (height + 2 * padding - kernel) // stride + 1
        wide = (width + 2 * padding - kernel) // stride + 1
        outcome = values.new_empty(clients, channels, batch, high, wide)
        size = batch * high * wide
        block = _block(size)
        launch(_depthwise_forward, (clients * channels, triton.cdiv(size, block)))(
            values, weight, outcome, size, height, width, high, wide, K=kernel, S=stride, PAD=padding, BLOCK=block
        )
        ctx.save_for_backward(values, weight)
        ctx.branch = current_branch()
        ctx.geometry = (stride, padding, high, wide)
        return outcome

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return the gradients of the inputs and of the filters."""
        values, weight = ctx.saved_tensors
        stride, padding, high, wide = ctx.geometry
        clients, channels, batch, height, width = values.shape
        gradient = gradients[0].contiguous()
        kernel = weight.shape[-1]
        rows, size_in, size_out = clients * channels, batch * height * width, batch * high * wide
        geometry = {"K": kernel, "S": stride, "PAD": padding}
        taps = triton.next_power_of_2(kernel * kernel)
        block = max(16, min(_block(size_out), 4096 // taps))
        pieces, part = _pieces(size_out, min(8, size_out // (4 * block), 4096 // rows), block)
        with forked(ctx.branch, gradient, values):
            of_weight = weight.new_empty(pieces, *weight.shape)
            launch(_depthwise_filter_gradient, (rows, pieces))(
                values, gradient, of_weight, rows, size_out, part, height, width, high, wide,
                TAPS=taps, BLOCK=block, **geometry
            )  # fmt: skip
            of_weight = of_weight[0] if pieces == 1 else of_weight.sum(0)
        of_values = torch.empty_like(values)
        block = _block(size_in)
        launch(_depthwise_input_gradient, (rows, triton.cdiv(size_in, block)))(
            gradient, weight, of_values, size_in, height, width, high, wide, BLOCK=block, **geometry
        )
        return of_values, of_weight, None, None


def _block(size: int) -> int:
    """Return a block no wider than a row, which is short for the last maps of a network."""
    return int(min(BLOCK, triton.next_power_of_2(size)))
