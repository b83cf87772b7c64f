"""Images from arrays: a user's, in memory or in an .npz file, and the handwritten digits embedded in scikit-learn."""

from __future__ import annotations

import importlib.util
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from tinyproto.data.images import Images, SharedPixels
from tinyproto.data.sources.base import MINUS_ONE_TO_ONE, Labels, Request, only_first_classes
from tinyproto.errors import DataError, one_line

CHANNELS = (1, 3, 4)
PAIRS = (("images", "labels"), ("x_train", "y_train"), ("x_test", "y_test"))
"""Arrays of an .npz file that belong together, in the order in which they are merged."""

_PIECE = 1 << 22


def from_arrays(images: Any, labels: Any, *, num_classes: int | None = None, name: str = "arrays") -> Images:
    """Make a dataset from uint8 images (N, C, H, W) or (N, H, W) and labels 0 … K−1; a network sees −1 to 1."""
    targets = _targets(np.asarray(labels))
    pixels = torch.as_tensor(np.asarray(images))
    if pixels.dtype != torch.uint8:
        raise DataError(f"images have to be uint8 (0 to 255), these are {pixels.dtype}; scale and round them first")
    if pixels.dim() == 3:
        pixels = pixels.unsqueeze(1)
    if pixels.dim() != 4:
        raise DataError(f"images have to be (N, C, H, W) or (N, H, W), these have shape {tuple(pixels.shape)}")
    if _channels_last(pixels.shape):
        raise DataError(f"images of shape {tuple(pixels.shape)} look like (N, H, W, C); transpose them to (N, C, H, W)")
    return _images(name, pixels, targets, num_classes)


def load(request: Request) -> Images:
    """Load an .npz file with `images` and `labels`, or `x_train`, `y_train`, `x_test` and `y_test`, merged."""
    if request.root is None:
        raise DataError("data.root has to name the .npz file")
    try:
        with zipfile.ZipFile(request.root) as archive:
            return only_first_classes(_load(archive), request.first_classes)
    except FileNotFoundError:
        raise DataError(f"data.root: no file at {request.root}") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{request.root} is damaged or not an .npz file ({one_line(error)}); save it again with numpy.savez"
        ) from error
    except DataError as error:
        raise DataError(f"{request.root}: {error}") from None


def _load(archive: zipfile.ZipFile) -> Images:
    there = [file.removesuffix(".npy") for file in archive.namelist()]
    pairs = [pair for pair in PAIRS if set(pair) & set(there)]
    missing = [name for pair in pairs for name in pair if name not in there]
    if not pairs or missing or len(pairs) == 3:
        raise DataError(
            "it has to hold the arrays `images` and `labels`, or `x_train`, `y_train`, `x_test` and `y_test`, "
            f"not {', '.join(there) or 'none'}"
        )
    targets = np.concatenate([_read_labels(archive, labels) for _, labels in pairs])
    shared = _read_pixels(archive, [images for images, _ in pairs])
    return _images("npz", shared.tensor, targets, None, shared)


def _read_labels(archive: zipfile.ZipFile, name: str) -> Labels:
    with archive.open(f"{name}.npy") as stream:
        labels = np.lib.format.read_array(stream, allow_pickle=False)
    return _targets(labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels)


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an .npy file; return the shape, True if columns come first, and the type."""
    first_version = np.lib.format.read_magic(stream) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first_version else np.lib.format.read_array_header_2_0
    return read(stream)


def _read_pixels(archive: zipfile.ZipFile, names: list[str]) -> SharedPixels:
    """Read the images straight into shared memory, moving channels from last to first place on the way."""
    shapes: list[tuple[int, ...]] = []
    for name in names:
        with archive.open(f"{name}.npy") as stream:
            shape, by_column, dtype = _header(stream)
        if dtype != np.uint8:
            raise DataError(f"`{name}` has to be uint8 (0 to 255), not {dtype}; scale and round it first")
        if len(shape) not in (3, 4):
            raise DataError(f"`{name}` has to be (N, C, H, W), (N, H, W, C) or (N, H, W), its shape is {shape}")
        if by_column:
            raise DataError(f"`{name}` is stored by columns; save numpy.ascontiguousarray of it")
        shapes.append(shape)
    first = shapes[0][1:]
    if any(shape[1:] != first for shape in shapes):
        raise DataError(f"images of shapes {' and '.join(map(str, shapes))} cannot be merged")
    total = sum(shape[0] for shape in shapes)
    if total == 0:
        raise DataError("there has to be at least one image")
    last = len(first) == 3 and _channels_last((total, *first))
    forward = (first[2], *first[:2]) if last else (1, *first) if len(first) == 2 else first
    shared = SharedPixels.blank((total, *forward))
    target = shared.array.transpose(0, 2, 3, 1) if last else shared.array.reshape(total, *first)
    ends = np.cumsum([shape[0] for shape in shapes])
    for name, part in zip(names, np.split(target, ends[:-1]), strict=True):
        _read_images(archive, name, part)
    return shared


def _read_images(archive: zipfile.ZipFile, name: str, target: NDArray[np.uint8]) -> None:
    size = int(np.prod(target.shape[1:]))
    at_once = max(1, _PIECE // max(size, 1))
    with archive.open(f"{name}.npy") as stream:
        _header(stream)
        for start in range(0, len(target), at_once):
            piece = target[start : start + at_once]
            data = stream.read(len(piece) * size)
            if len(data) < len(piece) * size:
                raise EOFError(f"{name} ends early")
            piece[:] = np.frombuffer(data, np.uint8).reshape(piece.shape)


def _channels_last(shape: Any) -> bool:
    return shape[3] in CHANNELS and shape[1] not in CHANNELS


def _targets(labels: NDArray[Any]) -> Labels:
    if labels.dtype.kind not in "iub":
        raise DataError(f"labels have to be integers 0 … K−1, not {labels.dtype}")
    return labels.astype(np.int64)


def _images(
    name: str, pixels: torch.Tensor, labels: Labels, num_classes: int | None, shared: SharedPixels | None = None
) -> Images:
    targets = torch.from_numpy(labels)
    if targets.dim() != 1 or len(targets) != len(pixels):
        raise DataError(f"{len(pixels)} images need as many labels, these have shape {tuple(targets.shape)}")
    if len(targets) == 0:
        raise DataError("there has to be at least one image")
    classes = int(targets.max()) + 1 if num_classes is None else num_classes
    if int(targets.min()) < 0 or int(targets.max()) >= classes:
        raise DataError(
            f"labels have to be in 0 … {classes - 1}, these are in {int(targets.min())} … {int(targets.max())}"
        )
    return Images(name, pixels, targets, classes, shared=shared, **MINUS_ONE_TO_ONE)


def load_digits(request: Request) -> Images:
    """Load 1 797 handwritten digits of 8×8 pixels; the pixels 0 to 16 become −1 to 1."""
    table = _digits_table()
    shared = SharedPixels.blank((len(table), 1, 8, 8))
    shared.array[:] = table[:, :-1].reshape(shared.shape)
    labels = torch.from_numpy(table[:, -1].astype(np.int64))
    images = Images("digits", shared.tensor, labels, num_classes=10, scale=1 / 8, shift=-1.0, shared=shared, white=16)
    return only_first_classes(images, request.first_classes)


def _digits_table() -> NDArray[Any]:
    """Read 64 pixels and the label per row from scikit-learn's file: importing its datasets would take a second."""
    package = importlib.util.find_spec("sklearn")
    folders = [] if package is None else package.submodule_search_locations or []
    for folder in folders:
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            return np.loadtxt(file, delimiter=",")
    from sklearn import datasets

    digits = datasets.load_digits()
    return np.column_stack([digits.data, digits.target])
