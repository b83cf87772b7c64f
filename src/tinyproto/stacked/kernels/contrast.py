"""The server's fit of trainable prototypes: many epochs in one kernel.

A fit is thousands of steps of a very small network. As separate kernels, a step's time would be the number of launches.
So as many programs as fit stay for all steps, and each takes its share of each of their five parts. Between two parts
all programs wait for each other. The launch is cooperative: the device starts all programs or none.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinyproto.core.task import Batch, State

CLASSES_AT_ONCE = 16
COLUMNS = 16
"""Rows and columns of a tile of a product that has a row for each class."""
FILTERS = (32, 64)
"""Rows and columns of a tile of a weight's gradient."""
SAMPLES = 32
"""Uploads of a batch that a program compares with prototypes at once."""
FINISHED = 1
"""Uploads whose softmax a program computes at once."""
WARPS = 4
"""Warps of a program; each sums a slice of a product's terms."""
PER_MULTIPROCESSOR = 2
"""Programs that fit on a multiprocessor, for all from compute capability 8.0 on: 65536 registers, at most 256 a thread."""
SLICE = 64
"""Most terms of such a slice that are loaded at once."""
PATIENCE = tl.constexpr(2**24)
"""Looks of a program that waits for the others, about ten seconds. Only a device that broke its promise needs them."""
STALLED = tl.constexpr(2**30)
"""More arrivals than a launch has: those who wait go on, and the losses are NaN."""
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
"""Triton's interpreter knows no PTX."""


@triton.jit
def _arrive(arrived):
    """Let the others see what this program wrote, and count it as arrived."""
    tl.debug_barrier()
    tl.atomic_add(arrived, 1, sem="release", scope="gpu")


@triton.jit
def _wait(arrived, target):
    """Wait until all programs have arrived, and see what they wrote; after too long, let all pass from now on.

    In PTX only one thread looks, and each look acquires: a fifth of the time that Triton's own atomics take.
    """
    if INTERPRETED:
        tries = 0
        while (tl.load(arrived) < target) & (tries < PATIENCE):
            tries += 1
        if tl.load(arrived) < target:
            tl.atomic_max(arrived, STALLED)
    else:
        tl.inline_asm_elementwise(
            """
            {
            .reg .pred other, again, left;
            .reg .b32 thread, seen, looks;
            mov.u32 thread, %tid.x;
            setp.ne.u32 other, thread, 0;
            mov.u32 seen, $2;
            mov.u32 looks, $3;
            @other bra DONE;
            LOOK:
            ld.acquire.gpu.global.u32 seen, [$1];
            sub.u32 looks, looks, 1;
            setp.lt.s32 again, seen, $2;
            setp.ne.u32 left, looks, 0;
            and.pred left, left, again;
            @left bra LOOK;
            @again red.max.gpu.global.s32 [$1], $4;
            DONE:
            mov.u32 $0, seen;
            }
            """,
            "=r,l,r,r,r", [arrived, target, PATIENCE, STALLED], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    tl.debug_barrier()


@triton.jit
def _zero():
    """Return a zero that the compiler does not know.

    What depends on it is computed where it is needed; otherwise registers would hold all offsets of an epoch.
    """
    zero = 0
    if not INTERPRETED:
        zero = tl.inline_asm_elementwise("mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
        zero = tl.multiple_of(zero, 64)
    return zero


@triton.jit
def _multiply(left, right, total):
    """Return total + left · right on tensor cores, from products of the operands' upper and lower halves.

    That is float32 up to its last bits. Triton's `tf32x3` also rounds the halves, which takes longer than the products.
    """
    upper_left = (left.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
    upper_right = (right.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
    total = tl.dot(left - upper_left, upper_right, total, input_precision="tf32")
    total = tl.dot(upper_left, right - upper_right, total, input_precision="tf32")
    return tl.dot(upper_left, upper_right, total, input_precision="tf32")


@triton.jit
def _terms(start, SLICES: tl.constexpr, SLICE: tl.constexpr):
    """Return the terms of a product from `start` on, (SLICES, SLICE)."""
    return start + _zero() + tl.arange(0, SLICES)[:, None] * SLICE + tl.arange(0, SLICE)[None, :]


@triton.jit
def _factor(
    b, start, n, L: tl.constexpr, N: tl.constexpr, BL: tl.constexpr, BN: tl.constexpr, SLICES: tl.constexpr,
    SLICE: tl.constexpr,
):  # fmt: skip
    """Return columns n of b (L, N), given by its strides, for the terms from `start` on."""
    at = _terms(start, SLICES, SLICE)
    inside = (at < L)[:, :, None] & (n < N)[None, None, :]
    return tl.load(b + at[:, :, None] * BL + n[None, None, :] * BN, mask=inside, other=0.0, cache_modifier=".cg")


@triton.jit
def _product(
    a, b, right, m, n, M, L: tl.constexpr, N: tl.constexpr, BL: tl.constexpr, BN: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, SLICES: tl.constexpr, SLICE: tl.constexpr,
):  # fmt: skip
    """Return rows m and columns n of the product of a (M, L) and b (L, N); `right` is the first factor of b.

    Each warp sums a slice of the terms, so many loads are in flight and no chain of products is long.
    """
    total = tl.zeros((SLICES, ROWS, COLS), tl.float32)
    for start in range(0, L, SLICES * SLICE):
        at = _terms(start, SLICES, SLICE)
        inside = (m < M)[None, :, None] & (at < L)[:, None, :]
        left = tl.load(a + m[None, :, None] * L + at[:, None, :], mask=inside, other=0.0, cache_modifier=".cg")
        total = _multiply(left, right, total)
        if L > SLICES * SLICE:
            right = _factor(b, start + SLICES * SLICE, n, L, N, BL, BN, SLICES, SLICE)
    return tl.sum(total, 0)


@triton.jit
def _descend(
    weight, moved, bias, a, b, tile, rate, K: tl.constexpr, D: tl.constexpr, CLASSES: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Write a tile of weight − rate · aᵀ b (D, D) to `moved`; with the first tile of a row its biases move, too."""
    across: tl.constexpr = (D + COLS - 1) // COLS
    m = (tile // across) * ROWS + tl.arange(0, ROWS)
    n = (tile % across) * COLS + tl.arange(0, COLS)
    place = m[:, None] * D + n[None, :]
    inside = (m < D)[:, None] & (n < D)[None, :]
    before = tl.load(weight + place, mask=inside, other=0.0, cache_modifier=".cg")
    slope = tl.zeros((ROWS, COLS), tl.float32)
    for start in range(0, K, DEPTH):
        k = start + _zero() + tl.arange(0, DEPTH)
        left = tl.load(
            a + k[None, :] * D + m[:, None], mask=(k < K)[None, :] & (m < D)[:, None], other=0.0, cache_modifier=".cg"
        )
        right = tl.load(
            b + k[:, None] * D + n[None, :], mask=(k < K)[:, None] & (n < D)[None, :], other=0.0, cache_modifier=".cg"
        )
        slope = _multiply(left, right, slope)
    tl.store(moved + place, before - rate * slope, mask=inside)
    if tile % across == 0:
        every = tl.arange(0, CLASSES)
        values = tl.load(
            a + every[:, None] * D + m[None, :], mask=(every < K)[:, None] & (m < D)[None, :], other=0.0,
            cache_modifier=".cg",
        )  # fmt: skip
        old = tl.load(bias + m, mask=m < D, other=0.0, cache_modifier=".cg")
        tl.store(bias + m, old - rate * tl.sum(values, 0), mask=m < D)


@triton.jit(do_not_specialize=["count", "epochs", "batch"])
def _epochs(
    uploads, labels, penalty, embedding, hidden_weight, hidden_bias, output_weight, output_bias, moved_embedding,
    moved_weight, hidden, old_hidden, learned, returned, returned_uploads, of_learned, of_hidden, squares, slopes,
    losses, logged, arrived, count, epochs, batch, rate,
    K: tl.constexpr, D: tl.constexpr, PROGRAMS: tl.constexpr, CLASSES: tl.constexpr, KB: tl.constexpr,
    COLUMNS: tl.constexpr, ACROSS: tl.constexpr, SAMPLES: tl.constexpr, FINISHED: tl.constexpr, FM: tl.constexpr,
    FN: tl.constexpr, SLICES: tl.constexpr, SLICE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Take a step of SGD for each batch of consecutive uploads; `logged` becomes NaN if programs wait in vain.

    Programs with the highest numbers have the fewest tiles of a product, so they begin with what else a part has. A
    weight that does not move is loaded before the wait for its other factor.
    """
    program = tl.program_id(0)
    last = PROGRAMS - 1 - program
    across: tl.constexpr = (D + COLUMNS - 1) // COLUMNS
    tiles: tl.constexpr = (K + KB - 1) // KB * across
    filters: tl.constexpr = ((D + FM - 1) // FM) * ((D + FN - 1) // FN)
    all_losses, left, waits = losses, count, 0
    for _ in range(epochs * ((count + batch - 1) // batch)):
        size = tl.minimum(batch, left)
        left = tl.where(left == size, count, left - size)

        # 1: hidden = relu(embedding · hidden_weightᵀ + hidden_bias)
        for tile in range(program + _zero(), tiles, PROGRAMS):
            k = (tile // across) * KB + tl.arange(0, KB)
            c = (tile % across) * COLUMNS + tl.arange(0, COLUMNS)
            bias = tl.load(hidden_bias + c, mask=c < D, other=0.0, cache_modifier=".cg")
            right = _factor(hidden_weight, 0, c, D, D, 1, D, SLICES, SLICE)
            z = _product(embedding, hidden_weight, right, k, c, K, D, D, 1, D, KB, COLUMNS, SLICES, SLICE)
            z += bias[None, :]
            inside = (k < K)[:, None] & (c < D)[None, :]
            tl.store(hidden + k[:, None] * D + c[None, :], tl.where(z < 0.0, 0.0, z), mask=inside)
        waits += PROGRAMS
        _arrive(arrived)
        _wait(arrived, waits)

        # 2: learned = hidden · output_weightᵀ + output_bias, and each tile's terms of the squared distances
        for tile in range(program + _zero(), tiles, PROGRAMS):
            k = (tile // across) * KB + tl.arange(0, KB)
            c = (tile % across) * COLUMNS + tl.arange(0, COLUMNS)
            bias = tl.load(output_bias + c, mask=c < D, other=0.0, cache_modifier=".cg")
            r = tl.arange(0, SAMPLES)
            upload = tl.load(
                uploads + r[:, None] * D + c[None, :], mask=(r < size)[:, None] & (c < D)[None, :], other=0.0
            )
            right = _factor(output_weight, 0, c, D, D, 1, D, SLICES, SLICE)
            z = _product(hidden, output_weight, right, k, c, K, D, D, 1, D, KB, COLUMNS, SLICES, SLICE)
            inside = (k < K)[:, None] & (c < D)[None, :]
            z = tl.where(inside, z + bias[None, :], 0.0)
            tl.store(learned + k[:, None] * D + c[None, :], z, mask=inside)
            for _ in range(0, size, SAMPLES):
                gap = z[None, :, :] - upload[:, None, :]
                tl.store(
                    squares + ((tile % across) * batch + r)[:, None] * CLASSES + k[None, :], tl.sum(gap * gap, 2),
                    mask=(r < size)[:, None] & (k < K)[None, :],
                )  # fmt: skip
                r += SAMPLES
                upload = tl.load(
                    uploads + r[:, None] * D + c[None, :], mask=(r < size)[:, None] & (c < D)[None, :], other=0.0
                )
        waits += PROGRAMS
        _arrive(arrived)
        # Before the others have arrived: returned_uploads = uploads · output_weight
        for tile in range(last + _zero(), ((size + KB - 1) // KB) * across, PROGRAMS):
            r = (tile // across) * KB + tl.arange(0, KB)
            c = (tile % across) * COLUMNS + tl.arange(0, COLUMNS)
            right = _factor(output_weight, 0, c, D, D, D, 1, SLICES, SLICE)
            z = _product(uploads, output_weight, right, r, c, size, D, D, D, 1, KB, COLUMNS, SLICES, SLICE)
            tl.store(returned_uploads + r[:, None] * D + c[None, :], z, mask=(r < size)[:, None] & (c < D)[None, :])
        ahead = (program + _zero()) % across * COLUMNS + tl.arange(0, COLUMNS)
        right = _factor(output_weight, 0, ahead, D, D, D, 1, SLICES, SLICE)
        _wait(arrived, waits)

        # 3: returned = learned · output_weight; each upload's loss, and its slopes along the distances over these
        for tile in range(program + _zero(), tiles, PROGRAMS):
            k = (tile // across) * KB + tl.arange(0, KB)
            c = (tile % across) * COLUMNS + tl.arange(0, COLUMNS)
            z = _product(learned, output_weight, right, k, c, K, D, D, D, 1, KB, COLUMNS, SLICES, SLICE)
            tl.store(returned + k[:, None] * D + c[None, :], z, mask=(k < K)[:, None] & (c < D)[None, :])
            if tile + PROGRAMS < tiles:
                ahead = (tile + PROGRAMS) % across * COLUMNS + tl.arange(0, COLUMNS)
                right = _factor(output_weight, 0, ahead, D, D, D, 1, SLICES, SLICE)
        for start in range((last + _zero()) * FINISHED, size, PROGRAMS * FINISHED):
            r = start + tl.arange(0, FINISHED)
            every, part = tl.arange(0, CLASSES), tl.arange(0, ACROSS)
            real = (r < size)[:, None] & (every < K)[None, :]
            label = tl.load(labels + r, mask=r < size, other=0)
            extra = tl.load(penalty + label[:, None] * K + every[None, :], mask=real, other=float("inf"))
            terms = tl.load(
                squares + (part[None, :, None] * batch + r[:, None, None]) * CLASSES + every[None, None, :],
                mask=real[:, None, :] & (part < across)[None, :, None], other=0.0, cache_modifier=".cg",
            )  # fmt: skip
            distance = tl.sqrt(tl.sum(terms, 1))  # (FINISHED, CLASSES)
            score = tl.where((r < size)[:, None], -(distance + extra), 0.0)
            top = tl.max(score, 1)
            powers = tl.exp(score - top[:, None])
            total = tl.sum(powers, 1)
            own = every[None, :] == label[:, None]
            loss = top + tl.log(total) - tl.sum(tl.where(own, score, 0.0), 1)
            tl.store(losses + r, loss, mask=r < size)
            pull = (tl.where(own, 1.0, 0.0) - powers / total[:, None]) / size
            slope = tl.where(distance > 0.0, pull / distance, 0.0)
            tl.store(slopes + r[:, None] * CLASSES + every[None, :], slope, mask=real)
        waits += PROGRAMS
        _arrive(arrived)
        _wait(arrived, waits)

        # 4: of_learned = slopesᵀ · (learned − uploads); of_hidden = of_learned · output_weight where the ReLU passed
        # something, from products that are there already
        for tile in range(program + _zero(), tiles, PROGRAMS):
            k = (tile // across) * KB + tl.arange(0, KB)
            c = (tile % across) * COLUMNS + tl.arange(0, COLUMNS)
            inside = (k < K)[:, None] & (c < D)[None, :]
            place = k[:, None] * D + c[None, :]
            mine = tl.load(learned + place, mask=inside, other=0.0, cache_modifier=".cg")
            my_return = tl.load(returned + place, mask=inside, other=0.0, cache_modifier=".cg")
            active = tl.load(hidden + place, mask=inside, other=0.0, cache_modifier=".cg")
            total = tl.zeros((KB,), tl.float32)
            theirs, their_return = tl.zeros((KB, COLUMNS), tl.float32), tl.zeros((KB, COLUMNS), tl.float32)
            for start in range(0, size, SAMPLES):
                r = start + tl.arange(0, SAMPLES)
                slope = tl.load(
                    slopes + r[None, :] * CLASSES + k[:, None], mask=(r < size)[None, :] & (k < K)[:, None],
                    other=0.0, cache_modifier=".cg",
                )  # fmt: skip
                both = (r < size)[:, None] & (c < D)[None, :]
                at = r[:, None] * D + c[None, :]
                total += tl.sum(slope, 1)
                theirs = _multiply(slope, tl.load(uploads + at, mask=both, other=0.0), theirs)
                their_return = _multiply(
                    slope, tl.load(returned_uploads + at, mask=both, other=0.0, cache_modifier=".cg"), their_return
                )
            tl.store(of_learned + place, mine * total[:, None] - theirs, mask=inside)
            z = my_return * total[:, None] - their_return
            tl.store(of_hidden + place, tl.where(active <= 0.0, 0.0, z), mask=inside)
        waits += PROGRAMS
        _arrive(arrived)
        ahead = (program + _zero()) % across * COLUMNS + tl.arange(0, COLUMNS)
        right = _factor(hidden_weight, 0, ahead, D, D, D, 1, SLICES, SLICE)
        _wait(arrived, waits)

        # 5: All weights move. The embedding's and the hidden layer's new values are kept apart: others still read the
        # old. Nobody reads the output layer's before the next wait but one, so it moves before the others have arrived.
        for tile in range(program + _zero(), tiles, PROGRAMS):
            k = (tile // across) * KB + tl.arange(0, KB)
            c = (tile % across) * COLUMNS + tl.arange(0, COLUMNS)
            inside = (k < K)[:, None] & (c < D)[None, :]
            place = k[:, None] * D + c[None, :]
            before = tl.load(embedding + place, mask=inside, other=0.0, cache_modifier=".cg")
            z = _product(of_hidden, hidden_weight, right, k, c, K, D, D, D, 1, KB, COLUMNS, SLICES, SLICE)
            tl.store(moved_embedding + place, before - rate * z, mask=inside)
            if tile + PROGRAMS < tiles:
                ahead = (tile + PROGRAMS) % across * COLUMNS + tl.arange(0, COLUMNS)
                right = _factor(hidden_weight, 0, ahead, D, D, D, 1, SLICES, SLICE)
        for tile in range(last + _zero(), filters, PROGRAMS):
            _descend(
                hidden_weight, moved_weight, hidden_bias, of_hidden, embedding, tile, rate, K, D, CLASSES, FM, FN, DEPTH
            )
        waits += PROGRAMS
        _arrive(arrived)
        for tile in range(last + _zero(), filters, PROGRAMS):
            _descend(
                output_weight, output_weight, output_bias, of_learned, hidden, tile, rate, K, D, CLASSES, FM, FN, DEPTH
            )
        _wait(arrived, waits)
        embedding, moved_embedding = moved_embedding, embedding
        hidden_weight, moved_weight = moved_weight, hidden_weight
        hidden, old_hidden = old_hidden, hidden
        uploads += size * D
        labels += size
        losses += size
    for epoch in range(program, epochs, PROGRAMS):
        total = tl.zeros((256,), tl.float64)
        for start in range(0, count, 256):
            at = start + tl.arange(0, 256)
            found = tl.load(all_losses + epoch * count + at, mask=at < count, other=0.0, cache_modifier=".cg")
            total += found.to(tl.float64)
        stalled = tl.load(arrived, volatile=True) >= STALLED
        tl.store(logged + epoch, tl.where(stalled, float("nan"), tl.load(logged + epoch) + tl.sum(total, 0)))


def epochs(
    weights: State, samples: Batch, batch: int, penalty: Tensor, logged: Tensor, rate: float, *, shared: bool = False
) -> None:
    """Take the steps of consecutive epochs, on `batch` uploads each; add their sums of losses to `logged`, float64.

    With `shared`, half of each multiprocessor is left to others: all programs start at once, so they wait for room.
    """
    embedding, hidden_weight = weights["embedding.weight"], weights["hidden.weight"]
    (classes, dim), count, device = embedding.shape, len(samples.labels) // len(logged), embedding.device
    tiles, programs = _tiles(classes, dim), _programs(device, shared)
    moved_embedding, hidden, old_hidden, learned, returned, of_learned, of_hidden = (
        torch.empty_like(embedding) for _ in range(7)
    )
    moved_weight, returned_uploads = torch.empty_like(hidden_weight), embedding.new_empty(batch, dim)
    squares = embedding.new_empty(triton.cdiv(dim, COLUMNS), batch, tiles["CLASSES"])
    slopes, losses = embedding.new_empty(batch, tiles["CLASSES"]), embedding.new_empty(len(samples.labels))
    arrived = torch.zeros(1, dtype=torch.int32, device=device)
    _epochs[(programs,)](
        samples.inputs, samples.labels, penalty, embedding, hidden_weight, weights["hidden.bias"],
        weights["output.weight"], weights["output.bias"], moved_embedding, moved_weight, hidden, old_hidden, learned,
        returned, returned_uploads, of_learned, of_hidden, squares, slopes, losses, logged, arrived, count, len(logged),
        batch, rate, PROGRAMS=programs, **tiles
    )  # fmt: skip
    if len(logged) * triton.cdiv(count, batch) % 2:
        embedding.copy_(moved_embedding)
        hidden_weight.copy_(moved_weight)


def _tiles(classes: int, dim: int) -> dict[str, Any]:
    """Return the sizes of tiles."""
    padded = max(16, triton.next_power_of_2(classes))
    return {
        "K": classes, "D": dim, "CLASSES": padded, "KB": CLASSES_AT_ONCE, "COLUMNS": COLUMNS,
        "ACROSS": triton.next_power_of_2(triton.cdiv(dim, COLUMNS)), "SAMPLES": SAMPLES, "FINISHED": FINISHED,
        "FM": FILTERS[0], "FN": FILTERS[1], "SLICES": WARPS,
        "SLICE": min(SLICE, max(16, triton.next_power_of_2(dim) // WARPS)), "DEPTH": padded if padded <= 128 else 64,
        "num_warps": WARPS, "num_stages": 1, "launch_cooperative_grid": True,
    }  # fmt: skip


def _programs(device: torch.device, shared: bool) -> int:
    if device.type != "cuda":
        return 1
    return (1 if shared else PER_MULTIPROCESSOR) * torch.cuda.get_device_properties(device).multi_processor_count
