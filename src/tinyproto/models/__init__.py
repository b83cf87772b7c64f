"""Networks: any `nn.Module`, split into an extractor and a head, can be a client's model."""

from __future__ import annotations

from tinyproto.models.build import (
    CNNS_1D,
    MLPS,
    NETWORKS,
    PUBLISHED,
    SMALL_CNNS,
    TEXT,
    ModelEntry,
    ModelShape,
    build_model,
    check_apart,
    entry_name,
    find_model,
    load_torchvision,
    rehearse_training,
    small_networks,
)
from tinyproto.models.split import Output, SplitModel

__all__ = [
    "CNNS_1D", "MLPS", "NETWORKS", "PUBLISHED", "SMALL_CNNS", "TEXT", "ModelEntry", "ModelShape", "Output",
    "SplitModel", "build_model", "check_apart", "entry_name", "find_model", "load_torchvision", "rehearse_training",
    "small_networks",
]  # fmt: skip
