"""Where images come from; this is the list of the datasets that a config can name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tinyproto.data.images import Images
from tinyproto.data.sources import digits
from tinyproto.errors import DataError
from tinyproto.imports import unknown


class Source:
    """A named dataset: how to load it from a root folder, and where it is found."""

    def __init__(self, load: Callable[[Path | None], Images], locate: Callable[[Path | None], str]) -> None:
        self.load = load
        self.locate = locate


SOURCES: Mapping[str, Source] = {"digits": Source(digits.load, digits.locate)}


def check_name(name: str) -> None:
    """Refuse a dataset nobody knows."""
    if name not in SOURCES:
        raise DataError(unknown("dataset", name, SOURCES))


def load(name: str, root: str | Path | None = None) -> Images:
    """A dataset by name, from its files under `root` where it has any."""
    check_name(name)
    return SOURCES[name].load(None if root is None else Path(root))
