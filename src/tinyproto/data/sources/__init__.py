"""The datasets that a config can name, and functions that load them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tinyproto.data.images import Images
from tinyproto.data.sources import arrays, cifar, image_folder, tiny_imagenet
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

SOURCES: Mapping[str, Source] = {
    "cifar10": cifar.source(cifar.CIFAR10),
    "cifar100": cifar.source(cifar.CIFAR100),
    "tiny_imagenet": Source(tiny_imagenet.load, (tiny_imagenet.FOLDER,), always=(200, (3, 64, 64))),
    "image_folder": Source(image_folder.load, "any folder with one folder of images per class: set data.root to it"),
    "npz": Source(arrays.load, "any .npz file with images and labels: set data.root to it"),
    "digits": Source(arrays.load_digits, "embedded in scikit-learn", always=(10, (1, 8, 8))),
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
    progress: Progress = silent,
) -> Images:
    """Load a dataset by name.

    Args:
        name: cifar10, cifar100, tiny_imagenet, image_folder, npz or digits.
        root: the folder that holds the files, or the .npz file; `data` if omitted.
        image_size: image_folder only: height and width to resize all images to.
        cache: the folder for decoded images; beside the images if omitted.
        first_classes: the number of classes to take, in the dataset's order; all if omitted.
        progress: called while images are decoded.

    """
    found, kept = (None if path is None else Path(path) for path in (root, cache))
    return find_source(name).load(Request(found, kept, image_size, progress, first_classes))


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
