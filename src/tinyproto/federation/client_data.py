"""A client's samples: a folder of images, an .npz file, a table, or its share of a known dataset.

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

from tinyproto.config.data_section import DataSection, PartitionSection, Positive, Section, plain
from tinyproto.data.dataset import Dataset, FederatedData
from tinyproto.data.normalise import with_normalisation, with_statistics
from tinyproto.data.partition import Share, split_part, train_rows
from tinyproto.data.sources import SOURCES, Request, arrays, image_folder, tables
from tinyproto.data.sources.base import Progress, silent
from tinyproto.errors import DataError
from tinyproto.federation.refusals import Refusal
from tinyproto.federation.terms import InputTerms, Terms
from tinyproto.imports import unknown

TRAIN, TEST = {"x_train", "y_train"}, {"x_test", "y_test"}
SPLIT = "split"
"""The column of a table that may say which rows are for training and which for tests."""

TRAIN_FRACTION = 0.75
"""Fraction of a table's rows that are for training, if it has no such column."""


class ShareSection(Section):
    """For trials: a dataset and a partition of it; a client takes the share with its number."""

    data: DataSection = DataSection()
    partition: PartitionSection = PartitionSection()


class ClientDataSection(Section):
    """The place of a client's samples: a path, or a share of a dataset that each client can load."""

    path: str | None = Field(
        None, description="a folder with train/CLASS/… and test/CLASS/…, an .npz file with x_train, y_train, x_test "
        "and y_test, or a .csv or .parquet table"
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

    images: Dataset
    share: Share
    path: Path | None  # None for a share
    numbered: bool = False  # labels are integers, whatever the names of the classes


def client_data(section: ClientDataSection, client: int, terms: Terms) -> FederatedData:
    """Return a client's train and test part as a federation of one; raise Refusal if it does not fit the terms."""
    try:
        samples = read_samples(section, client, terms)
        images = _checked_inputs(_with_the_terms_labels(samples, terms), client, terms)
        images = with_statistics(with_normalisation(images, plain(terms.inputs.normalise)), samples.share.train)
    except DataError as error:
        raise Refusal("data", f"the data of client {client}: {error}") from error
    if images.num_classes != terms.num_classes:
        raise Refusal(
            "classes",
            f"the federation has {terms.num_classes} classes, the data of client {client} has {images.num_classes}",
        )
    return FederatedData(images, [samples.share])


def _checked_inputs(images: Dataset, client: int, terms: Terms) -> Dataset:
    """Return the images if their type, shape and token ids are those of the terms; raise Refusal otherwise."""
    inputs = terms.inputs
    if images.dtype != inputs.dtype:
        remedy = "the coordinator can set federation.dtype" if inputs.dtype == "uint8" else "convert them"
        raise Refusal(
            "shape",
            f"the federation's inputs are {inputs.dtype}, those of client {client} are {images.dtype}; {remedy}",
        )
    if list(images.input_shape) != terms.input_shape:
        raise Refusal(
            "shape",
            f"the federation's inputs are {_times(terms.input_shape)}, those of client {client} are "
            f"{_times(images.input_shape)}",
        )
    if None not in (images.columns, inputs.columns) and list(images.columns or ()) != inputs.columns:
        raise Refusal(
            "shape",
            f"the federation's columns are {inputs.columns}, those of client {client} are {list(images.columns or ())}",
        )
    if (images.vocabulary or 0) > (inputs.vocabulary or 0):
        raise Refusal(
            "shape",
            f"the federation has token ids 0 … {(inputs.vocabulary or 0) - 1}, client {client} has ids up to "
            f"{(images.vocabulary or 0) - 1}",
        )
    return replace(images, vocabulary=inputs.vocabulary)


def check_samples(section: ClientDataSection, client: int, progress: Progress = silent) -> None:
    """Raise DataError if a client's samples cannot be read; a table's columns are only known with the terms."""
    if section.path is not None and _is_table(section):
        tables.read_table(_path(section))
    else:
        read_samples(section, client, None, progress)


def read_samples(section: ClientDataSection, client: int, terms: Terms | None, progress: Progress = silent) -> Samples:
    """Read a client's samples; raise DataError if they cannot be read or hold nothing to train on."""
    path = _path(section)
    if section.share is not None:
        samples = _shared(section.share, client, progress)
    elif path.is_dir():
        samples = _from_folder(section, path, progress)
    else:
        samples = _from_table(path, client, terms) if _is_table(section) else _from_file(path)
    if not len(samples.share.train):
        raise DataError(f"{samples.path or 'its share'} has no training samples; each client needs at least one")
    return samples


def _shared(section: ShareSection, client: int, progress: Progress) -> Samples:
    images = SOURCES[section.data.name].load(section.data.request(progress))
    shares = section.partition.asked().shares(images.labels.numpy())
    if client >= len(shares):
        raise DataError(f"the partition has clients 0 … {len(shares) - 1}, not {client}")
    return Samples(with_statistics(images, train_rows(shares)), shares[client], None)


def _path(section: ClientDataSection) -> Path:
    return Path(str(section.path)).expanduser()


def _is_table(section: ClientDataSection) -> bool:
    return _path(section).suffix.lower() in tables.SUFFIXES


def _from_table(path: Path, client: int, terms: Terms | None) -> Samples:
    """Read the terms' columns; a column `split` has train or test for each row, else a quarter is drawn for tests."""
    inputs = InputTerms() if terms is None else terms.inputs
    if terms is None or inputs.columns is None or inputs.label is None:
        raise DataError(
            f"{path} is a table, but the federation's terms name no columns; the coordinator sets data.name to table, "
            "and data.columns"
        )
    table = tables.read_table(path)
    asked = Request(path, label=inputs.label, columns=tuple(inputs.columns), vocabulary=inputs.vocabulary)
    images = tables.table_dataset(table, asked, terms.classes)
    rows = np.arange(len(images))
    if SPLIT not in table:
        return Samples(images, split_part(rows, TRAIN_FRACTION, np.random.RandomState(client)), path)
    parts = np.array([str(part).strip() for part in table[SPLIT]])
    strange = sorted(set(parts) - {"train", "test"})
    if strange:
        raise DataError(f"{path}: column {SPLIT!r} has {strange[0]!r}; each row is train or test")
    return Samples(images, Share(train=rows[parts == "train"], test=rows[parts == "test"]), path)


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
        labels = found["y_train"]
    places = np.arange(len(images))
    share = Share(train=places[: len(labels)], test=places[len(labels) :])
    return Samples(images, share, path, numbered=labels.dtype.kind in "iub")


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
    return Samples(found.load(None, progress), share, path)


def _with_the_terms_labels(samples: Samples, terms: Terms) -> Dataset:
    """Return images labelled with the federation's class numbers; a client need not have all classes."""
    images, path = samples.images, samples.path
    if path is None and (terms.classes is None or images.class_names is None):
        return images
    if images.class_names is None or (samples.numbered and terms.classes is None):
        if images.num_classes > terms.num_classes:
            raise Refusal(
                "classes",
                f"{path} has label {images.num_classes - 1}, the federation has labels 0 … {terms.num_classes - 1}",
            )
        return replace(images, num_classes=terms.num_classes, class_names=_names(terms))
    known = [str(number) for number in range(terms.num_classes)] if terms.classes is None else terms.classes
    for name in images.class_names:
        if name not in known:
            place = "the share" if path is None else path / "train" / name if path.is_dir() else path
            raise Refusal("classes", f"{place}: {unknown('class', name, known)}")
    labels = torch.tensor([known.index(name) for name in images.class_names])[images.labels]
    return replace(images, labels=labels, num_classes=terms.num_classes, class_names=_names(terms))


def _names(terms: Terms) -> tuple[str, ...] | None:
    return None if terms.classes is None else tuple(terms.classes)


def _times(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape))
