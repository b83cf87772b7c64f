"""Decoded pixels on disk: an .npy file beside the images, and a note of what it was made from.

A cache of other files, a truncated or a damaged one is made anew. It is mapped, not read, so that every process on the
machine shares its pages.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tinyproto.data.images import SharedPixels
from tinyproto.errors import DataError

FORMAT = 1
FOLDER = ".tinyproto-cache"
_PIECE = 1 << 24
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Fill = Callable[[NDArray[np.uint8]], None]


class Wanted(NamedTuple):
    """What a cache has to be of."""

    folder: Path  # of the images
    name: str  # tells apart several caches of one folder
    digest: str  # of the images' names, sizes and times


class Stale(Exception):  # noqa: N818
    """Why a cache cannot be used: it is … ."""


def read(wanted: Wanted, cache: Path | None) -> SharedPixels | None:
    """The pixels where a good cache is; None where there is none. Raises Stale where there is one of no use."""
    for note in _notes(wanted, cache):
        if note.exists():
            return _read(note, wanted.digest)
    return None


def write(wanted: Wanted, cache: Path | None, shape: Sequence[int], fill: Fill) -> SharedPixels:
    """Have the pixels filled in straight into a new cache: beside the images, or where the user has caches."""
    problem: OSError | None = None
    for note in _notes(wanted, cache):
        try:
            note.parent.mkdir(parents=True, exist_ok=True)
            return _write(note, wanted.digest, shape, fill)
        except OSError as error:
            problem = error
    raise DataError(
        f"cannot write the {math.prod(shape)} bytes of decoded images of {wanted.folder}: {problem}; set data.cache to "
        "a folder with room for them"
    ) from problem


def _notes(wanted: Wanted, cache: Path | None) -> list[Path]:
    """Where the note may be, the first choice first."""
    resolved = str(wanted.folder.resolve())
    elsewhere = (
        f"{wanted.folder.resolve().name}-{hashlib.sha256(resolved.encode()).hexdigest()[:12]}-{wanted.name}.json"
    )
    if cache is not None:
        return [cache / elsewhere]
    of_user = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "tinyproto"
    return [wanted.folder / FOLDER / f"{wanted.name}.json", of_user / elsewhere]


def _read(note: Path, digest: str) -> SharedPixels:
    try:
        facts = json.loads(note.read_text())
        shape = tuple(int(length) for length in facts["shape"])
        made_of, checksum, version = facts["images"], facts["crc32"], facts["format"]
    except (OSError, ValueError, KeyError, TypeError):
        raise Stale("damaged") from None
    if version != FORMAT or made_of != digest:
        raise Stale("of other images")
    path = note.with_suffix(".npy")
    try:
        with path.open("rb") as file:
            offset = _header(file, shape)
            if os.fstat(file.fileno()).st_size != offset + math.prod(shape):
                raise Stale("truncated")
            pixels = SharedPixels(os.dup(file.fileno()), shape, offset)
    except (OSError, ValueError):
        raise Stale("damaged") from None
    if _checksum(pixels.array) != checksum:
        raise Stale("damaged")
    return pixels


def _header(file: IO[bytes], shape: Sequence[int]) -> int:
    """Where the pixels begin, if the file is an array of that shape."""
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("another version of .npy")
    found, by_column, dtype = np.lib.format.read_array_header_1_0(file)
    if (found, by_column, dtype) != (tuple(shape), False, np.dtype(np.uint8)):
        raise ValueError("another array")
    return file.tell()


def _write(note: Path, digest: str, shape: Sequence[int], fill: Fill) -> SharedPixels:
    target = note.with_suffix(".npy")
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("w+b") as file:
            header: dict[str, Any] = {"descr": "|u1", "fortran_order": False, "shape": tuple(shape)}
            np.lib.format.write_array_header_1_0(file, header)
            file.flush()
            offset = file.tell()
            _make_room(file.fileno(), offset + math.prod(shape))
            blank = SharedPixels(os.dup(file.fileno()), shape, offset, writable=True)
            fill(blank.array)
            checksum = _checksum(blank.array)
            os.fsync(file.fileno())
            pixels = SharedPixels(os.dup(file.fileno()), shape, offset)
        partial.replace(target)
        facts = {"format": FORMAT, "shape": list(shape), "images": digest, "crc32": checksum}
        partial.write_text(json.dumps(facts) + "\n")
        partial.replace(note)
    finally:
        partial.unlink(missing_ok=True)
    return pixels


def _make_room(descriptor: int, size: int) -> None:
    """Take the room now: a disk that fills up under a mapping would end the process without a word."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise
        os.ftruncate(descriptor, size)


def _checksum(pixels: NDArray[np.uint8]) -> int:
    flat, value = pixels.reshape(-1), 0
    for start in range(0, len(flat), _PIECE):
        value = zlib.crc32(flat[start : start + _PIECE].data, value)
    return value
