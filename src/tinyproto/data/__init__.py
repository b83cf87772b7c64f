"""Datasets and partitions."""

from __future__ import annotations

from tinyproto.data.dataset import CountedSamples, Dataset, FederatedData
from tinyproto.data.partition import Partition, Share
from tinyproto.data.sources import SOURCES, load
from tinyproto.data.sources.arrays import from_arrays
from tinyproto.data.sources.datasets import from_dataset

__all__ = [
    "SOURCES",
    "CountedSamples",
    "Dataset",
    "FederatedData",
    "Partition",
    "Share",
    "from_arrays",
    "from_dataset",
    "load",
]  # fmt: skip
