"""Datasets and partitions."""

from __future__ import annotations

from tinyproto.data.federation import CountedSamples, FederatedData
from tinyproto.data.images import Images
from tinyproto.data.partition import Share, dirichlet_shares
from tinyproto.data.partition_kinds import Partition
from tinyproto.data.sources import SOURCES, load
from tinyproto.data.sources.arrays import from_arrays

__all__ = [
    "SOURCES",
    "CountedSamples",
    "FederatedData",
    "Images",
    "Partition",
    "Share",
    "dirichlet_shares",
    "from_arrays",
    "load",
]
