"""Images from arrays that a user has: in memory, or in an .npz file."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from tinyproto.data.images import Images, SharedPixels
from tinyproto.data.sources.base import MINUS_ONE_TO_ONE, Request, only_first_classes
from tinyproto.errors import DataError, one_line

CHANNELS = (1, 3, 4)
PAIRS = (("images", "labels"), ("x_train", "y_train"), ("x_test", "y_test"))
"""Arrays of an .npz file that belong together, in the order in which they are merged."""

_PIECE = 1 << 22


def from_arrays(images: Any, labels: Any, *, num_classes: int | None = None, name: str = "arrays") -> Images:
    """Images (N, C, H, W) or (N, H, W) as uint8, and labels 0 … K−1; a network sees −1 to 1, as in the paper."""
    targets = _targets(np.asarray(labels))
    pixels = torch.as_tensor(np.asarray(images))
    if pixels.dtype != torch.uint8:
        raise DataError(f"images have to be uint8 (0 to 255), these are {pixels.dtype}; scale and round them first")
    if pixels.dim() == 3:
        pixels = pixels.unsqueeze(1)
    if pixels.dim() != 4:
        raise DataError(f"images have to be (N, C, H, W) or (N, H, W), these have shape {tuple(pixels.shape)}")
    if _channels_last(pixels.shape):
        raise DataError(
            f"images of shape {tuple(pixels.shape)} look like (N, H, W, C); bring the channels forward, (N, C, H, W)"
        )
    return _images(name, pixels, targets, num_classes)


def load(request: Request) -> Images:
    """The arrays of an .npz file: `images` and `labels`, or `x_train`, `y_train`, `x_test`, `y_test` merged."""
    if request.root is None:
        raise DataError("data.root has to name the .npz file")
    try:
        with zipfile.ZipFile(request.root) as archive:
            return only_first_classes(_load(archive), request.first_classes)
    except FileNotFoundError:
        raise DataError(f"data.root: there is no file {request.root}") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{request.root} is damaged or not an .npz file ({one_line(error)}); save it again with numpy.savez"
        ) from error
    except DataError as error:
        raise DataError(f"{request.root}: {error}") from None


def locate(root: Path | None) -> str:
    """Where the data is."""
    return "any .npz file with images and labels: set data.root to it" if root is None else str(root)


@dataclass(frozen=True)
class _Member:
    """An array in the archive, and what its header says."""

    file: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_column: bool

    @classmethod
    def of(cls, archive: zipfile.ZipFile, file: str) -> _Member:
        with archive.open(file) as stream:
            return cls(file, *_header(stream))


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any], bool]:
    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in read:
        raise ValueError(f"a .npy of version {version}")
    shape, by_column, dtype = read[version](stream)
    return shape, dtype, by_column


def _load(archive: zipfile.ZipFile) -> Images:
    there = {
        name.removesuffix(".npy"): _Member.of(archive, name) for name in archive.namelist() if name.endswith(".npy")
    }
    pairs = [pair for pair in PAIRS if set(pair) & there.keys()]
    missing = [name for pair in pairs for name in pair if name not in there]
    if not pairs or missing or len(pairs) == 3:
        raise DataError(
            "it has to hold the arrays `images` and `labels`, or `x_train`, `y_train`, `x_test` and `y_test`, "
            f"not {', '.join(there) or 'none'}"
        )
    members = [there[images] for images, _ in pairs]
    targets = np.concatenate([_read_labels(archive, there[labels]) for _, labels in pairs])
    shared = _read_pixels(archive, members)
    return _images("npz", shared.tensor, targets, None, shared)


def _read_labels(archive: zipfile.ZipFile, member: _Member) -> NDArray[np.int64]:
    with archive.open(member.file) as stream:
        labels = np.lib.format.read_array(stream, allow_pickle=False)
    return _targets(labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels)


def _read_pixels(archive: zipfile.ZipFile, members: list[_Member]) -> SharedPixels:
    """Read straight into place; channels that come last are brought forward on the way."""
    for member in members:
        _check_form(member)
    first = members[0].shape[1:]
    if any(member.shape[1:] != first for member in members):
        raise DataError(f"images of shapes {' and '.join(str(member.shape) for member in members)} cannot be merged")
    total = sum(member.shape[0] for member in members)
    if total == 0:
        raise DataError("there has to be at least one image")
    last = len(first) == 3 and _channels_last((total, *first))
    forward = (first[2], *first[:2]) if last else (1, *first) if len(first) == 2 else first
    shared = SharedPixels.blank((total, *forward))
    target = shared.array.transpose(0, 2, 3, 1) if last else shared.array.reshape(total, *first)
    start = 0
    for member in members:
        _read_images(archive, member, target[start : start + member.shape[0]])
        start += member.shape[0]
    return shared


def _check_form(member: _Member) -> None:
    name = Path(member.file).stem
    if member.dtype != np.uint8:
        raise DataError(f"`{name}` has to be uint8 (0 to 255), it is {member.dtype}; scale and round it first")
    if len(member.shape) not in (3, 4):
        raise DataError(f"`{name}` has to be (N, C, H, W), (N, H, W, C) or (N, H, W), its shape is {member.shape}")
    if member.by_column:
        raise DataError(f"`{name}` is stored by columns; save numpy.ascontiguousarray of it")


def _read_images(archive: zipfile.ZipFile, member: _Member, target: NDArray[np.uint8]) -> None:
    size = int(np.prod(target.shape[1:]))
    at_once = max(1, _PIECE // max(size, 1))
    with archive.open(member.file) as stream:
        _header(stream)
        for start in range(0, len(target), at_once):
            piece = target[start : start + at_once]
            data = stream.read(len(piece) * size)
            if len(data) < len(piece) * size:
                raise EOFError(f"{member.file} ends early")
            piece[:] = np.frombuffer(data, np.uint8).reshape(piece.shape)


def _channels_last(shape: Any) -> bool:
    return shape[3] in CHANNELS and shape[1] not in CHANNELS


def _targets(labels: NDArray[Any]) -> NDArray[np.int64]:
    if labels.dtype.kind not in "iub":
        raise DataError(f"labels have to be whole numbers 0 … K−1, these are {labels.dtype}")
    return labels.astype(np.int64)


def _images(
    name: str, pixels: torch.Tensor, labels: NDArray[np.int64], num_classes: int | None,
    shared: SharedPixels | None = None,
) -> Images:  # fmt: skip
    targets = torch.from_numpy(labels)
    if targets.dim() != 1 or len(targets) != len(pixels):
        raise DataError(f"{len(pixels)} images need as many labels, these have shape {tuple(targets.shape)}")
    if len(targets) == 0:
        raise DataError("there has to be at least one image")
    classes = int(targets.max()) + 1 if num_classes is None else num_classes
    if int(targets.min()) < 0 or int(targets.max()) >= classes:
        raise DataError(
            f"labels have to lie in 0 … {classes - 1}, these span {int(targets.min())} … {int(targets.max())}"
        )
    return Images(name, pixels, targets, classes, shared=shared, **MINUS_ONE_TO_ONE)
