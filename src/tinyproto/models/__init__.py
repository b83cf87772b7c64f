"""Networks: any `nn.Module` becomes a client's model once it is split into extractor and head."""

from __future__ import annotations

from tinyproto.models.build import NETWORKS, ModelEntry, ModelShape, build_model, entry_name, rehearse_training
from tinyproto.models.split import Output, SplitModel

__all__ = [
    "NETWORKS",
    "ModelEntry",
    "ModelShape",
    "Output",
    "SplitModel",
    "build_model",
    "entry_name",
    "rehearse_training",
]
