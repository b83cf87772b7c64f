"""Image files to one pool of uint8 pixels, decoded once: a later load finds them in the cache."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from tinyproto.data import pixel_cache
from tinyproto.data.images import SharedPixels
from tinyproto.data.pixel_cache import Stale, Wanted
from tinyproto.data.sources.base import Progress
from tinyproto.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

CHUNK = 256
MOST_THREADS = 8
GREY = ("1", "L")
NOT_8_BIT = ("I", "F")
"""Modes of images with more than 8 bits per channel, or how their names begin."""


@dataclass(frozen=True)
class ImageFiles:
    """The images of a dataset in order, and how they become pixels."""

    name: str  # of the dataset
    folder: Path
    paths: Sequence[str]  # below the folder
    colours: Literal["RGB", "auto"]  # auto: grey if all of them are
    size: int | None  # height and width to bring them to; None: they have to be of one size
    remedy: str  # for an image that cannot be decoded
    first_classes: int | None = None  # where they are of a part of the folder's classes

    def path(self, index: int) -> Path:
        """Of one image."""
        return self.folder / self.paths[index]


def decoded(files: ImageFiles, cache: Path | None, progress: Progress) -> SharedPixels:
    """All pixels, (N, C, H, W)."""
    size = "as_stored" if files.size is None else str(files.size)
    part = "" if files.first_classes is None else f"-first_{files.first_classes}_classes"
    wanted = Wanted(files.folder, f"{files.name}-{size}{part}", _digest(files))
    why = ""
    try:
        found = pixel_cache.read(wanted, cache)
        if found is not None:
            return found
    except Stale as stale:
        why = f" again: the cache is {stale}"
    form = _form(files)
    what = f"decoding {len(files.paths)} images of {files.name}{why}"
    shape = (len(files.paths), *form.shape)
    return pixel_cache.write(wanted, cache, shape, lambda target: _decode_all(files, form, target, what, progress))


def _digest(files: ImageFiles) -> str:
    """Of names, sizes and times, so that a changed image is noticed without reading it."""
    digest = hashlib.sha256(f"{files.colours} {files.size}".encode())
    for index, name in enumerate(files.paths):
        try:
            facts = files.path(index).stat()
        except OSError as error:
            raise _damaged(files, index, error) from error
        digest.update(f"{name}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


@dataclass(frozen=True)
class _Form:
    """What every image becomes."""

    mode: Literal["L", "RGB"]
    height: int
    width: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return (1 if self.mode == "L" else 3, self.height, self.width)


def _form(files: ImageFiles) -> _Form:
    """By the first image; grey only if the others are grey too, whose headers are enough to tell."""
    with _opened(files, 0) as first:
        (width, height), mode = first.size, first.mode
    if files.size is not None:
        height = width = files.size
    grey = files.colours == "auto" and mode in GREY
    for index in range(1, len(files.paths)):
        if not grey:
            break
        with _opened(files, index) as image:
            grey = image.mode in GREY
    return _Form("L" if grey else "RGB", height, width)


def _decode_all(files: ImageFiles, form: _Form, target: NDArray[np.uint8], what: str, progress: Progress) -> None:
    """Several threads at once: decoding lets go of Python's lock."""
    starts = range(0, len(files.paths), CHUNK)
    progress(what, 0, len(files.paths))
    executor = ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1))

    def decode_chunk(start: int) -> int:
        stop = min(start + CHUNK, len(files.paths))
        for index in range(start, stop):
            target[index] = _decode(files, index, form)
        return stop

    try:
        for done in executor.map(decode_chunk, starts):
            progress(what, done, len(files.paths))
    finally:
        executor.shutdown(cancel_futures=True)


def _decode(files: ImageFiles, index: int, form: _Form) -> NDArray[np.uint8]:
    with _opened(files, index) as image:
        if image.mode.startswith(NOT_8_BIT):
            raise DataError(
                f"{files.path(index)} has more than 8 bits per channel (mode {image.mode}); convert it first"
            )
        size = (form.width, form.height)
        if image.size != size and files.size is None:
            raise DataError(
                f"{files.path(index)} has {image.width} × {image.height} pixels, {files.path(0)} has "
                f"{form.width} × {form.height}; {_size_remedy(files)}"
            )
        try:
            array = np.asarray(_resized(image if image.mode == form.mode else image.convert(form.mode), size))
        except (OSError, ValueError, SyntaxError) as error:
            raise _damaged(files, index, error) from error
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def _size_remedy(files: ImageFiles) -> str:
    return "set data.image_size to bring all to one size" if files.name == "image_folder" else files.remedy


def _resized(image: Image, size: tuple[int, int]) -> Image:
    import PIL.Image

    return image if image.size == size else image.resize(size, PIL.Image.Resampling.BILINEAR)


def _opened(files: ImageFiles, index: int) -> Image:
    import PIL.Image

    try:
        return PIL.Image.open(files.path(index))
    except (OSError, ValueError, SyntaxError, PIL.Image.DecompressionBombError) as error:
        raise _damaged(files, index, error) from error


def _damaged(files: ImageFiles, index: int, error: Exception) -> DataError:
    reason = str(error).removesuffix(f" '{files.path(index)}'")
    return DataError(f"{files.path(index)} cannot be decoded ({reason}); {files.remedy}")
