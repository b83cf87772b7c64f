"""A user's arrays, in memory or in an .npz file: uint8 images, float32 values of any shape, or token ids."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from tinyproto.data.dataset import Dataset, SharedArray
from tinyproto.data.inputs import as_array, assembled, channels_last, check_values, storage
from tinyproto.data.labels import class_numbers
from tinyproto.data.normalise import Normalise, with_normalisation
from tinyproto.data.sources.base import Request, only_first_classes
from tinyproto.errors import DataError, one_line

PAIRS = (("images", "labels"), ("x", "y"), ("x_train", "y_train"), ("x_test", "y_test"))
"""Arrays of an .npz file that belong together; the last two pairs are merged."""

CLASS_NAMES = "class_names"

_PIECE = 1 << 22


def from_arrays(
    inputs: Any, labels: Any, *, num_classes: int | None = None, name: str = "arrays",
    class_names: Sequence[str] | None = None, columns: Sequence[str] | None = None, vocabulary: int | None = None,
    normalise: Normalise = "auto",
) -> Dataset:  # fmt: skip
    """Make a dataset from arrays in memory.

    Args:
        inputs: uint8 images (N, C, H, W) or (N, H, W); floats of any shape (N, …), stored as float32; or token ids
            (N, …), int32 or int64.
        labels: integers 0 … K−1, or names of classes.
        num_classes: K; the highest label + 1 or the number of names if omitted.
        name: of the dataset in results.
        class_names: by class number; for labels that are names, their order.
        columns: names of the features of a table (N, F).
        vocabulary: the number of token ids; the highest id + 1 if omitted.
        normalise: `auto` shows pixels 0 to 255 as −1 to 1, and floats with mean 0 and standard deviation 1 over the
            training samples, by column (N, F) or channel (N, C, …); `none`; or `{"mean": …, "std": …}`, numbers or
            lists.

    """
    targets, names = class_numbers(labels, class_names)
    given = as_array(inputs)
    dtype = storage(given.dtype)
    if dtype == "uint8" and given.ndim == 3:
        given = given[:, None]
    if dtype == "uint8" and given.ndim != 4:
        raise DataError(
            f"uint8 images have to be (N, C, H, W) or (N, H, W), these have shape {given.shape}; "
            "convert other data with .astype('float32')"
        )
    if given.ndim < 2:
        raise DataError(f"inputs have to be (N, …), these have shape {given.shape}; give each sample an axis")
    if dtype != "int64" and channels_last(given.shape):
        raise DataError(f"images of shape {given.shape} look like (N, H, W, C); transpose them to (N, C, H, W)")
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(given, dtype=dtype)
    check_values(values)
    made = assembled(
        name, torch.as_tensor(values), targets, names,
        num_classes=num_classes, columns=columns, vocabulary=vocabulary,
    )  # fmt: skip
    return with_normalisation(made, normalise)


def load(request: Request) -> Dataset:
    """Load an .npz file with `images` and `labels`, `x` and `y`, or `x_train`, `y_train`, `x_test`, `y_test`, merged.

    `class_names` may be there too.
    """
    if request.root is None:
        raise DataError("data.root has to name the .npz file")
    try:
        with zipfile.ZipFile(request.root) as archive:
            return only_first_classes(_load(archive, request), request.first_classes)
    except FileNotFoundError:
        raise DataError(f"data.root: no file at {request.root}") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{request.root} is damaged or not an .npz file ({one_line(error)}); save it again with numpy.savez"
        ) from error
    except DataError as error:
        raise DataError(f"{request.root}: {error}") from None


def _load(archive: zipfile.ZipFile, request: Request) -> Dataset:
    there = [file.removesuffix(".npy") for file in archive.namelist()]
    pairs = [pair for pair in PAIRS if set(pair) & set(there)]
    missing = [name for pair in pairs for name in pair if name not in there]
    mixed = len(pairs) > 1 and set(pairs) != set(PAIRS[2:])
    if not pairs or missing or mixed:
        raise DataError(
            "it has to hold the arrays `images` and `labels`, `x` and `y`, or `x_train`, `y_train`, `x_test` and "
            f"`y_test`, not {', '.join(there) or 'none'}"
        )
    names = _read_array(archive, CLASS_NAMES).tolist() if CLASS_NAMES in there else None
    targets, class_names = class_numbers(np.concatenate([_read_labels(archive, labels) for _, labels in pairs]), names)
    shared = _read_inputs(archive, [inputs for inputs, _ in pairs])
    name = Path(str(request.root)).stem
    return assembled(name, shared.tensor, targets, class_names, vocabulary=request.vocabulary, shared=shared)


def _read_array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with archive.open(f"{name}.npy") as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def _read_labels(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    labels = _read_array(archive, name)
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an .npy file; return the shape, True if columns come first, and the type."""
    first_version = np.lib.format.read_magic(stream) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first_version else np.lib.format.read_array_header_2_0
    return read(stream)


def _read_inputs(archive: zipfile.ZipFile, names: list[str]) -> SharedArray:
    """Read the inputs straight into shared memory, moving channels from last to first place on the way."""
    shapes: list[tuple[int, ...]] = []
    kinds: set[str] = set()
    for name in names:
        with archive.open(f"{name}.npy") as stream:
            shape, by_column, dtype = _header(stream)
        kinds.add(storage(dtype, f"`{name}`"))
        if "uint8" in kinds and len(shape) not in (3, 4):
            raise DataError(
                f"`{name}` is uint8, so it has to be (N, C, H, W), (N, H, W, C) or (N, H, W), its shape is {shape}; "
                "convert other data with .astype('float32')"
            )
        if len(shape) < 2:
            raise DataError(f"`{name}` has to be (N, …), its shape is {shape}")
        if by_column:
            raise DataError(f"`{name}` is stored by columns; save numpy.ascontiguousarray of it")
        shapes.append(shape)
    first = shapes[0][1:]
    if any(shape[1:] != first for shape in shapes) or len(kinds) > 1:
        raise DataError(f"inputs of shapes {' and '.join(map(str, shapes))} ({', '.join(kinds)}) cannot be merged")
    total, (kind,) = sum(shape[0] for shape in shapes), kinds
    if total == 0:
        raise DataError("there has to be at least one sample")
    last = channels_last((total, *first))
    if last and kind != "uint8":
        raise DataError(
            f"inputs of shape {(total, *first)} look like (N, H, W, C); transpose them to (N, C, H, W) before saving"
        )
    forward = (first[2], *first[:2]) if last else (1, *first) if kind == "uint8" and len(first) == 2 else first
    shared = SharedArray.blank((total, *forward), kind)
    target = shared.array.transpose(0, 2, 3, 1) if last else shared.array.reshape(total, *first)
    ends = np.cumsum([shape[0] for shape in shapes])
    for name, part in zip(names, np.split(target, ends[:-1]), strict=True):
        _read_into(archive, name, part)
    return shared


def _read_into(archive: zipfile.ZipFile, name: str, target: NDArray[Any]) -> None:
    with archive.open(f"{name}.npy") as stream:
        _, _, dtype = _header(stream)
        size = int(np.prod(target.shape[1:])) * dtype.itemsize
        at_once = max(1, _PIECE // max(size, 1))
        for start in range(0, len(target), at_once):
            piece = target[start : start + at_once]
            data = stream.read(len(piece) * size)
            if len(data) < len(piece) * size:
                raise EOFError(f"{name} ends early")
            with np.errstate(over="ignore"):
                piece[:] = np.frombuffer(data, dtype).reshape(piece.shape)
            check_values(piece, f"`{name}`", start)
