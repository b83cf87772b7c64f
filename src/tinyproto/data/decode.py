"""Image files to one pool of uint8 pixels, decoded once and then kept in a cache on disk.

The cache is a file of plain pixels beside the images, and a JSON note of its shape and of the images it was made from.
A stale or damaged cache is written again. The file is mapped, not read, so that all processes on the machine share its
pages.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tinyproto.data.dataset import Dataset, SharedArray
from tinyproto.data.inputs import assembled
from tinyproto.data.sources.base import Progress
from tinyproto.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

CACHE_FORMAT = 2
CACHE_FOLDER = ".tinyproto-cache"
CHUNK = 256
MOST_THREADS = 8
GREY = ("1", "L")
NOT_8_BIT = ("I", "F")
"""First letters of the modes of images with more than 8 bits per channel."""

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class ImageFiles:
    """The image files of a dataset in order, with their labels and the form to decode them to."""

    source: str  # name of the dataset in a config
    name: str  # name of the dataset in results
    folder: Path
    paths: Sequence[str]  # below the folder
    labels: Sequence[int]
    classes: Sequence[str]
    first_classes: int | None  # None: all classes of the folder
    size: int | None  # height and width to resize to; None: all images have to have the same size
    remedy: str  # for an image that cannot be decoded
    class_names: Sequence[str] | None = None  # None: the classes are their names

    def path(self, index: int) -> Path:
        """Return the path of one image."""
        return self.folder / self.paths[index]

    def load(self, cache: Path | None, progress: Progress) -> Dataset:
        """Return the images, from the cache if it is valid; a network sees −1 to 1."""
        shared = _pixels(self, cache, progress)
        labels = np.array(self.labels, dtype=np.int64)
        return assembled(self.name, shared.tensor, labels, tuple(self.class_names or self.classes), shared=shared)


def _pixels(files: ImageFiles, cache: Path | None, progress: Progress) -> SharedArray:
    """Return all pixels, (N, C, H, W)."""
    notes, digest, why = _notes(files, cache), _digest(files), ""
    for note in notes:
        if note.exists():
            found = _read_cache(note, digest)
            if isinstance(found, SharedArray):
                return found
            why = f" again: the cache is {found}"
            break
    shape = (len(files.paths), *_shape(files))
    what = f"decoding {len(files.paths)} images of {files.name}{why}"
    problem: OSError | None = None
    for note in notes:
        try:
            note.parent.mkdir(parents=True, exist_ok=True)
            return _write_cache(note, digest, shape, files, lambda done: progress(what, done, len(files.paths)))
        except OSError as error:
            problem = error
    raise DataError(
        f"cannot write the {math.prod(shape)} bytes of decoded images of {files.folder}: {problem}; set data.cache to "
        "a folder with enough space"
    ) from problem


def _digest(files: ImageFiles) -> str:
    """Hash names, sizes and times, so that a changed image is noticed without reading it."""
    digest = hashlib.sha256(f"{files.size}".encode())
    for index, name in enumerate(files.paths):
        try:
            facts = files.path(index).stat()
        except OSError as error:
            raise _damaged(files, index, error) from error
        digest.update(f"{name}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _shape(files: ImageFiles) -> tuple[int, int, int]:
    """Return (C, H, W): the size of the first image, and grey only if all images are, which their headers tell."""
    with _opened(files, 0) as first:
        width, height = (files.size, files.size) if files.size else first.size
    return (1 if all(_is_grey(files, index) for index in range(len(files.paths))) else 3, height, width)


def _is_grey(files: ImageFiles, index: int) -> bool:
    with _opened(files, index) as image:
        return image.mode in GREY


def _decode_all(files: ImageFiles, target: NDArray[np.uint8], progress: Callable[[int], None]) -> None:
    """Decode with several threads: PIL releases Python's lock."""
    starts = range(0, len(files.paths), CHUNK)
    progress(0)
    executor = ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1))

    def decode_chunk(start: int) -> int:
        stop = min(start + CHUNK, len(files.paths))
        for index in range(start, stop):
            target[index] = _decode(files, index, target.shape)
        return stop

    try:
        for done in executor.map(decode_chunk, starts):
            progress(done)
    finally:
        executor.shutdown(cancel_futures=True)


def _decode(files: ImageFiles, index: int, shape: Sequence[int]) -> NDArray[np.uint8]:
    _, channels, height, width = shape
    path = files.path(index)
    with _opened(files, index) as image:
        if image.size != (width, height) and files.size is None:
            remedy = "set data.image_size to resize all images" if files.source == "image_folder" else files.remedy
            raise DataError(
                f"{path} has {image.width} × {image.height} pixels, {files.path(0)} has {width} × {height}; {remedy}"
            )
        try:
            return pixels_of(image, (channels, height, width), path)
        except (OSError, ValueError, SyntaxError) as error:
            raise _damaged(files, index, error) from error


def pixels_of(image: Image, shape: tuple[int, int, int], name: object) -> NDArray[np.uint8]:
    """Return an opened image as uint8 pixels of this shape (C, H, W), converted and resized as for training.

    Raise DataError, with the image's name, if it has more than 8 bits per channel.
    """
    import PIL.Image

    channels, height, width = shape
    mode = {1: "L", 4: "RGBA"}.get(channels, "RGB")
    if image.mode.startswith(NOT_8_BIT):
        raise DataError(f"{name} has more than 8 bits per channel (mode {image.mode}); convert it first")
    converted = image if image.mode == mode else image.convert(mode)
    if converted.size != (width, height):
        converted = converted.resize((width, height), PIL.Image.Resampling.BILINEAR)
    array = np.asarray(converted)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def _opened(files: ImageFiles, index: int) -> Image:
    import PIL.Image

    try:
        return PIL.Image.open(files.path(index))
    except (OSError, ValueError, SyntaxError, PIL.Image.DecompressionBombError) as error:
        raise _damaged(files, index, error) from error


def _damaged(files: ImageFiles, index: int, error: Exception) -> DataError:
    reason = str(error).removesuffix(f" '{files.path(index)}'")
    return DataError(f"{files.path(index)} cannot be decoded ({reason}); {files.remedy}")


def _notes(files: ImageFiles, cache: Path | None) -> list[Path]:
    """Return the paths where the cache's note may be, in the order of preference."""
    size = "as_stored" if files.size is None else str(files.size)
    part = "" if files.first_classes is None else f"-first_{files.first_classes}_classes"
    name = f"{files.source}-{size}{part}.json"
    resolved = files.folder.resolve()
    elsewhere = f"{resolved.name}-{hashlib.sha256(str(resolved).encode()).hexdigest()[:12]}-{name}"
    if cache is not None:
        return [cache / elsewhere]
    user_caches = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "tinyproto"
    return [files.folder / CACHE_FOLDER / name, user_caches / elsewhere]


def _read_cache(note: Path, digest: str) -> SharedArray | str:
    """Return the pixels, or the reason that the cache cannot be used, as an adjective."""
    try:
        facts = json.loads(note.read_text())
        if (facts["format"], facts["images"]) != (CACHE_FORMAT, digest):
            return "of other images"
        pixels = SharedArray(os.open(note.with_suffix(".pixels"), os.O_RDONLY), facts["shape"])
        return pixels if zlib.crc32(pixels.array.data) == facts["crc32"] else "damaged"
    except (OSError, ValueError, KeyError, TypeError):
        return "damaged"


def _write_cache(
    note: Path, digest: str, shape: Sequence[int], files: ImageFiles, progress: Callable[[int], None]
) -> SharedArray:
    """Decode straight into a new cache file, which gets its name once it is complete."""
    target = note.with_suffix(".pixels")
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("w+b") as file:
            _allocate(file.fileno(), math.prod(shape))
            blank = SharedArray(os.dup(file.fileno()), shape, writable=True)
            _decode_all(files, blank.array, progress)
            checksum = zlib.crc32(blank.array.data)
            os.fsync(file.fileno())
            pixels = SharedArray(os.dup(file.fileno()), shape)
        partial.replace(target)
        facts = {"format": CACHE_FORMAT, "shape": list(shape), "images": digest, "crc32": checksum}
        partial.write_text(json.dumps(facts) + "\n")
        partial.replace(note)
        note.with_suffix(".npy").unlink(missing_ok=True)  # the cache of an earlier format
    finally:
        partial.unlink(missing_ok=True)
    return pixels


def _allocate(descriptor: int, size: int) -> None:
    """Reserve disk space now: a disk that fills up under a mapping would kill the process without a message."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno in _DISK_FULL:
            raise
        os.ftruncate(descriptor, size)
