"""Many small cells as one picture: a PNG with a palette, written by hand since it is twenty lines."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

LEVELS = 32
POSITIVE, NEGATIVE, ABSENT_COLOUR = (11, 97, 164), (196, 84, 14), (128, 128, 128)
NOTHING, ABSENT = 0, 2 * LEVELS + 1


def indices(values: NDArray[np.float32], present: NDArray[np.bool_], low: float, high: float) -> NDArray[np.uint8]:
    """Palette entries for values: none for `low` itself, the stronger the farther from it, towards ±`high`."""
    share = np.clip((np.where(present, values, low) - low) / (high - low if high > low else 1.0), -1, 1)
    level = np.ceil(np.abs(share) * LEVELS).astype(np.int64)
    coloured = np.where(share >= 0, level, LEVELS + level) * (level > 0)
    return np.where(present, coloured, ABSENT).astype(np.uint8)


def png(cells: NDArray[np.uint8]) -> bytes:
    """An indexed PNG whose colours are more or less of one ink on whatever is below."""
    height, width = cells.shape
    opacity = [0, *(int(30 + 225 * (level + 1) / LEVELS) for level in range(LEVELS))]
    inks = [(0, 0, 0), *[POSITIVE] * LEVELS, *[NEGATIVE] * LEVELS, ABSENT_COLOUR]
    alphas = [*opacity, *opacity[1:], 60]
    rows = np.concatenate([np.zeros((height, 1), np.uint8), cells], axis=1)  # each row begins with its filter, none
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = (
        (b"IHDR", header),
        (b"PLTE", b"".join(bytes(ink) for ink in inks)),
        (b"tRNS", bytes(alphas)),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def data_address(content: bytes, kind: str) -> str:
    """Content inside the page instead of beside it."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
