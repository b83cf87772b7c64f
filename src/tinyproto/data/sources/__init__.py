"""Where images come from; this is the list of the datasets that a config can name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tinyproto.data.images import Images
from tinyproto.data.sources import arrays, cifar, digits, image_folder, tiny_imagenet
from tinyproto.data.sources.base import LabelledNames, Progress, Request, Source, part_name, silent, whole_name
from tinyproto.errors import DataError
from tinyproto.imports import unknown

SOURCES: Mapping[str, Source] = {
    "cifar10": cifar.source(cifar.CIFAR10),
    "cifar100": cifar.source(cifar.CIFAR100),
    "tiny_imagenet": Source(tiny_imagenet.load, tiny_imagenet.locate, tiny_imagenet.labels, always=(200, (3, 64, 64))),
    "image_folder": Source(image_folder.load, image_folder.locate, image_folder.labels),
    "npz": Source(arrays.load, arrays.locate),
    "digits": Source(digits.load, digits.locate, always=(10, (1, 8, 8))),
}


def check_name(name: str) -> None:
    """Refuse a dataset nobody knows."""
    if name not in SOURCES:
        raise DataError(unknown("dataset", name, SOURCES))


def load(
    name: str,
    root: str | Path | None = None,
    *,
    image_size: int | None = None,
    cache: str | Path | None = None,
    first_classes: int | None = None,
    progress: Progress = silent,
) -> Images:
    """A dataset by name, from its files under `root` where it has any.

    Args:
        name: cifar10, cifar100, tiny_imagenet, image_folder, npz or digits.
        root: the folder that holds the files, or the .npz file; `data` if left out.
        image_size: image_folder only: height and width that all images are brought to.
        cache: where decoded images are kept; beside the images if left out.
        first_classes: only so many classes, the first in the dataset's order; all if left out.
        progress: is told how far the decoding is.

    """
    check_name(name)
    found, kept = (None if path is None else Path(path) for path in (root, cache))
    return SOURCES[name].load(Request(found, kept, image_size, progress, first_classes))


def load_labels(name: str, request: Request) -> LabelledNames:
    """A dataset's labels, without decoding its images where that can be."""
    check_name(name)
    return SOURCES[name].only_labels(request)


__all__ = [
    "SOURCES", "LabelledNames", "Progress", "Request", "Source", "check_name", "load", "load_labels", "part_name",
    "silent", "whole_name",
]  # fmt: skip
