"""A client's own samples: a folder of images, an .npz file, or its share of a known dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from pydantic import Field, model_validator

from tinyproto.config.schema import DataSection, PartitionSection, Positive, Section
from tinyproto.data.federation import FederatedData
from tinyproto.data.images import Images
from tinyproto.data.partition import Share
from tinyproto.data.sources import SOURCES, Request, arrays, image_folder
from tinyproto.errors import DataError
from tinyproto.flower.refusal import Refusal
from tinyproto.flower.terms import Terms
from tinyproto.imports import unknown

NEEDED = "every client needs something to train on"


class ShareSection(Section):
    """For trying things out: a dataset and a partition of it, of which a client takes the part of its id."""

    data: DataSection = DataSection()
    partition: PartitionSection = PartitionSection()


class OwnDataSection(Section):
    """Where a client's samples are: at a path, or in a share of a dataset that everyone has."""

    path: str | None = Field(
        None, description="a folder with train/CLASS/… and test/CLASS/…, or an .npz file with x_train, y_train, x_test "
        "and y_test"
    )  # fmt: skip
    image_size: Positive | None = Field(None, description="height and width that images of a folder are brought to")
    cache: str | None = Field(None, description="where decoded images of a folder are kept; null: beside them")
    share: ShareSection | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> OwnDataSection:
        if (self.path is None) == (self.share is None):
            raise ValueError("either `path` or `share` says where a client's data is")
        return self


def own_data(section: OwnDataSection, client: int, terms: Terms) -> FederatedData:
    """A client's train and test part, as a federation of one; what does not fit the terms is refused."""
    try:
        images, share = _shared(section.share, client) if section.share else _from_path(section, terms)
    except DataError as error:
        raise Refusal("data", f"the data of client {client}: {error}") from error
    if images.num_classes != terms.num_classes:
        raise Refusal(
            "classes",
            f"the federation has {terms.num_classes} classes, the data of client {client} {images.num_classes}",
        )
    if list(images.input_shape) != terms.input_shape:
        raise Refusal(
            "shape",
            f"the federation's images are {_times(terms.input_shape)}, those of client {client} "
            f"{_times(images.input_shape)}",
        )
    return FederatedData(images, [share])


def _shared(section: ShareSection, client: int) -> tuple[Images, Share]:
    images = SOURCES[section.data.name].load(section.data.request())
    shares = section.partition.asked().shares(images.labels.numpy())
    if client >= len(shares):
        raise DataError(f"the partition has clients 0 … {len(shares) - 1}")
    return images, shares[client]


def _from_path(section: OwnDataSection, terms: Terms) -> tuple[Images, Share]:
    path = Path(str(section.path)).expanduser()
    return _from_folder(section, path, terms) if path.is_dir() else _from_file(path, terms)


def _from_file(path: Path, terms: Terms) -> tuple[Images, Share]:
    images = arrays.load(Request(path))
    with np.load(path, allow_pickle=False) as found:
        if "y_train" not in found.files:
            raise DataError(f"{path} has to hold the arrays x_train and y_train, and x_test and y_test to test on")
        train = len(found["y_train"])
    if not train:
        raise DataError(f"{path} has an empty x_train; {NEEDED}")
    if images.num_classes > terms.num_classes:
        raise Refusal(
            "classes", f"{path} has label {images.num_classes - 1}, the federation has 0 … {terms.num_classes - 1}"
        )
    places = np.arange(len(images))
    return replace(images, num_classes=terms.num_classes), Share(train=places[:train], test=places[train:])


def _from_folder(section: OwnDataSection, path: Path, terms: Terms) -> tuple[Images, Share]:
    """Its folders are called by the federation's classes: by their names, or where it has none by their numbers."""
    found = image_folder.listing(path)
    parts = np.array([Path(file).parts[0] for file in found.paths])
    if set(parts) - set(image_folder.PARTS):
        raise DataError(f"{path} has to hold the folder train, and test beside it, each with one folder per class")
    places = np.arange(len(parts))
    share = Share(train=places[parts == "train"], test=places[parts != "train"])
    if not len(share.train):
        raise DataError(f"{path} has no folder train; {NEEDED}")
    known = [str(number) for number in range(terms.num_classes)] if terms.classes is None else terms.classes
    for name in found.classes:
        if name not in known:
            raise Refusal("classes", f"{path / 'train' / name}: {unknown('class', name, known)}")
    cache = None if section.cache is None else Path(section.cache).expanduser()
    images = image_folder.load(Request(path, cache, section.image_size))
    labels = torch.tensor([known.index(name) for name in found.classes])[images.labels]
    return replace(images, labels=labels, num_classes=terms.num_classes), share


def _times(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape))
