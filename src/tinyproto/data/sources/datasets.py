"""Datasets of other libraries: a torch `Dataset`, any sequence of (input, label), or a Hugging Face split."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tinyproto.data.dataset import Dataset
from tinyproto.data.inputs import as_array
from tinyproto.data.normalise import Normalise
from tinyproto.data.sources.arrays import from_arrays
from tinyproto.errors import DataError


def from_dataset(
    dataset: Any, *, name: str | None = None, label: str = "label", columns: Sequence[str] | None = None,
    num_classes: int | None = None, class_names: Sequence[str] | None = None, vocabulary: int | None = None,
    normalise: Normalise = "auto",
) -> Dataset:  # fmt: skip
    """Make a dataset from another library's; all samples are read once, so a random augmentation is drawn once.

    Args:
        dataset: a torch `Dataset` or a sequence whose items are (input, label), or a Hugging Face `datasets` split.
        name: of the dataset in results; its own name if omitted.
        label: Hugging Face: the column of labels.
        columns: Hugging Face: the column of inputs, or several columns of numbers; all others if omitted.
        num_classes: K; from the labels or the dataset's names if omitted.
        class_names: by class number; those of the dataset (`classes`, or the features of a split) if omitted.
        vocabulary: the number of token ids; the highest id + 1 if omitted.
        normalise: as in `from_arrays`.

    """
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(f"{type(dataset).__name__} has no length or no items; pass list(dataset), or a part of it")
    if not len(dataset):
        raise DataError("there has to be at least one sample")
    features = None
    if hasattr(dataset, "column_names"):
        if not hasattr(dataset, "features"):
            raise DataError(f"choose a split, such as dataset[{next(iter(dataset))!r}]")
        inputs, labels, names, features = _columns(dataset, label, columns)
    else:
        inputs, labels, names = _pairs(dataset)
    return from_arrays(
        inputs, labels, name=name or _name(dataset), columns=features, num_classes=num_classes,
        class_names=class_names or names, vocabulary=vocabulary, normalise=normalise,
    )  # fmt: skip


def _pairs(dataset: Any) -> tuple[Any, Any, Sequence[str] | None]:
    """Read the items of a torch Dataset."""
    items = [dataset[place] for place in range(len(dataset))]
    if any(not isinstance(item, tuple | list) or len(item) != 2 for item in items):
        raise DataError("items have to be (input, label); wrap the dataset in one whose items are")
    labels = [item[1].item() if hasattr(item[1], "item") else item[1] for item in items]
    return _stacked(item[0] for item in items), labels, getattr(dataset, "classes", None)


def _columns(
    dataset: Any, label: str, wanted: Sequence[str] | None
) -> tuple[Any, Any, Sequence[str] | None, list[str] | None]:
    """Read a Hugging Face split: one column of any shape, or several columns of numbers as a table."""
    there = list(dataset.column_names)
    chosen = [name for name in there if name != label] if wanted is None else list(wanted)
    for name in (label, *chosen):
        if name not in there:
            raise DataError(f"there is no column {name!r}; the split has {', '.join(map(repr, there))}")
    plain = dataset.with_format(None)
    names = getattr(dataset.features[label], "names", None)
    read = [_stacked(plain[name]) for name in chosen]
    if len(chosen) == 1 and read[0].ndim > 1:
        return read[0], plain[label], names, None
    for name, values in zip(chosen, read, strict=True):
        if values.ndim != 1 or values.dtype.kind not in "iufb":
            raise DataError(
                f"column {name!r} is not one number per sample; choose one column of inputs, or columns of numbers: "
                "columns=[…]"
            )
    return np.column_stack(read).astype(np.float32), plain[label], names, chosen


def _stacked(values: Iterable[Any]) -> Any:
    """Stack samples to (N, …); images of PIL become (C, H, W)."""
    return as_array([_plain(value) for value in values])


def _plain(value: Any) -> Any:
    if not hasattr(value, "getbands"):  # not an image of PIL
        return value.detach().cpu().numpy() if hasattr(value, "detach") else value
    pixels = np.asarray(value if len(value.getbands()) in (1, 3) and value.mode != "P" else value.convert("RGB"))
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _name(dataset: Any) -> str:
    return str(getattr(getattr(dataset, "info", None), "dataset_name", None) or type(dataset).__name__.lower())
