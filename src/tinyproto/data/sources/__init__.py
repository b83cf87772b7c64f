"""Where images come from; this is the list of the datasets that a config can name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tinyproto.data.images import Images
from tinyproto.data.sources import cifar, digits
from tinyproto.data.sources.base import LabelledNames, Progress, Request, Source, silent
from tinyproto.errors import DataError
from tinyproto.imports import unknown

SOURCES: Mapping[str, Source] = {
    "cifar10": cifar.source(cifar.CIFAR10),
    "cifar100": cifar.source(cifar.CIFAR100),
    "digits": Source(digits.load, digits.locate),
}


def check_name(name: str) -> None:
    """Refuse a dataset nobody knows."""
    if name not in SOURCES:
        raise DataError(unknown("dataset", name, SOURCES))


def load(name: str, root: str | Path | None = None) -> Images:
    """A dataset by name, from its files under `root` where it has any."""
    check_name(name)
    return SOURCES[name].load(Request(None if root is None else Path(root)))


def load_labels(name: str, request: Request) -> LabelledNames:
    """A dataset's labels, without decoding its images where that can be."""
    check_name(name)
    return SOURCES[name].only_labels(request)


__all__ = ["SOURCES", "LabelledNames", "Progress", "Request", "Source", "check_name", "load", "load_labels", "silent"]
