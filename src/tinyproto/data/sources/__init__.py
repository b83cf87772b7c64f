"""The datasets that a config can name, and functions that load them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tinyproto.data.decode import source_of_files
from tinyproto.data.images import Images
from tinyproto.data.sources import arrays, cifar, image_folder, tiny_imagenet
from tinyproto.data.sources.base import LabelledNames, Progress, Request, Source, full_name, part_name, silent
from tinyproto.errors import DataError
from tinyproto.imports import unknown

SOURCES: Mapping[str, Source] = {
    "cifar10": cifar.source(cifar.CIFAR10),
    "cifar100": cifar.source(cifar.CIFAR100),
    "tiny_imagenet": source_of_files(tiny_imagenet.listing, tiny_imagenet.locate, always=(200, (3, 64, 64))),
    "image_folder": source_of_files(image_folder.listing, image_folder.locate),
    "npz": Source(arrays.load, arrays.locate),
    "digits": Source(arrays.load_digits, arrays.locate_digits, always=(10, (1, 8, 8))),
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


def load_labels(name: str, request: Request) -> LabelledNames:
    """Load the labels of a dataset, without decoding its images if possible."""
    source = find_source(name)
    if source.labels is not None:
        return source.labels(request)
    images = source.load(request)
    return LabelledNames(images.name, images.labels.numpy(), images.num_classes)


__all__ = [
    "SOURCES", "LabelledNames", "Progress", "Request", "Source", "find_source", "full_name", "load", "load_labels",
    "part_name", "silent",
]  # fmt: skip
