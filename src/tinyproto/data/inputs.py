"""Inputs of any kind to a dataset: which arrays can be used, as what they are stored, and what is wrong with others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinyproto.data.dataset import Dataset, Factor, SharedArray
from tinyproto.data.labels import Labels
from tinyproto.errors import DataError

MINUS_ONE_TO_ONE = {"scale": 2 / 255, "shift": -1.0}
"""Pixels 0 to 255 as the paper shows them to a network."""

CHANNELS = (1, 3, 4)
_NORMALISATION: dict[str, tuple[Factor | None, Factor | None]] = {
    "uint8": (MINUS_ONE_TO_ONE["scale"], MINUS_ONE_TO_ONE["shift"]),
    "float32": (None, None),
    "int64": (1.0, 0.0),
}


def as_array(values: Any, what: str = "inputs") -> NDArray[Any]:
    """Return an array, a tensor or nested lists as an array; raise DataError if samples differ in shape."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()  # numpy has no bfloat16
    try:
        return np.asarray(values)
    except ValueError as error:
        raise DataError(f"{what} differ in shape; crop, pad or resize them to one shape") from error


def storage(dtype: np.dtype[Any], what: str = "inputs") -> str:
    """Return how inputs of this type are stored: uint8, float32 or int64; raise DataError if they cannot be used."""
    if dtype == np.uint8:
        return "uint8"
    if dtype.kind in "fb":
        return "float32"
    if dtype in (np.int32, np.int64):
        return "int64"
    if dtype.kind in "iu":
        raise DataError(
            f"{what}: {dtype} may be measurements or token ids; say which with .astype('float32') or .astype('int64')"
        )
    text = "; turn text into token ids first" if dtype.kind in "UOST" else ""
    raise DataError(f"{what} have to be numbers (uint8, float32 or int64), not {dtype}{text}")


def check_values(values: NDArray[Any], what: str = "inputs", first: int = 0) -> None:
    """Raise DataError if a value is NaN or infinite, or a token id negative; `first` is the number of sample 0."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        place = np.argwhere(~np.isfinite(values))[0]
        raise DataError(
            f"{what}: sample {first + place[0]} has the value {values[tuple(place)]}; fill it in or remove the sample"
        )
    if values.dtype.kind == "i" and values.size and values.min() < 0:
        raise DataError(
            f"{what}: token ids are 0 or more, these start at {values.min()}; "
            "convert measurements with .astype('float32')"
        )


def channels_last(shape: Sequence[int]) -> bool:
    """Return True if (N, …) looks like images (N, H, W, C)."""
    return len(shape) == 4 and shape[3] in CHANNELS and shape[1] not in CHANNELS


def assembled(
    name: str, values: Tensor, labels: Labels, class_names: tuple[str, ...] | None = None, *,
    num_classes: int | None = None, columns: Sequence[str] | None = None, vocabulary: int | None = None,
    shared: SharedArray | None = None,
) -> Dataset:  # fmt: skip
    """Return the dataset of stored inputs (N, …) and class numbers (N,); raise DataError if they do not fit."""
    targets = torch.from_numpy(labels)
    if targets.dim() != 1 or len(targets) != len(values):
        raise DataError(f"{len(values)} samples need as many labels, these have shape {tuple(targets.shape)}")
    if len(targets) == 0:
        raise DataError("there has to be at least one sample")
    dtype = str(values.dtype).removeprefix("torch.")
    lowest, highest = int(targets.min()), int(targets.max())
    classes = num_classes or (highest + 1 if class_names is None else len(class_names))
    if lowest < 0 or highest >= classes:
        raise DataError(f"labels have to be in 0 … {classes - 1}, these are in {lowest} … {highest}")
    if class_names is not None and len(class_names) != classes:
        raise DataError(f"{classes} classes need as many class_names, not {len(class_names)}")
    if columns is not None and (len(columns),) != tuple(values.shape[1:]):
        raise DataError(f"samples of shape {tuple(values.shape[1:])} cannot have {len(columns)} columns")
    scale, shift = _NORMALISATION[dtype]
    return Dataset(
        name, values, targets, classes, scale, shift, shared, class_names,
        None if columns is None else tuple(columns), _vocabulary(values, dtype, vocabulary),
    )  # fmt: skip


def _vocabulary(values: Tensor, dtype: str, given: int | None) -> int | None:
    """Return the number of token ids, None for inputs that are not token ids; raise DataError if ids exceed it."""
    if dtype != "int64":
        if given is not None:
            raise DataError(f"vocabulary is for token ids (int64), these inputs are {dtype}; remove it or convert them")
        return None
    highest = int(values.max())
    if given is not None and highest >= given:
        raise DataError(f"vocabulary is {given}, so token ids are 0 … {given - 1}, but one is {highest}")
    return highest + 1 if given is None else given
