"""Kernels of dense and depthwise convolutions of a stack: forward, gradient of the inputs, gradient of the filters.

Map sizes are known when a kernel is compiled, so that a division by a width of 8 is a shift.

A dense convolution is matrix products of each client's filters with patches that are never written to memory. Forward
multiplies filters (F, K) by patches (K, L). K counts the taps of a filter, channel by channel, and L the positions of
all samples. Backward goes tap by tap: the gradient of the inputs is a sum over taps of filters (C, F) times gradients
(F, L). The gradient of a tap's filters multiplies gradients (F, L) by maps (L, C), shifted by the tap, in parts of L
that are summed in a fixed order.

(client, channel) are the rows of the stack, and a row is B·H·W values in order. A program of a depthwise convolution
handles TILE values, of one row or of several. Maps are small (1 to 32 pixels wide), so a filter's k·k taps are
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

TILE = 256
"""Values that a program of a depthwise convolution handles; with a stride, whose loads are further apart, fewer."""


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
    g, w, dx, samples, C: tl.constexpr, F: tl.constexpr, H: tl.constexpr, W: tl.constexpr, P: tl.constexpr,
    Q: tl.constexpr, K: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr, BC: tl.constexpr,
    BL: tl.constexpr, BF: tl.constexpr,
):  # fmt: skip
    """Sum products of filters (C, F) and gradients (F, L) over taps; the filters are (k, k, F, C).

    Positions h with equal (h + PAD) mod S meet the same taps, every S-th of a filter. So a program handles only such.
    """
    client = tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    first_i, first_j = (tl.program_id(0) % (S * S)) // S, tl.program_id(0) % S
    up, left = (first_i + PAD * (S - 1)) % S, (first_j + PAD * (S - 1)) % S
    at = (tl.program_id(0) // (S * S)) * BL + tl.arange(0, BL)
    sample, tall, wide = _placed(at, (H + S - 1) // S, (W + S - 1) // S)
    h, v = tall * S + up, wide * S + left
    top, start = tall + (up + PAD - first_i) // S, wide + (left + PAD - first_j) // S
    inside = (sample < samples) & (h < H) & (v < W)
    g += client * F * samples * (P * Q)
    w += client * C * F * K * K
    down, across = (K - first_i + S - 1) // S, (K - first_j + S - 1) // S
    BLOCKS: tl.constexpr = (F + BF - 1) // BF
    total = tl.zeros((BC, BL), tl.float32)
    for step in range(0, down * across * BLOCKS):
        tap = step // BLOCKS
        i = tap // across
        j = tap - i * across
        f = (step - tap * BLOCKS) * BF + tl.arange(0, BF)
        p, q = top - i, start - j
        ok = inside & (p >= 0) & (p < P) & (q >= 0) & (q < Q)
        gradients = tl.load(  # positions along the first axis, which neighbouring threads then read
            g + (sample * (P * Q) + p * Q + q)[:, None] + f[None, :] * (samples * (P * Q)),
            mask=ok[:, None] & (f < F)[None, :], other=0.0,
        )  # fmt: skip
        place = ((first_i + i * S) * K + first_j + j * S) * (F * C)
        filters = tl.load(w + place + c[:, None] + f[None, :] * C, mask=(c < C)[:, None] & (f < F)[None, :], other=0.0)
        total = tl.dot(filters, tl.trans(gradients), total, input_precision=PRECISION)
    dx += client * C * samples * (H * W)
    tl.store(
        dx + c[:, None] * (samples * (H * W)) + (sample * (H * W) + h * W + v)[None, :], total,
        mask=(c < C)[:, None] & inside[None, :],
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
        size = batch * high * wide
        ctx.options = {"K": kernel, "S": stride, "PAD": padding, "PRECISION": _precision()}
        tile = _tile(outputs, size, clients)
        launch(_forward, (triton.cdiv(size, tile[1]), triton.cdiv(outputs, tile[0]), clients))(
            values, weight, outcome, channels, outputs, size, height, width, high, wide,
            BO=tile[0], BL=tile[1], BK=tile[2], num_warps=4, num_stages=3, **ctx.options
        )  # fmt: skip
        ctx.save_for_backward(values, weight)
        ctx.branch = current_branch()
        return outcome

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        """Return the gradients of the inputs, if needed, and of the filters."""
        values, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        with forked(ctx.branch, gradient, values):
            of_weight = _of_filters(values, gradient, ctx.options)
        if not ctx.needs_input_grad[0]:
            return None, of_weight, None, None
        clients, channels, batch, height, width = values.shape
        outputs, (high, wide), stride = gradient.shape[1], gradient.shape[3:], ctx.options["S"]
        of_values = torch.empty_like(values)
        by_tap = weight.permute(0, 3, 4, 1, 2).contiguous()  # (n, k, k, F, C): a tap's filters side by side
        size = batch * triton.cdiv(height, stride) * triton.cdiv(width, stride)  # positions that meet the same taps
        launch(_input_gradient, (triton.cdiv(size, 64) * stride**2, triton.cdiv(channels, 32), clients))(
            gradient, by_tap, of_values, batch, C=channels, F=outputs, H=height, W=width, P=high, Q=wide,
            BC=32, BL=64, BF=32, num_warps=4, num_stages=3, **ctx.options
        )  # fmt: skip
        return of_values, of_weight, None, None


def _of_filters(values: Tensor, gradient: Tensor, options: dict[str, Any]) -> Tensor:
    """Return the gradient of the filters, (n, F, C, k, k)."""
    clients, channels, batch, height, width = values.shape
    outputs, (high, wide), kernel = gradient.shape[1], gradient.shape[3:], options["K"]
    size = batch * high * wide
    tile = {"BF": 64, "BC": 32, "BL": 64} if channels > 16 else {"BF": 32, "BC": 16, "BL": 128}
    grid = kernel**2 * triton.cdiv(channels, tile["BC"]), triton.cdiv(outputs, tile["BF"])
    pieces, part = _pieces(size, min(16, 264 // (clients * grid[0] * grid[1]), size // 256), tile["BL"])
    found = values.new_empty(pieces, clients, outputs, channels, kernel, kernel)
    launch(_filter_gradient, (*grid, clients * pieces))(
        values, gradient, found, batch, clients, part, C=channels, F=outputs, H=height, W=width, P=high, Q=wide,
        num_warps=4 if channels > 16 else 2, num_stages=3, **tile, **options
    )  # fmt: skip
    return found[0] if pieces == 1 else found.sum(0)


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
        grid, tile = _grid(clients * channels, batch * high * wide, TILE if stride == 1 else TILE // 2)
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
                values, gradient, of_weight, rows, batch, ROWS=together, BLOCK=block, num_warps=1, **ctx.options
            )
            of_weight = of_weight[0] if pieces == 1 else of_weight.sum(0)
        of_values = torch.empty_like(values)
        grid, tile = _grid(rows, batch * height * width)
        launch(_depthwise_input_gradient, grid)(gradient, weight, of_values, rows, batch, **ctx.options, **tile)
        return of_values, of_weight, None, None


def _taps(side: int, out: int, kernel: int, stride: int, padding: int) -> tuple[int, int]:
    """Return the first tap of a filter that meets a map somewhere, and the one after the last: others meet padding."""
    return max(0, padding - (out - 1) * stride), min(kernel, side + padding)


def _grid(rows: int, size: int, tile: int = TILE) -> tuple[tuple[int, int], dict[str, Any]]:
    """Return the number of programs, and their tile: of one row if rows are long, otherwise of several."""
    long = size >= tile
    grid = (rows, triton.cdiv(size, tile)) if long else (triton.cdiv(rows * size, tile), 1)
    return grid, {"LONG": long, "TILE": tile, "num_warps": 4}
