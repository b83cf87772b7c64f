"""The server's fit of trainable prototypes as one kernel per epoch.

A fit is thousands of steps of a very small network. As separate kernels, a step's time would be the number of launches.
So one program per multiprocessor stays for a whole epoch and takes its share of each part of a step. Between two parts
all programs wait for each other. The launch is cooperative: the device starts all programs or none.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinyproto.core.task import Batch, State

COLUMNS = 16
"""Columns of a tile of a product that has a row for each class."""
FILTERS = (64, 32)
"""Rows and columns of a tile of a weight's gradient."""
DEPTH = 64
"""Terms of a product that are loaded at once."""
SAMPLES = 8
"""Uploads of a batch that a program compares with prototypes at once."""
WIDE = 512
"""Most columns of a prototype that a program holds when it computes distances."""
PATIENCE = tl.constexpr(2**24)
"""Looks of a program that waits for the others, about ten seconds. Only a device that broke its promise needs them."""
STALLED = tl.constexpr(2**30)
"""More arrivals than an epoch has: those who wait go on, and the epoch's loss is NaN."""


@triton.jit
def _wait(arrived, target):
    """Wait until all programs are here, and see what they wrote; after too long, let all pass from now on."""
    tl.debug_barrier()
    tl.atomic_add(arrived, 1, sem="release", scope="gpu")
    tries = 0
    while (tl.load(arrived, volatile=True) < target) & (tries < PATIENCE):
        tries += 1
    # This makes what the others wrote visible. Triton leaves it out unless its result is used.
    if tl.atomic_add(arrived, 0, sem="acquire", scope="gpu") < target:
        tl.atomic_max(arrived, STALLED)
    tl.debug_barrier()


@triton.jit
def _product(
    a, b, m, n, M: tl.constexpr, N: tl.constexpr, L: tl.constexpr,
    AM: tl.constexpr, AL: tl.constexpr, BL: tl.constexpr, BN: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return rows m and columns n of the product of a (M, L) and b (L, N), both given by their strides."""
    total = tl.zeros((ROWS, COLS), tl.float32)
    for start in range(0, L, DEPTH):
        at = start + tl.arange(0, DEPTH)
        left = tl.load(
            a + m[:, None] * AM + at[None, :] * AL, mask=(m < M)[:, None] & (at < L)[None, :], other=0.0,
            cache_modifier=".cg",
        )  # fmt: skip
        right = tl.load(
            b + at[:, None] * BL + n[None, :] * BN, mask=(at < L)[:, None] & (n < N)[None, :], other=0.0,
            cache_modifier=".cg",
        )  # fmt: skip
        total = tl.dot(left, right, total, input_precision=PRECISION)
    return total


@triton.jit
def _descend(
    weight, moved, bias, a, b, tile, rate, K: tl.constexpr, D: tl.constexpr, CLASSES: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write a tile of weight − rate · aᵀ b (D, D) to `moved`; with the first tile of a row its biases move, too."""
    across: tl.constexpr = (D + COLS - 1) // COLS
    m = (tile // across) * ROWS + tl.arange(0, ROWS)
    n = (tile % across) * COLS + tl.arange(0, COLS)
    slope = _product(a, b, m, n, D, D, K, 1, D, D, 1, ROWS, COLS, DEPTH, PRECISION)
    place = m[:, None] * D + n[None, :]
    inside = (m < D)[:, None] & (n < D)[None, :]
    before = tl.load(weight + place, mask=inside, other=0.0, cache_modifier=".cg")
    tl.store(moved + place, before - rate * slope, mask=inside)
    if tile % across == 0:
        k = tl.arange(0, CLASSES)
        values = tl.load(
            a + k[:, None] * D + m[None, :], mask=(k < K)[:, None] & (m < D)[None, :], other=0.0, cache_modifier=".cg"
        )
        start = tl.load(bias + m, mask=m < D, other=0.0, cache_modifier=".cg")
        tl.store(bias + m, start - rate * tl.sum(values, 0), mask=m < D)


@triton.jit(do_not_specialize=["count", "batch"])
def _epoch(
    uploads, labels, penalty, embedding, hidden_weight, hidden_bias, output_weight, output_bias,
    hidden, learned, of_learned, of_hidden, moved_embedding, moved_weight, distances, logged, arrived, count, batch, rate,
    K: tl.constexpr, D: tl.constexpr, PROGRAMS: tl.constexpr, CLASSES: tl.constexpr, KB: tl.constexpr,
    COLUMNS: tl.constexpr, WIDE: tl.constexpr, SAMPLES: tl.constexpr, FM: tl.constexpr, FN: tl.constexpr,
    DEPTH: tl.constexpr, CLASS_DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Take a step of SGD for each batch of consecutive uploads; `logged` becomes NaN if programs wait in vain."""
    program = tl.program_id(0)
    across: tl.constexpr = (D + COLUMNS - 1) // COLUMNS
    down: tl.constexpr = (K + KB - 1) // KB
    filters: tl.constexpr = ((D + FM - 1) // FM) * ((D + FN - 1) // FN)
    waits = 0
    for first in range(0, count, batch):
        size = tl.minimum(batch, count - first)

        # hidden = relu(embedding · hidden_weightᵀ + hidden_bias)
        for tile in range(program, down * across, PROGRAMS):
            k = (tile // across) * KB + tl.arange(0, KB)
            c = (tile % across) * COLUMNS + tl.arange(0, COLUMNS)
            inside = (k < K)[:, None] & (c < D)[None, :]
            z = _product(embedding, hidden_weight, k, c, K, D, D, D, 1, 1, D, KB, COLUMNS, DEPTH, PRECISION)
            z += tl.load(hidden_bias + c, mask=c < D, other=0.0, cache_modifier=".cg")[None, :]
            tl.store(hidden + k[:, None] * D + c[None, :], tl.where(z < 0.0, 0.0, z), mask=inside)
        waits += PROGRAMS
        _wait(arrived, waits)

        # learned = hidden · output_weightᵀ + output_bias
        for tile in range(program, down * across, PROGRAMS):
            k = (tile // across) * KB + tl.arange(0, KB)
            c = (tile % across) * COLUMNS + tl.arange(0, COLUMNS)
            inside = (k < K)[:, None] & (c < D)[None, :]
            z = _product(hidden, output_weight, k, c, K, D, D, D, 1, 1, D, KB, COLUMNS, DEPTH, PRECISION)
            z += tl.load(output_bias + c, mask=c < D, other=0.0, cache_modifier=".cg")[None, :]
            tl.store(learned + k[:, None] * D + c[None, :], z, mask=inside)
        waits += PROGRAMS
        _wait(arrived, waits)

        # The distance of each upload from each prototype.
        for tile in range(program, size * down, PROGRAMS):
            row = first + tile // down
            k = (tile % down) * KB + tl.arange(0, KB)
            squares = tl.zeros((KB,), tl.float32)
            for start in range(0, D, WIDE):
                c = start + tl.arange(0, WIDE)
                upload = tl.load(uploads + row.to(tl.int64) * D + c, mask=c < D, other=0.0)
                both = (k < K)[:, None] & (c < D)[None, :]
                values = tl.load(
                    learned + k[:, None] * D + c[None, :], mask=both, other=0.0, cache_modifier=".cg"
                )  # fmt: skip
                gap = tl.where(both, values - upload[None, :], 0.0)
                squares += tl.sum(gap * gap, 1)
            tl.store(distances + (row - first) * K + k, tl.sqrt(squares), mask=k < K)
        waits += PROGRAMS
        _wait(arrived, waits)

        # The loss of each upload, and its gradient of the prototypes.
        for tile in range(program, down * across, PROGRAMS):
            k = (tile // across) * KB + tl.arange(0, KB)
            c = (tile % across) * COLUMNS + tl.arange(0, COLUMNS)
            inside = (k < K)[:, None] & (c < D)[None, :]
            values = tl.load(learned + k[:, None] * D + c[None, :], mask=inside, other=0.0, cache_modifier=".cg")
            total = tl.zeros((KB, COLUMNS), tl.float32)
            every = tl.arange(0, CLASSES)
            for start in range(0, size, SAMPLES):
                r = start + tl.arange(0, SAMPLES)
                label = tl.load(labels + first + r, mask=r < size, other=0)
                real = (r < size)[:, None] & (every < K)[None, :]
                distance = tl.load(
                    distances + r[:, None] * K + every[None, :], mask=real, other=0.0, cache_modifier=".cg"
                )
                extra = tl.load(penalty + label[:, None] * K + every[None, :], mask=real, other=float("inf"))
                score = tl.where((r < size)[:, None], -(distance + extra), 0.0)
                top = tl.max(score, 1)
                sums = tl.sum(tl.exp(score - top[:, None]), 1)
                if tile == 0:
                    own = tl.sum(tl.where(every[None, :] == label[:, None], score, 0.0), 1)
                    loss = tl.where(r < size, top + tl.log(sums) - own, 0.0).to(tl.float64)
                    tl.store(logged, tl.load(logged, cache_modifier=".cg") + tl.sum(loss, 0))
                both = (r < size)[:, None] & (k < K)[None, :]
                near = tl.load(distances + r[:, None] * K + k[None, :], mask=both, other=0.0, cache_modifier=".cg")
                more = tl.load(penalty + label[:, None] * K + k[None, :], mask=both, other=float("inf"))
                share = tl.exp(-(near + more) - top[:, None]) / sums[:, None]
                pull = (tl.where(k[None, :] == label[:, None], 1.0, 0.0) - share) / size
                slope = tl.where(both & (near > 0.0), pull / near, 0.0)  # (SAMPLES, KB)
                upload = tl.load(
                    uploads + (first + r).to(tl.int64)[:, None] * D + c[None, :],
                    mask=(r < size)[:, None] & (c < D)[None, :], other=0.0,
                )  # fmt: skip
                total += tl.sum(slope[:, :, None] * (values[None, :, :] - upload[:, None, :]), 0)
            tl.store(of_learned + k[:, None] * D + c[None, :], total, mask=inside)
        waits += PROGRAMS
        _wait(arrived, waits)

        # of_hidden = (of_learned · output_weight), where the ReLU passed something
        for tile in range(program, down * across, PROGRAMS):
            k = (tile // across) * KB + tl.arange(0, KB)
            c = (tile % across) * COLUMNS + tl.arange(0, COLUMNS)
            inside = (k < K)[:, None] & (c < D)[None, :]
            place = k[:, None] * D + c[None, :]
            z = _product(of_learned, output_weight, k, c, K, D, D, D, 1, D, 1, KB, COLUMNS, DEPTH, PRECISION)
            active = tl.load(hidden + place, mask=inside, other=0.0, cache_modifier=".cg")
            tl.store(of_hidden + place, tl.where(active <= 0.0, 0.0, z), mask=inside)
        waits += PROGRAMS
        _wait(arrived, waits)

        # All weights move. The embedding's and the hidden layer's new values are kept apart: others still read the old.
        for tile in range(program, down * across, PROGRAMS):
            k = (tile // across) * KB + tl.arange(0, KB)
            c = (tile % across) * COLUMNS + tl.arange(0, COLUMNS)
            inside = (k < K)[:, None] & (c < D)[None, :]
            place = k[:, None] * D + c[None, :]
            z = _product(of_hidden, hidden_weight, k, c, K, D, D, D, 1, D, 1, KB, COLUMNS, DEPTH, PRECISION)
            before = tl.load(embedding + place, mask=inside, other=0.0, cache_modifier=".cg")
            tl.store(moved_embedding + place, before - rate * z, mask=inside)
        for tile in range(program, 2 * filters, PROGRAMS):
            if tile < filters:
                _descend(
                    output_weight, output_weight, output_bias, of_learned, hidden, tile, rate, K, D, CLASSES, FM, FN,
                    CLASS_DEPTH, PRECISION,
                )  # fmt: skip
            else:
                _descend(
                    hidden_weight, moved_weight, hidden_bias, of_hidden, embedding, tile - filters, rate, K, D, CLASSES,
                    FM, FN, CLASS_DEPTH, PRECISION,
                )  # fmt: skip
        waits += PROGRAMS
        _wait(arrived, waits)
        embedding, moved_embedding = moved_embedding, embedding
        hidden_weight, moved_weight = moved_weight, hidden_weight
    if (program == 0) & (tl.load(arrived, volatile=True) >= STALLED):
        tl.store(logged, float("nan"))


def epoch(weights: State, samples: Batch, batch: int, penalty: Tensor, logged: Tensor, rate: float) -> None:
    """Take the steps of one epoch, on `batch` uploads each; add the sum of the losses to `logged`, float64."""
    embedding, hidden_weight = weights["embedding.weight"], weights["hidden.weight"]
    (classes, dim), count = embedding.shape, len(samples.labels)
    programs = _programs(embedding.device)
    hidden, learned, of_learned, of_hidden, moved_embedding = (torch.empty_like(embedding) for _ in range(5))
    moved_weight, distances = torch.empty_like(hidden_weight), embedding.new_empty(batch, classes)
    arrived = torch.zeros(1, dtype=torch.int32, device=embedding.device)
    _epoch[(programs,)](
        samples.inputs, samples.labels, penalty, embedding, hidden_weight, weights["hidden.bias"],
        weights["output.weight"], weights["output.bias"], hidden, learned, of_learned, of_hidden, moved_embedding,
        moved_weight, distances, logged, arrived, count, batch, rate, PROGRAMS=programs, **_tiles(classes, dim)
    )  # fmt: skip
    if triton.cdiv(count, batch) % 2:
        embedding.copy_(moved_embedding)
        hidden_weight.copy_(moved_weight)


def _tiles(classes: int, dim: int) -> dict[str, Any]:
    """Return the sizes of tiles, and how products round: `tf32x3` is float32 up to its last bits, on tensor cores.

    Loads ahead of time take 16 bytes in a row, past a multiprocessor's own cache.
    """
    padded = max(16, triton.next_power_of_2(classes))
    return {
        "K": classes, "D": dim, "CLASSES": padded, "KB": min(32, padded), "COLUMNS": COLUMNS,
        "WIDE": min(WIDE, triton.next_power_of_2(dim)), "SAMPLES": SAMPLES, "FM": FILTERS[0], "FN": FILTERS[1],
        "DEPTH": DEPTH, "CLASS_DEPTH": min(64, padded), "PRECISION": "tf32x3", "num_warps": 4,
        "num_stages": 3 if dim % 4 == 0 else 1, "launch_cooperative_grid": True,
    }  # fmt: skip


def _programs(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
