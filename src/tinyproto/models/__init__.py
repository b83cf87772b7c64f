"""Networks: any `nn.Module` becomes a client's model once it is split into extractor and head."""

from __future__ import annotations

from tinyproto.models.build import (
    NETWORKS,
    PUBLISHED,
    SMALL_CNNS,
    ModelEntry,
    ModelShape,
    build_model,
    entry_name,
    find_model,
    load_torchvision,
    rehearse_training,
)
from tinyproto.models.split import Output, SplitModel

__all__ = [
    "NETWORKS",
    "PUBLISHED",
    "SMALL_CNNS",
    "ModelEntry",
    "ModelShape",
    "Output",
    "SplitModel",
    "build_model",
    "entry_name",
    "find_model",
    "load_torchvision",
    "rehearse_training",
]
