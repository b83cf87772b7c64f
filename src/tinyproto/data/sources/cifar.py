"""CIFAR-10 and CIFAR-100 from the official files, in binary or python layout: 60 000 images, train before test."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tinyproto.data.dataset import Dataset, SharedArray
from tinyproto.data.inputs import assembled
from tinyproto.data.labels import Labels
from tinyproto.data.sources.base import (
    DEFAULT_ROOT,
    Request,
    Source,
    fetch_again,
    fetch_command,
    only_first_classes,
)
from tinyproto.data.sources.cifar_python import PickledArray, Refused, read_batch
from tinyproto.errors import DataError

PIXELS = 3 * 32 * 32
CHUNK = 1000
"""Number of records read at a time."""


@dataclass(frozen=True)
class Layout:
    """One of the two official layouts: a folder, and its files in order with their published checksums."""

    folder: str
    files: Mapping[str, str]
    algorithm: str  # of the checksums
    names: str  # the file with the names of the classes, which may be missing


@dataclass(frozen=True)
class Cifar:
    """One of the two datasets."""

    name: str
    num_classes: int
    label_bytes: int  # per binary record; the last of them is the label
    label_key: str  # of the python layout
    names_key: str  # of the python layout's file of names
    first_labels: Sequence[int]  # identify the official images
    binary: Layout
    python: Layout


CIFAR10 = Cifar(
    name="cifar10",
    num_classes=10,
    label_bytes=1,
    label_key="labels",
    names_key="label_names",
    first_labels=(6, 9, 9, 4, 1, 1, 2, 7, 8, 3),
    binary=Layout(
        "cifar-10-batches-bin",
        {
            "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
            "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
            "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
            "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
            "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
            "test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c",
        },
        "sha1",
        "batches.meta.txt",
    ),
    python=Layout(
        "cifar-10-batches-py",
        {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
        "md5",
        "batches.meta",
    ),
)
CIFAR100 = Cifar(
    name="cifar100",
    num_classes=100,
    label_bytes=2,
    label_key="fine_labels",
    names_key="fine_label_names",
    first_labels=(19, 29, 0, 11, 1, 86, 90, 28, 23, 31),
    binary=Layout(
        "cifar-100-binary",
        {
            "train.bin": "e207cd2e05b73b1393c74c7f5e7bea451d63e08e",
            "test.bin": "8fb6623e830365ff53cf14adec797474f5478006",
        },
        "sha1",
        "fine_label_names.txt",
    ),
    python=Layout(
        "cifar-100-python",
        {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        "md5",
        "meta",
    ),
)

Fill = Callable[[NDArray[np.uint8], Labels], None]
"""Copies the images and labels of one file into these arrays."""


def load(cifar: Cifar, request: Request) -> Dataset:
    """Load all images of the layout that exists; verify the published checksums if these are the official images."""
    root = request.root or DEFAULT_ROOT
    folder, layout = _find(cifar, root)
    try:
        images = _load(cifar, folder, layout)
    except (OSError, Refused) as error:
        raise DataError(f"{error}; {fetch_again(folder, cifar.name, root)}") from error
    return only_first_classes(images, request.first_classes)


def source(cifar: Cifar) -> Source:
    """Return the source of one of the two datasets."""
    folders = (cifar.binary.folder, cifar.python.folder)
    return Source(partial(load, cifar), folders, always=(cifar.num_classes, (3, 32, 32)))


def _find(cifar: Cifar, root: Path) -> tuple[Path, Layout]:
    """Return the folder that has files of a layout (the official folder in the root, or the root), and the layout."""
    for layout in (cifar.binary, cifar.python):
        for folder in (root / layout.folder, root):
            there = [name for name in layout.files if (folder / name).is_file()]
            missing = [name for name in layout.files if name not in there]
            if there and missing:
                raise DataError(f"{folder / missing[0]} is missing; {fetch_again(folder, cifar.name, root)}")
            if there:
                return folder, layout
    wanted = " nor ".join(str(root / layout.folder) for layout in (cifar.binary, cifar.python))
    raise DataError(
        f"{cifar.name} is missing: neither {wanted} exists; set data.root to the folder that holds one of them, or "
        f"run: {fetch_command(cifar.name, root)}"
    )


def _load(cifar: Cifar, folder: Path, layout: Layout) -> Dataset:
    measure = _measure_binary if layout is cifar.binary else _measure_python
    pieces = [(folder / name, *measure(cifar, folder / name)) for name in layout.files]
    total = sum(count for _, count, _ in pieces)
    shared = SharedArray.blank((total, 3, 32, 32))
    rows, labels = shared.array.reshape(total, PIXELS), np.empty(total, dtype=np.int64)
    start = 0
    for path, count, fill in pieces:
        place = slice(start, start + count)
        fill(rows[place], labels[place])
        if labels[place].min() < 0 or labels[place].max() >= cifar.num_classes:
            raise Refused(f"{path} is corrupt: its labels are not all in 0 … {cifar.num_classes - 1}")
        start += count
    if tuple(labels[: len(cifar.first_labels)].tolist()) == tuple(cifar.first_labels):
        _check(folder, layout)
    names = _class_names(cifar, folder, layout)
    return assembled(cifar.name, shared.tensor, labels, names, num_classes=cifar.num_classes, shared=shared)


def _class_names(cifar: Cifar, folder: Path, layout: Layout) -> tuple[str, ...] | None:
    """Read the names of the classes from the layout's own file; return None if it is missing or of other classes."""
    file = folder / layout.names
    try:
        if layout is cifar.binary:
            names = tuple(file.read_text(encoding="utf-8").split())
        else:
            with file.open("rb") as opened:
                names = tuple(name.decode() for name in read_batch(opened).get(cifar.names_key, ()))
    except (OSError, UnicodeDecodeError, AttributeError, Refused):
        return None
    return names if len(set(names)) == cifar.num_classes == len(names) else None


def _check(folder: Path, layout: Layout) -> None:
    for name, published in layout.files.items():
        with (folder / name).open("rb") as file:
            found = hashlib.file_digest(file, layout.algorithm).hexdigest()
        if found != published:
            raise Refused(
                f"{folder / name} is corrupt or truncated: its {layout.algorithm} is {found}, not {published}"
            )


def _measure_binary(cifar: Cifar, path: Path) -> tuple[int, Fill]:
    """Return the number of records of a file and a function that reads them: label bytes, then red, green and blue."""
    record = cifar.label_bytes + PIXELS
    size = path.stat().st_size
    if size == 0 or size % record:
        raise Refused(f"{path} is truncated: {size} bytes are not a multiple of {record}, the size of a record")

    def fill(rows: NDArray[np.uint8], labels: Labels) -> None:
        with path.open("rb") as file:
            for start in range(0, len(labels), CHUNK):
                count = min(CHUNK, len(labels) - start)
                block = np.frombuffer(file.read(count * record), np.uint8).reshape(count, record)
                rows[start : start + count] = block[:, cifar.label_bytes :]
                labels[start : start + count] = block[:, cifar.label_bytes - 1]

    return size // record, fill


def _measure_python(cifar: Cifar, path: Path) -> tuple[int, Fill]:
    """Return the number of images of a batch and a function that reads them."""
    try:
        with path.open("rb") as file:
            batch = read_batch(file)
    except Refused as refused:
        raise Refused(f"{path} {refused}") from refused
    data, given = batch.get("data"), batch.get(cifar.label_key)
    if not isinstance(data, PickledArray) or not isinstance(given, list):
        raise Refused(f"{path} is not a batch of {cifar.name}: it needs `data` and `{cifar.label_key}`")
    if data.shape != (len(given), PIXELS) or not all(isinstance(label, int) for label in given):
        raise Refused(f"{path} is corrupt: its data has shape {data.shape} for {len(given)} labels")

    def fill(rows: NDArray[np.uint8], labels: Labels) -> None:
        labels[:] = given
        with path.open("rb") as file:
            data.read_into(file, rows)

    return len(given), fill
