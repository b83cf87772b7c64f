"""Any folder of images: one folder per class, or such folders under `train` and `val` or `test`, which are merged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tinyproto.data.dataset import Dataset
from tinyproto.data.decode import ImageFiles
from tinyproto.data.sources.base import Request, check_first_classes, part_name
from tinyproto.errors import DataError

NAME = "image_folder"
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
PARTS = ("train", "val", "valid", "test")
"""A folder that has no subfolders but these has several parts, which are merged in this order."""


def load(request: Request) -> Dataset:
    """Load the images of a folder."""
    return listing(request).load(request.cache, request.progress)


def images_below(folder: Path) -> Iterator[str]:
    """Yield image files below a folder, relative to it, sorted; the files of a folder precede its subfolders."""
    for place, _, names in sorted(os.walk(folder, followlinks=True)):
        for name in sorted(names):
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                yield os.path.relpath(os.path.join(place, name), folder)  # noqa: PTH118


def subfolders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted, without hidden ones."""
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def listing(request: Request) -> ImageFiles:
    """List the images of a folder, or of its first so many classes, part by part."""
    root = request.root
    if root is None:
        raise DataError("data.root has to name the folder that holds one folder of images per class")
    if not root.is_dir():
        raise DataError(f"data.root: no folder at {root}; it has to hold one folder of images per class")
    found = subfolders(root)
    parts = [part for part in PARTS if part in found] if found and set(found) <= set(PARTS) else [""]
    classes = subfolders(root / parts[0])
    if not classes:
        raise DataError(f"{root / parts[0]} has no folders; it has to hold one folder of images per class")
    count = check_first_classes(request.first_classes, len(classes), root)
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
    return ImageFiles(
        source=NAME,
        name=part_name(root.resolve().name or NAME, count),
        folder=root,
        paths=paths,
        labels=labels,
        classes=taken,
        first_classes=count,
        size=request.image_size,
        remedy="replace or remove it",
    )
