"""What every source has in common: what it is asked for, what it gives, and how it says how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tinyproto.data.images import Images

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


def fetch_command(name: str, root: Path) -> str:
    """The remedy for files that are not there."""
    return f"tinyproto data fetch {name} --root {root}"


def fetch_again(folder: Path, name: str, root: Path) -> str:
    """The remedy for files that are damaged."""
    return f"remove {folder} and run: {fetch_command(name, root)}"


def not_found(name: str, root: Path) -> str:
    """Where the data is, where it is not."""
    return f"not in {root}; get it with: {fetch_command(name, root)}"
