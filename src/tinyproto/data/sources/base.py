"""Definitions that all sources share: the request, the result, and the names of datasets and parts of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tinyproto.data.dataset import Dataset, Dtype
from tinyproto.data.normalise import Normalise, with_normalisation
from tinyproto.errors import DataError

DEFAULT_ROOT = Path("data")
"""Folder of the datasets if no root is given; `tinyproto data fetch` writes there."""

Progress = Callable[[str, int, int], None]
"""Called with a description of the work, the amount completed and the total."""


def silent(what: str, done: int, total: int) -> None:
    """Report no progress."""


@dataclass(frozen=True)
class Request:
    """The arguments of a source, from the `data` section of a config."""

    root: Path | None = None
    cache: Path | None = None
    image_size: int | None = None
    progress: Progress = silent
    first_classes: int | None = None  # None: all classes
    label: str = "label"  # a table's column of labels
    columns: tuple[str, ...] | None = None  # a table's columns of features; None: all others
    vocabulary: int | None = None  # the number of token ids; None: from the samples
    normalise: Normalise = "auto"


@dataclass(frozen=True)
class Source:
    """A named dataset: the function that loads it, and where its files are."""

    read: Callable[[Request], Dataset]
    where: str | tuple[str, ...]  # a description, or the official names of the folder with its files
    always: tuple[int, tuple[int, ...]] | None = None  # K and the shape of a sample, if the same for every copy
    dtype: Dtype = "uint8"  # of its samples, unless its files decide
    columns: tuple[str, ...] | None = None  # names of its features, if the same for every copy

    def load(self, request: Request) -> Dataset:
        """Load the dataset, with the normalisation that the request asks for."""
        return with_normalisation(self.read(request), request.normalise)


def part_name(name: str, first_classes: int | None) -> str:
    """Return the name that results give to the first so many classes of a dataset."""
    return name if first_classes is None else f"{name}, first {first_classes} classes"


def full_name(name: str) -> str:
    """Return the name of the dataset without `part_name`'s suffix."""
    return re.sub(r", first \d+ classes$", "", name)


def check_first_classes(first_classes: int | None, num_classes: int, where: object) -> int | None:
    """Return the number of classes to take, or None for all of them; raise DataError if there are fewer."""
    if first_classes is None or first_classes == num_classes:
        return None
    if not 2 <= first_classes < num_classes:
        raise DataError(
            f"data.first_classes has to be between 2 and {num_classes}, the number of classes of {where}, "
            f"not {first_classes}"
        )
    return first_classes


def only_first_classes(images: Dataset, first_classes: int | None) -> Dataset:
    """Return the samples of the first `first_classes` classes in the same order, and free the memory of the others."""
    count = check_first_classes(first_classes, images.num_classes, images.name)
    if count is None:
        return images
    places = (images.labels < count).nonzero().flatten()
    if not len(places):
        raise DataError(f"{images.name} has no samples of its first {count} classes")
    assert images.shared is not None
    images.shared.keep(places.numpy())
    return replace(
        images,
        name=part_name(images.name, count),
        inputs=images.shared.tensor,
        labels=images.labels[places],
        num_classes=count,
        class_names=None if images.class_names is None else images.class_names[:count],
    )


def fetch_command(name: str, root: Path) -> str:
    """Return the command that downloads a dataset."""
    return f"tinyproto data fetch {name} --root {root}"


def fetch_again(folder: Path, name: str, root: Path) -> str:
    """Return the remedy for damaged files."""
    return f"remove {folder} and run: {fetch_command(name, root)}"
