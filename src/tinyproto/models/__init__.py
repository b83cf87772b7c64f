"""Networks: any `nn.Module`, split into an extractor and a head, can be a client's model."""

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
    "NETWORKS", "PUBLISHED", "SMALL_CNNS", "ModelEntry", "ModelShape", "Output", "SplitModel", "build_model",
    "entry_name", "find_model", "load_torchvision", "rehearse_training",
]  # fmt: skip
