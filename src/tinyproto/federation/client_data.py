"""A client's own samples: a folder of images, an .npz file, or its share of a known dataset.

They are read without knowing any federation, so that what is wrong with them shows at once; then held to its terms.
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
from tinyproto.federation.refusal import Refusal
from tinyproto.federation.terms import Terms
from tinyproto.imports import unknown

NEEDED = "every client needs something to train on"
TRAIN, TEST = {"x_train", "y_train"}, {"x_test", "y_test"}


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


@dataclass(frozen=True)
class Samples:
    """What a client has, whichever federation asks."""

    images: Images
    share: Share
    path: Path | None  # None for a share of a dataset that everyone has
    classes: Sequence[str] | None = None  # names that labels stand for, where they are no numbers of the federation's


def own_data(section: OwnDataSection, client: int, terms: Terms) -> FederatedData:
    """A client's train and test part, as a federation of one; what does not fit the terms is refused."""
    try:
        samples = read_samples(section, client)
    except DataError as error:
        raise Refusal("data", f"the data of client {client}: {error}") from error
    images = _as_the_terms_count(samples, terms)
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
    return FederatedData(images, [samples.share])


def read_samples(section: OwnDataSection, client: int, progress: Progress = silent) -> Samples:
    """A client's samples, as far as they can be judged alone; a DataError where they cannot be trained on."""
    if section.share is not None:
        samples = _shared(section.share, client, progress)
    else:
        path = Path(str(section.path)).expanduser()
        samples = _from_folder(section, path, progress) if path.is_dir() else _from_file(path)
    if not len(samples.share.train):
        raise DataError(f"{samples.path or 'its share'} has nothing in its training part; {NEEDED}")
    return samples


def _shared(section: ShareSection, client: int, progress: Progress) -> Samples:
    images = SOURCES[section.data.name].load(section.data.request(progress))
    shares = section.partition.asked().shares(images.labels.numpy())
    if client >= len(shares):
        raise DataError(f"the partition has clients 0 … {len(shares) - 1}")
    return Samples(images, shares[client], None)


def _from_file(path: Path) -> Samples:
    if not path.is_file():
        raise DataError(f"there is nothing at {path}")
    there = _arrays_in(path)
    known = {name for pair in arrays.PAIRS for name in pair}
    if there is not None and known & set(there) not in (TRAIN, TRAIN | TEST):
        raise DataError(
            f"{path} has to hold the arrays x_train and y_train, and x_test and y_test to test on, not "
            f"{', '.join(there) or 'none'}"
        )
    images = arrays.load(Request(path))
    with np.load(path, allow_pickle=False) as found:
        train = len(found["y_train"])
    places = np.arange(len(images))
    return Samples(images, Share(train=places[:train], test=places[train:]), path)


def _arrays_in(path: Path) -> list[str] | None:
    """Their names; None where it is no .npz file, which loading it says better."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except (OSError, zipfile.BadZipFile):
        return None


def _from_folder(section: OwnDataSection, path: Path, progress: Progress) -> Samples:
    """Folders of classes below `train`, and to test on below others."""
    if set(image_folder.subfolders(path)) - set(image_folder.PARTS) or not (path / "train").is_dir():
        raise DataError(
            f"{path} has to hold the folder train, and test beside it, each with one folder of images per class "
            "(train/CLASS/*.png)"
        )
    found = image_folder.listing(path)
    parts = np.array([Path(file).parts[0] for file in found.paths])
    places = np.arange(len(parts))
    share = Share(train=places[parts == "train"], test=places[parts != "train"])
    cache = None if section.cache is None else Path(section.cache).expanduser()
    images = image_folder.load(Request(path, cache, section.image_size, progress))
    return Samples(images, share, path, found.classes)


def _as_the_terms_count(samples: Samples, terms: Terms) -> Images:
    """Labels as the federation counts its classes, of which a client that has data of its own need not have all."""
    images, path = samples.images, samples.path
    if path is None:
        return images
    if samples.classes is None:
        if images.num_classes > terms.num_classes:
            raise Refusal(
                "classes", f"{path} has label {images.num_classes - 1}, the federation has 0 … {terms.num_classes - 1}"
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
