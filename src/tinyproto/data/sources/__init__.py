"""The datasets that a config can name, and functions that load them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tinyproto.data.dataset import Dataset, Dtype
from tinyproto.data.normalise import Normalise
from tinyproto.data.sources import arrays, cifar, embedded, image_folder, tables, tiny_imagenet
from tinyproto.data.sources.base import (
    DEFAULT_ROOT,
    Progress,
    Request,
    Source,
    fetch_command,
    full_name,
    part_name,
    silent,
)
from tinyproto.errors import DataError
from tinyproto.imports import unknown

F32: Dtype = "float32"

SOURCES: Mapping[str, Source] = {
    "cifar10": cifar.source(cifar.CIFAR10),
    "cifar100": cifar.source(cifar.CIFAR100),
    "tiny_imagenet": Source(tiny_imagenet.load, (tiny_imagenet.FOLDER,), always=(200, (3, 64, 64))),
    "image_folder": Source(image_folder.load, "any folder with one folder of images per class: set data.root to it"),
    "npz": Source(arrays.load, "any .npz file with inputs and labels: set data.root to it"),
    "table": Source(tables.load, "any .csv or .parquet file with a column of labels: set data.root to it", None, F32),
    "digits": Source(embedded.load_digits, "embedded in scikit-learn", always=(10, (1, 8, 8))),
    "wine": Source(embedded.load_wine, "embedded in scikit-learn", (3, (13,)), F32, embedded.WINE_COLUMNS),
    "signals": Source(embedded.load_signals, "drawn on use", (len(embedded.WAVES), (1, embedded.LENGTH)), F32),
}


def find_source(name: str) -> Source:
    """Return the source of a dataset; raise DataError if the name is unknown."""
    if name not in SOURCES:
        raise DataError(unknown("dataset", name, SOURCES))
    return SOURCES[name]


def load(
    name: str,
    root: str | Path | None = None,
    *,
    image_size: int | None = None,
    cache: str | Path | None = None,
    first_classes: int | None = None,
    label: str = "label",
    columns: Sequence[str] | None = None,
    vocabulary: int | None = None,
    normalise: Normalise = "auto",
    progress: Progress = silent,
) -> Dataset:
    """Load a dataset by name.

    Args:
        name: cifar10, cifar100, tiny_imagenet, image_folder, npz, table, digits, wine or signals.
        root: the folder that holds the files, or the .npz, .csv or .parquet file; `data` if omitted.
        image_size: image_folder only: height and width to resize all images to.
        cache: the folder for decoded images; beside the images if omitted.
        first_classes: the number of classes to take, in the dataset's order; all if omitted.
        label: table only: the column of labels.
        columns: table only: the columns of features; all other columns if omitted.
        vocabulary: table and npz: the number of token ids; a table then holds token ids.
        normalise: as in `from_arrays`.
        progress: called while images are decoded.

    """
    found, kept = (None if path is None else Path(path) for path in (root, cache))
    chosen = None if columns is None else tuple(columns)
    return find_source(name).load(
        Request(found, kept, image_size, progress, first_classes, label, chosen, vocabulary, normalise)
    )


def locate(name: str, root: Path = DEFAULT_ROOT) -> str:
    """Return where the files of a dataset are, or how to get them."""
    where = SOURCES[name].where
    if isinstance(where, str):
        return where
    found = next((root / folder for folder in where if (root / folder).is_dir()), None)
    return f"not in {root}; get it with: {fetch_command(name, root)}" if found is None else str(found)


__all__ = [
    "SOURCES", "Progress", "Request", "Source", "find_source", "full_name", "load", "locate", "part_name", "silent",
]  # fmt: skip
