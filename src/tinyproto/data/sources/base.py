"""What every source has in common: what it is asked for, what it gives, and how it says how far it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tinyproto.data.images import Images
from tinyproto.errors import DataError

DEFAULT_ROOT = Path("data")
"""Where files are looked for when no root is given, and where `tinyproto data fetch` puts them."""

MINUS_ONE_TO_ONE = {"scale": 2 / 255, "shift": -1.0}
"""Pixels 0 to 255 as the paper shows them to a network."""

Labels = NDArray[np.int64]
Progress = Callable[[str, int, int], None]
"""Is told what is being done, how much of it is done, and how much there is."""


def silent(what: str, done: int, total: int) -> None:
    """The progress that nobody watches."""


@dataclass(frozen=True)
class Request:
    """What a config's `data` section asks a source for."""

    root: Path | None = None
    cache: Path | None = None
    image_size: int | None = None
    progress: Progress = silent
    first_classes: int | None = None  # all, where it is None


@dataclass(frozen=True)
class LabelledNames:
    """A dataset without its pixels: enough to partition it."""

    name: str
    labels: Labels
    num_classes: int


@dataclass(frozen=True)
class Source:
    """A named dataset: how to load it, where it is found, and its labels alone where those come cheaper."""

    load: Callable[[Request], Images]
    locate: Callable[[Path | None], str]
    labels: Callable[[Request], LabelledNames] | None = None
    always: tuple[int, tuple[int, int, int]] | None = None  # K and (C, H, W), where whoever has it has the same

    def only_labels(self, request: Request) -> LabelledNames:
        """The labels in the order of the images."""
        if self.labels is not None:
            return self.labels(request)
        images = self.load(request)
        return LabelledNames(images.name, images.labels.numpy(), images.num_classes)


_PART = re.compile(r", first \d+ classes$")


def part_name(name: str, first_classes: int | None) -> str:
    """What all results call a dataset of which only the first so many classes were taken."""
    return name if first_classes is None else f"{name}, first {first_classes} classes"


def whole_name(name: str) -> str:
    """What the dataset is called that this is the first classes of; the name itself where it is not."""
    return _PART.sub("", name)


def check_first_classes(first_classes: int | None, num_classes: int, where: object) -> int | None:
    """How many are taken where that is fewer than there are; None where it is all of them."""
    if first_classes is None or first_classes == num_classes:
        return None
    if not 2 <= first_classes < num_classes:
        raise DataError(
            f"data.first_classes has to be 2 or more and at most the {num_classes} classes of {where}, "
            f"not {first_classes}"
        )
    return first_classes


def only_first_classes(images: Images, first_classes: int | None) -> Images:
    """The images of the first so many classes in the same order; their pool keeps no others."""
    count = check_first_classes(first_classes, images.num_classes, images.name)
    if count is None:
        return images
    places = (images.labels < count).nonzero().flatten()
    if not len(places):
        raise DataError(f"{images.name} has no images of its first {count} classes")
    assert images.shared is not None
    images.shared.keep(places.numpy())
    return replace(
        images,
        name=part_name(images.name, count),
        pixels=images.shared.tensor,
        labels=images.labels[places],
        num_classes=count,
    )


def fetch_command(name: str, root: Path) -> str:
    """The remedy for files that are not there."""
    return f"tinyproto data fetch {name} --root {root}"


def fetch_again(folder: Path, name: str, root: Path) -> str:
    """The remedy for files that are damaged."""
    return f"remove {folder} and run: {fetch_command(name, root)}"


def not_found(name: str, root: Path) -> str:
    """Where the data is, where it is not."""
    return f"not in {root}; get it with: {fetch_command(name, root)}"
