"""The embedded handwritten digits: 1 797 images of 8×8 pixels that come with scikit-learn, so nothing is downloaded."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tinyproto.data.images import Images, SharedPixels
from tinyproto.data.sources.base import Request, only_first_classes


def load(request: Request) -> Images:
    """All digits; the pixels 0 to 16 become −1 to 1."""
    table = _table()
    shared = SharedPixels.blank((len(table), 1, 8, 8))
    shared.array[:] = table[:, :-1].reshape(shared.shape)
    images = Images(
        name="digits",
        pixels=shared.tensor,
        labels=torch.from_numpy(table[:, -1].astype(np.int64)),
        num_classes=10,
        scale=1 / 8,
        shift=-1.0,
        shared=shared,
    )
    return only_first_classes(images, request.first_classes)


def _table() -> NDArray[Any]:
    """64 pixels and the label per row, read from scikit-learn's file: importing its datasets would take a second."""
    package = importlib.util.find_spec("sklearn")
    folders = [] if package is None else package.submodule_search_locations or []
    for folder in folders:
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    digits = load_digits()
    return np.column_stack([digits.data, digits.target])


def locate(root: Path | None) -> str:  # noqa: ARG001
    """Where the data is."""
    return f"embedded in scikit-learn {importlib.metadata.version('scikit-learn')}"
