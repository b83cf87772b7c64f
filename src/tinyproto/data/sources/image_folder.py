"""Any folder of images: one folder per class, or such folders under `train` and `val` or `test`, which are merged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tinyproto.data.decode import ImageFiles, decoded
from tinyproto.data.images import Images
from tinyproto.data.sources.base import MINUS_ONE_TO_ONE, LabelledNames, Request, check_first_classes, part_name
from tinyproto.errors import DataError

NAME = "image_folder"
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
PARTS = ("train", "val", "valid", "test")
"""Folders of these names, and no others, are parts of one dataset, merged in this order."""


@dataclass(frozen=True)
class Listing:
    """Image files below a folder in order, and their labels."""

    folder: Path
    paths: list[str]
    labels: list[int]
    classes: list[str]
    first_classes: int | None = None  # where there are more, which were left out

    @property
    def name(self) -> str:
        """All of the folder, or how much of it."""
        return part_name(NAME, self.first_classes)


def load(request: Request) -> Images:
    """All images; a network sees −1 to 1."""
    found = listing(request.root, request.first_classes)
    files = ImageFiles(
        name=NAME,
        folder=found.folder,
        paths=found.paths,
        colours="auto",
        size=request.image_size,
        remedy="replace or remove it",
        first_classes=found.first_classes,
    )
    shared = decoded(files, request.cache, request.progress)
    labels = torch.tensor(found.labels)
    return Images(found.name, shared.tensor, labels, len(found.classes), shared=shared, **MINUS_ONE_TO_ONE)


def labels(request: Request) -> LabelledNames:
    """The labels alone, for which nothing is decoded."""
    found = listing(request.root, request.first_classes)
    return LabelledNames(found.name, np.array(found.labels), len(found.classes))


def locate(root: Path | None) -> str:
    """Where the data is."""
    return "any folder with one folder of images per class: set data.root to it" if root is None else str(root)


def images_below(folder: Path) -> Iterator[str]:
    """Image files below a folder, relative to it: sorted folder by folder, those of a folder before its subfolders'."""
    for place, _, names in sorted(os.walk(folder, followlinks=True)):
        for name in sorted(names):
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                yield os.path.relpath(os.path.join(place, name), folder)  # noqa: PTH118


def subfolders(folder: Path) -> list[str]:
    """Names of the folders in a folder, sorted; hidden ones are not for us."""
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def listing(root: Path | None, first_classes: int | None = None) -> Listing:
    """The files and labels of a folder, or of its first so many classes, its parts one after another."""
    if root is None:
        raise DataError("data.root has to name the folder that holds one folder of images per class")
    if not root.is_dir():
        raise DataError(f"data.root: there is no folder {root}; it has to hold one folder of images per class")
    found = subfolders(root)
    parts = [part for part in PARTS if part in found] if found and set(found) <= set(PARTS) else [""]
    classes = subfolders(root / parts[0])
    if not classes:
        raise DataError(f"{root / parts[0]} has no folders; it has to hold one folder of images per class")
    count = check_first_classes(first_classes, len(classes), root)
    taken = classes[:count]
    paths: list[str] = []
    labels: list[int] = []
    for part in parts:
        for name in subfolders(root / part):
            if name not in classes:
                raise DataError(f"{root / part / name} is a class that {root / parts[0]} does not have")
            if name not in taken:
                continue
            below = [str(Path(part, name, path)) for path in images_below(root / part / name)]
            if not below:
                raise DataError(f"{root / part / name} has no images ({', '.join(SUFFIXES)}); add some or remove it")
            paths += below
            labels += [classes.index(name)] * len(below)
    return Listing(root, paths, labels, taken, count)
