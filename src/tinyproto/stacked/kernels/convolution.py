"""Kernels of dense and depthwise convolutions of a stack: forward, gradient of the inputs, gradient of the filters.

Map sizes are known when a kernel is compiled, so that a division by a width of 8 is a shift.

A dense convolution is a sum of matrix products, one for each tap of the filter: forward multiplies a tap's filters
(F, C) by the maps (C, L), shifted by the tap. The gradient of the inputs multiplies the filters (C, F) by the gradient's
maps (F, L). The gradient of a tap's filters multiplies gradients (F, L) by shifted maps (C, L) transposed, in parts of
L that are summed in a fixed order. L counts positions of all samples of a client.

(client, channel) are the rows of the stack, and a row is B·H·W values in order. A program of a depthwise convolution
handles so many values, of one row or of several. Maps are small (1 to 32 pixels wide), so a filter's k·k taps are
unrolled; taps that only meet padding are left out.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinyproto.stacked.capture import current_branch, forked
from tinyproto.stacked.kernels import launch

TILE = 512
"""Values that a program of a depthwise convolution handles."""


@triton.jit
def quotient(value, divisor: tl.constexpr):
    """Return value // divisor for values that are not negative, computed in floats.

    Where sizes are compile-time constants, Triton 3.6 assumes that integer quotients and remainders, shifted or spread
    over a tile, are equal for more neighbours than they are, and merges their loads and masks.
    """
    if divisor == 1:
        return value
    return ((value.to(tl.float32) + 0.5) * (1.0 / divisor)).to(tl.int32)


@triton.jit
def _placed(at, H: tl.constexpr, W: tl.constexpr):
    """Return sample, height and width of positions."""
    sample = quotient(at, H * W)
    place = at - sample * (H * W)
    h = quotient(place, W)
    return sample, h, place - h * W


@triton.jit
def _product(
    x, w, y, samples, M: tl.constexpr, N: tl.constexpr, WM: tl.constexpr, WN: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, K: tl.constexpr, S: tl.constexpr,
    PAD: tl.constexpr, BACK: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr,
    BL: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Sum products of filters (M, N) and maps (N, L) over taps, for maps of H×W to maps of P×Q.

    Backwards, positions h with equal (h + PAD) mod S meet the same taps, every S-th of a filter (STEP), so a program
    handles only such positions.
    """
    client = tl.program_id(2).to(tl.int64)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    TALL: tl.constexpr = (P + STEP - 1) // STEP
    LONG: tl.constexpr = (Q + STEP - 1) // STEP
    first_i, first_j = (tl.program_id(0) % (STEP * STEP)) // STEP, tl.program_id(0) % STEP
    at = (tl.program_id(0) // (STEP * STEP)) * BL + tl.arange(0, BL)
    sample, p, q = _placed(at, TALL, LONG)
    if BACK:
        up, left = (first_i + PAD * (S - 1)) % S, (first_j + PAD * (S - 1)) % S
        top, start = p + (up + PAD - first_i) // S, q + (left + PAD - first_j) // S
        p, q = p * S + up, q * S + left
    else:
        top, start = p * S - PAD, q * S - PAD
    inside = (sample < samples) & (p < P) & (q < Q)
    x += client * N * samples * (H * W)
    w += client * M * N * K * K
    tall, wide = (K - first_i + STEP - 1) // STEP, (K - first_j + STEP - 1) // STEP
    BLOCKS: tl.constexpr = (N + BN - 1) // BN
    total = tl.zeros((BM, BL), tl.float32)
    for step in range(0, tall * wide * BLOCKS):
        tap = step // BLOCKS
        i = tap // wide
        j = tap - i * wide
        n = (step - tap * BLOCKS) * BN + tl.arange(0, BN)
        if BACK:
            h, v = top - i, start - j
        else:
            h, v = top + i, start + j
        ok = inside & (h >= 0) & (h < H) & (v >= 0) & (v < W)
        maps = tl.load(  # positions along the first axis, which neighbouring threads then read
            x + (sample * (H * W) + h * W + v)[:, None] + n[None, :] * (samples * (H * W)),
            mask=ok[:, None] & (n < N)[None, :], other=0.0,
        )  # fmt: skip
        place = ((first_i + i * STEP) * K + first_j + j * STEP) * (M * N)
        filters = tl.load(
            w + place + m[:, None] * WM + n[None, :] * WN, mask=(m < M)[:, None] & (n < N)[None, :], other=0.0
        )
        total = tl.dot(filters, tl.trans(maps), total, input_precision=PRECISION)
    y += client * M * samples * (P * Q)
    tl.store(
        y + m[:, None] * (samples * (P * Q)) + (sample * (P * Q) + p * Q + q)[None, :], total,
        mask=(m < M)[:, None] & inside[None, :],
    )  # fmt: skip


@triton.jit(do_not_specialize=["clients"])
def _filter_gradient(
    x, g, dw, samples, clients, part, C: tl.constexpr, F: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    P: tl.constexpr, Q: tl.constexpr, K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr,
    BF: tl.constexpr, BC: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    tap = tl.program_id(0) % (K * K)
    i, j = tap // K - PAD, tap % K - PAD
    c = (tl.program_id(0) // (K * K)) * BC + tl.arange(0, BC)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    piece, client = tl.program_id(2) // clients, (tl.program_id(2) % clients).to(tl.int64)
    x += client * C * samples * (H * W)
    g += client * F * samples * (P * Q)
    total = tl.zeros((BF, BC), tl.float32)
    end = tl.minimum((piece + 1) * part, samples * (P * Q))
    for start in range(piece * part, end, BL):
        at = start + tl.arange(0, BL)
        sample, p, q = _placed(at, P, Q)
        h, v = p * S + i, q * S + j
        ok = (at < end) & (h >= 0) & (h < H) & (v >= 0) & (v < W)
        maps = tl.load(
            x + (sample * (H * W) + h * W + v)[:, None] + c[None, :] * (samples * (H * W)),
            mask=ok[:, None] & (c < C)[None, :], other=0.0,
        )  # fmt: skip
        gradients = tl.load(
            g + f[:, None] * (samples * (P * Q)) + at[None, :], mask=(f < F)[:, None] & (at < end)[None, :], other=0.0
        )
        total = tl.dot(gradients, maps, total, input_precision=PRECISION)
    dw += (piece * clients + client) * (F * C * K * K) + tap
    tl.store(dw + f[:, None] * (C * K * K) + c[None, :] * (K * K), total, mask=(f < F)[:, None] & (c < C)[None, :])


class TritonConvolution(torch.autograd.Function):
    """Dense convolution with a square filter, one stride and one padding for both axes."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        """Convolve (n, C, B, H, W) with (n, F, C, k, k) to (n, F, B, P, Q)."""
        clients, channels, batch, height, width = values.shape
        outputs, kernel = weight.shape[1], weight.shape[-1]
        high, wide = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
        outcome = values.new_empty(clients, outputs, batch, high, wide)
        by_tap = weight.permute(0, 3, 4, 1, 2).contiguous()  # (n, k, k, F, C): a tap's filters side by side
        ctx.options = {"K": kernel, "S": stride, "PAD": padding, "PRECISION": _precision()}
        size = batch * high * wide
        tile = _tile(outputs, channels, size, clients)
        launch(_product, (triton.cdiv(size, tile["BL"]), triton.cdiv(outputs, tile["BM"]), clients))(
            values, by_tap, outcome, batch, M=outputs, N=channels, WM=channels, WN=1, H=height, W=width, P=high, Q=wide,
            BACK=False, STEP=1, **tile, **ctx.options
        )  # fmt: skip
        ctx.save_for_backward(values, by_tap)
        ctx.branch = current_branch()
        return outcome

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        """Return the gradients of the inputs, if needed, and of the filters."""
        values, by_tap = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        clients, channels, batch, height, width = values.shape
        outputs, (high, wide) = gradient.shape[1], gradient.shape[3:]
        stride = ctx.options["S"]
        with forked(ctx.branch, gradient, values):
            of_weight = _of_filters(values, gradient, ctx.options)
        if not ctx.needs_input_grad[0]:
            return None, of_weight, None, None
        of_values = torch.empty_like(values)
        size = batch * triton.cdiv(height, stride) * triton.cdiv(width, stride)  # positions that meet the same taps
        tile = _tile(channels, outputs, size * stride**2, clients)
        grid = (triton.cdiv(size, tile["BL"]) * stride**2, triton.cdiv(channels, tile["BM"]), clients)
        launch(_product, grid)(
            gradient, by_tap, of_values, batch, M=channels, N=outputs, WM=1, WN=channels, H=high, W=wide, P=height,
            Q=width, BACK=True, STEP=stride, **tile, **ctx.options
        )  # fmt: skip
        return of_values, of_weight, None, None


def _of_filters(values: Tensor, gradient: Tensor, options: dict[str, Any]) -> Tensor:
    """Return the gradient of the filters, (n, F, C, k, k)."""
    clients, channels, batch, height, width = values.shape
    outputs, (high, wide), kernel = gradient.shape[1], gradient.shape[3:], options["K"]
    size = batch * high * wide
    tile = {"BF": 32 if outputs <= 32 else 64, "BC": 16 if channels <= 16 else 32, "BL": 64}
    grid = kernel**2 * triton.cdiv(channels, tile["BC"]), triton.cdiv(outputs, tile["BF"])
    pieces, part = _pieces(size, min(16, 528 // (clients * grid[0] * grid[1]), size // 256), tile["BL"])
    found = values.new_empty(pieces, clients, outputs, channels, kernel, kernel)
    launch(_filter_gradient, (*grid, clients * pieces))(
        values, gradient, found, batch, clients, part, C=channels, F=outputs, H=height, W=width, P=high, Q=wide,
        num_warps=4, num_stages=3, **tile, **options
    )  # fmt: skip
    return found[0] if pieces == 1 else found.sum(0)


def _precision() -> str:
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


def _tile(rows: int, depth: int, size: int, clients: int) -> dict[str, int]:
    """Return the tile of a program's product: large, unless most of the device would be idle."""
    programs = clients * triton.cdiv(rows, 64) * triton.cdiv(size, 64)
    row, columns, terms = (64, 64, 32) if rows >= 64 and programs >= 264 else (32, 32, 64)
    terms = min(terms, max(16, int(triton.next_power_of_2(depth))))
    return {"BM": row, "BL": columns, "BN": terms, "num_warps": 4, "num_stages": 3}


def _pieces(size: int, most: int, block: int) -> tuple[int, int]:
    """Return the number of parts of a long sum, at most `most`, and their length in whole blocks."""
    part = triton.cdiv(triton.cdiv(size, max(1, most)), block) * block
    return triton.cdiv(size, part), part


@triton.jit
def _row(size, LONG: tl.constexpr, TILE: tl.constexpr):
    """Return the row of this program's values, of `size` values each, and their places: one row only if LONG."""
    if LONG:
        return tl.program_id(0).to(tl.int64), tl.program_id(1) * TILE + tl.arange(0, TILE)
    else:
        start = tl.program_id(0).to(tl.int64) * TILE
        first = start // size
        at = (start - first * size).to(tl.int32) + tl.arange(0, TILE)
        row = at // size
        return first + row, at - row * size


@triton.jit
def _tap(w, tap: tl.constexpr, inside, LONG: tl.constexpr):
    """Return the filters' value at a tap, one for each row."""
    if LONG:
        return tl.load(w + tap)
    else:
        return tl.load(w + tap, mask=inside, other=0.0)


@triton.jit(do_not_specialize=["rows"])
def _depthwise_forward(
    x, w, y, rows, samples, H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    S: tl.constexpr, PAD: tl.constexpr, UP: tl.constexpr, DOWN: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    LONG: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row, at = _row(samples * (P * Q), LONG, TILE)
    inside = (row < rows) & (at < samples * (P * Q))
    sample, p, q = _placed(at, P, Q)
    p, q = p * S - PAD, q * S - PAD
    x += row * (samples * (H * W)) + (sample * (H * W) + p * W + q)
    w += row * (K * K)
    total = tl.zeros((TILE,), tl.float32)
    for i in tl.static_range(UP, DOWN):
        for j in tl.static_range(LEFT, RIGHT):
            ok = inside & (p + i >= 0) & (p + i < H) & (q + j >= 0) & (q + j < W)
            total += tl.load(x + (i * W + j), mask=ok, other=0.0) * _tap(w, i * K + j, inside, LONG)
    tl.store(y + row * (samples * (P * Q)) + at, total, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _depthwise_input_gradient(
    g, w, dx, rows, samples, H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    S: tl.constexpr, PAD: tl.constexpr, UP: tl.constexpr, DOWN: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    LONG: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row, at = _row(samples * (H * W), LONG, TILE)
    inside = (row < rows) & (at < samples * (H * W))
    sample, h, v = _placed(at, H, W)
    p, q = quotient(h + PAD, S), quotient(v + PAD, S)
    up, left = h + PAD - p * S, v + PAD - q * S  # a stride meets every S-th tap, beginning with this one
    g += row * (samples * (P * Q)) + (sample * (P * Q) + p * Q + q)
    w += row * (K * K)
    total = tl.zeros((TILE,), tl.float32)
    for i in tl.static_range(UP, DOWN):
        for j in tl.static_range(LEFT, RIGHT):
            ok = inside & (up == i % S) & (left == j % S)
            ok = ok & (p >= i // S) & (p < P + i // S) & (q >= j // S) & (q < Q + j // S)
            total += tl.load(g - (i // S * Q + j // S), mask=ok, other=0.0) * _tap(w, i * K + j, inside, LONG)
    tl.store(dx + row * (samples * (H * W)) + at, total, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _depthwise_filter_gradient(
    x, g, dw, rows, samples, H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    S: tl.constexpr, PAD: tl.constexpr, UP: tl.constexpr, DOWN: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    value = tl.arange(0, ROWS * BLOCK)
    of = quotient(value, BLOCK)
    row, at = tl.program_id(0).to(tl.int64) * ROWS + of, tl.program_id(1) * BLOCK + value - of * BLOCK
    inside = (row < rows) & (at < samples * (P * Q))
    sample, p, q = _placed(at, P, Q)
    p, q = p * S - PAD, q * S - PAD
    x += row * (samples * (H * W)) + (sample * (H * W) + p * W + q)
    gradient = tl.load(g + row * (samples * (P * Q)) + at, mask=inside, other=0.0)
    written = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    dw += (tl.program_id(1).to(tl.int64) * rows + written) * (K * K)
    for i in tl.static_range(K):
        for j in tl.static_range(K):
            total = tl.zeros((ROWS,), tl.float32)
            if i >= UP and i < DOWN and j >= LEFT and j < RIGHT:
                ok = inside & (p + i >= 0) & (p + i < H) & (q + j >= 0) & (q + j < W)
                products = tl.load(x + (i * W + j), mask=ok, other=0.0) * gradient
                total += tl.sum(tl.reshape(products, (ROWS, BLOCK)), 1)
            tl.store(dw + (i * K + j), total, mask=written < rows)


class TritonDepthwise(torch.autograd.Function):
    """Depthwise convolution with a square filter, one stride and one padding for both axes."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        """Convolve (n, C, B, H, W) with (n, C, k, k) to (n, C, B, P, Q)."""
        clients, channels, batch, height, width = values.shape
        kernel = weight.shape[-1]
        high, wide = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
        outcome = values.new_empty(clients, channels, batch, high, wide)
        up, down = _taps(height, high, kernel, stride, padding)
        left, right = _taps(width, wide, kernel, stride, padding)
        ctx.options = {
            "H": height, "W": width, "P": high, "Q": wide, "K": kernel, "S": stride, "PAD": padding, "UP": up,
            "DOWN": down, "LEFT": left, "RIGHT": right,
        }  # fmt: skip
        grid, tile = _grid(clients * channels, batch * high * wide)
        launch(_depthwise_forward, grid)(values, weight, outcome, clients * channels, batch, **ctx.options, **tile)
        ctx.save_for_backward(values, weight)
        ctx.branch = current_branch()
        return outcome

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return the gradients of the inputs and of the filters."""
        values, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        clients, channels, batch, height, width = values.shape
        rows = clients * channels
        with forked(ctx.branch, gradient, values):
            size = gradient[0, 0].numel()
            block = min(TILE, int(triton.next_power_of_2(size)))
            together, pieces = TILE // block, triton.cdiv(size, block)
            of_weight = weight.new_empty(pieces, *weight.shape)
            launch(_depthwise_filter_gradient, (triton.cdiv(rows, together), pieces))(
                values, gradient, of_weight, rows, batch, ROWS=together, BLOCK=block, **ctx.options
            )
            of_weight = of_weight[0] if pieces == 1 else of_weight.sum(0)
        of_values = torch.empty_like(values)
        grid, tile = _grid(rows, batch * height * width)
        launch(_depthwise_input_gradient, grid)(gradient, weight, of_values, rows, batch, **ctx.options, **tile)
        return of_values, of_weight, None, None


def _taps(side: int, out: int, kernel: int, stride: int, padding: int) -> tuple[int, int]:
    """Return the first tap of a filter that meets a map somewhere, and the one after the last: others meet padding."""
    return max(0, padding - (out - 1) * stride), min(kernel, side + padding)


def _grid(rows: int, size: int) -> tuple[tuple[int, int], dict[str, Any]]:
    """Return the number of programs, and their tile: of one row if rows are long, otherwise of several."""
    if size >= TILE:
        return (rows, triton.cdiv(size, TILE)), {"LONG": True, "TILE": TILE, "num_warps": 4}
    return (triton.cdiv(rows * size, TILE), 1), {"LONG": False, "TILE": TILE, "num_warps": 4}
