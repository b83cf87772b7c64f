"""A client's samples: a folder of images, an .npz file, or its share of a known dataset.

They are read before any federation is known, so that errors show at once, and then checked against its terms.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from pydantic import Field, model_validator

from tinyproto.config.schema import DataSection, PartitionSection, Positive, Section
from tinyproto.data.images import FederatedData, Images
from tinyproto.data.partition import Share
from tinyproto.data.sources import SOURCES, Request, arrays, image_folder
from tinyproto.data.sources.base import Progress, silent
from tinyproto.errors import DataError
from tinyproto.federation.refusals import Refusal
from tinyproto.federation.terms import Terms
from tinyproto.imports import unknown

TRAIN, TEST = {"x_train", "y_train"}, {"x_test", "y_test"}


class ShareSection(Section):
    """For trials: a dataset and a partition of it; a client takes the share with its number."""

    data: DataSection = DataSection()
    partition: PartitionSection = PartitionSection()


class ClientDataSection(Section):
    """The place of a client's samples: a path, or a share of a dataset that each client can load."""

    path: str | None = Field(
        None, description="a folder with train/CLASS/… and test/CLASS/…, or an .npz file with x_train, y_train, x_test "
        "and y_test"
    )  # fmt: skip
    image_size: Positive | None = Field(None, description="height and width to which images of a folder are resized")
    share: ShareSection | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> ClientDataSection:
        if (self.path is None) == (self.share is None):
            raise ValueError("set either `path` or `share`")
        return self


@dataclass(frozen=True)
class Samples:
    """A client's samples, independent of any federation."""

    images: Images
    share: Share
    path: Path | None  # None for a share
    classes: Sequence[str] | None = None  # class names by label, if labels come from names of folders


def client_data(section: ClientDataSection, client: int, terms: Terms) -> FederatedData:
    """Return a client's train and test part as a federation of one; raise Refusal if it does not fit the terms."""
    try:
        samples = read_samples(section, client)
    except DataError as error:
        raise Refusal("data", f"the data of client {client}: {error}") from error
    images = _with_the_terms_labels(samples, terms)
    if images.num_classes != terms.num_classes:
        raise Refusal(
            "classes",
            f"the federation has {terms.num_classes} classes, the data of client {client} has {images.num_classes}",
        )
    if list(images.input_shape) != terms.input_shape:
        raise Refusal(
            "shape",
            f"the federation's images are {_times(terms.input_shape)}, those of client {client} are "
            f"{_times(images.input_shape)}",
        )
    return FederatedData(images, [samples.share])


def read_samples(section: ClientDataSection, client: int, progress: Progress = silent) -> Samples:
    """Read a client's samples; raise DataError if they cannot be read or hold nothing to train on."""
    if section.share is not None:
        samples = _shared(section.share, client, progress)
    else:
        path = Path(str(section.path)).expanduser()
        samples = _from_folder(section, path, progress) if path.is_dir() else _from_file(path)
    if not len(samples.share.train):
        raise DataError(f"{samples.path or 'its share'} has no training samples; each client needs at least one")
    return samples


def _shared(section: ShareSection, client: int, progress: Progress) -> Samples:
    images = SOURCES[section.data.name].load(section.data.request(progress))
    shares = section.partition.asked().shares(images.labels.numpy())
    if client >= len(shares):
        raise DataError(f"the partition has clients 0 … {len(shares) - 1}, not {client}")
    return Samples(images, shares[client], None)


def _from_file(path: Path) -> Samples:
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    there = _arrays_in(path)
    known = {name for pair in arrays.PAIRS for name in pair}
    if there is not None and known & set(there) not in (TRAIN, TRAIN | TEST):
        raise DataError(
            f"{path} must hold the arrays x_train and y_train, and may hold x_test and y_test; it has "
            f"{', '.join(there) or 'none'}"
        )
    images = arrays.load(Request(path))
    with np.load(path, allow_pickle=False) as found:
        train = len(found["y_train"])
    places = np.arange(len(images))
    return Samples(images, Share(train=places[:train], test=places[train:]), path)


def _arrays_in(path: Path) -> list[str] | None:
    """Return the names of the arrays; None if it is not an .npz file, which the loader reports."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except (OSError, zipfile.BadZipFile):
        return None


def _from_folder(section: ClientDataSection, path: Path, progress: Progress) -> Samples:
    """Read a folder with classes below `train`; its other parts are test samples."""
    if set(image_folder.subfolders(path)) - set(image_folder.PARTS) or not (path / "train").is_dir():
        raise DataError(
            f"{path} must hold the folder train, and may hold test, each with one folder of images for each class "
            "(train/CLASS/*.png)"
        )
    found = image_folder.listing(Request(path, image_size=section.image_size))
    parts = np.array([Path(file).parts[0] for file in found.paths])
    places = np.arange(len(parts))
    share = Share(train=places[parts == "train"], test=places[parts != "train"])
    return Samples(found.load(None, progress), share, path, found.classes)


def _with_the_terms_labels(samples: Samples, terms: Terms) -> Images:
    """Return images labelled with the federation's class numbers; a client need not have all classes."""
    images, path = samples.images, samples.path
    if path is None:
        return images
    if samples.classes is None:
        if images.num_classes > terms.num_classes:
            raise Refusal(
                "classes",
                f"{path} has label {images.num_classes - 1}, the federation has labels 0 … {terms.num_classes - 1}",
            )
        return replace(images, num_classes=terms.num_classes)
    known = [str(number) for number in range(terms.num_classes)] if terms.classes is None else terms.classes
    for name in samples.classes:
        if name not in known:
            raise Refusal("classes", f"{path / 'train' / name}: {unknown('class', name, known)}")
    labels = torch.tensor([known.index(name) for name in samples.classes])[images.labels]
    return replace(images, labels=labels, num_classes=terms.num_classes)


def _times(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape))
