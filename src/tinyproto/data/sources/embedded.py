"""Datasets that need no download: digits and wine, which come with scikit-learn, and signals, which are drawn here."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tinyproto.data.dataset import Dataset, SharedArray
from tinyproto.data.inputs import assembled
from tinyproto.data.sources.base import Request, only_first_classes

WINE_COLUMNS = (
    "alcohol", "malic_acid", "ash", "alcalinity_of_ash", "magnesium", "total_phenols", "flavanoids",
    "nonflavanoid_phenols", "proanthocyanins", "color_intensity", "hue", "od280/od315_of_diluted_wines", "proline",
)  # fmt: skip
WINES = ("class_0", "class_1", "class_2")

WAVES = ("sine", "square", "sawtooth", "rising", "falling", "burst")
PER_WAVE, LENGTH = 150, 64


def load_digits(request: Request) -> Dataset:
    """Load 1 797 handwritten digits of 8×8 pixels; the pixels 0 to 16 become −1 to 1."""
    table = _sklearn_table("digits", "digits.csv.gz")
    shared = SharedArray.blank((len(table), 1, 8, 8))
    shared.array[:] = table[:, :-1].reshape(shared.shape)
    labels = torch.from_numpy(table[:, -1].astype(np.int64))
    images = Dataset("digits", shared.tensor, labels, num_classes=10, scale=1 / 8, shift=-1.0, shared=shared, white=16)
    return only_first_classes(images, request.first_classes)


def load_wine(request: Request) -> Dataset:
    """Load a table of 178 wines: 13 measurements each, and the cultivar as class."""
    table = _sklearn_table("wine", "wine_data.csv", skip=1)
    shared = SharedArray.holding(table[:, :-1].astype(np.float32))
    labels = table[:, -1].astype(np.int64)
    wines = assembled("wine", shared.tensor, labels, WINES, columns=WINE_COLUMNS, shared=shared)
    return only_first_classes(wines, request.first_classes)


def load_signals(request: Request) -> Dataset:
    """Draw 900 noisy signals of one channel and 64 steps; the class is the form of the wave."""
    random = np.random.RandomState(0)  # noqa: NPY002: its draws never change between releases of numpy
    labels = np.tile(np.arange(len(WAVES)), PER_WAVE)
    shared = SharedArray.holding(np.stack([_wave(WAVES[label], random) for label in labels])[:, None])
    signals = assembled("signals", shared.tensor, labels.astype(np.int64), WAVES, shared=shared)
    return only_first_classes(signals, request.first_classes)


def _wave(form: str, random: np.random.RandomState) -> NDArray[np.float32]:
    """Return one signal (64,) of random frequency, phase, height and noise."""
    time = np.arange(LENGTH) / LENGTH
    periods, phase, height = random.uniform(2, 5), random.uniform(0, 1), random.uniform(0.5, 1.5)
    sweep = {"rising": 0.5 + time, "falling": 2 - time}.get(form, np.ones(LENGTH))
    turns = periods * time * sweep + phase
    values = np.sin(2 * np.pi * turns)
    if form == "square":
        values = np.sign(values)
    elif form == "sawtooth":
        values = 2 * (turns % 1) - 1
    elif form == "burst":
        values = values * np.exp(-0.5 * ((time - random.uniform(0.2, 0.8)) / 0.1) ** 2)
    noisy: NDArray[np.float32] = (height * values + random.normal(0, 0.3, LENGTH)).astype(np.float32)
    return noisy


def _sklearn_table(name: str, file_name: str, skip: int = 0) -> NDArray[Any]:
    """Read features and label per row from scikit-learn's file: importing its datasets would take a second."""
    package = importlib.util.find_spec("sklearn")
    for folder in [] if package is None else package.submodule_search_locations or []:
        file = Path(folder) / "datasets" / "data" / file_name
        if file.is_file():
            return np.loadtxt(file, delimiter=",", skiprows=skip)
    from sklearn import datasets

    table = getattr(datasets, f"load_{name}")()
    return np.column_stack([table.data, table.target])
