"""RobustProto: FedProto in which rare classes stay at home and the server may take the median of what arrives.

A prototype made from one or two samples is mostly noise, yet FedProto's mean weighs it like one made from five hundred.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from tinyproto.algorithms.base import Algorithm, AlgorithmSpec, FederationSpec, positive
from tinyproto.algorithms.fedproto import FedProtoHyper, build_fedproto
from tinyproto.algorithms.transform import Dense, Upload
from tinyproto.core.prototypes import Prototypes


@dataclass(frozen=True)
class RobustProtoHyper(FedProtoHyper):
    """FedProto's hyper-parameters and two more."""

    min_count: Annotated[int, "a client sends the classes of which it has so many samples"] = 3
    merging: Annotated[Literal["median", "mean"], "how the server merges what arrives"] = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(min_count=self.min_count)


@dataclass(frozen=True)
class Robust(Dense):
    """Prototypes travel as they are, but not all of them."""

    hyper: RobustProtoHyper = RobustProtoHyper()

    def upload(self, prototypes: Prototypes, class_counts: Tensor) -> Prototypes:
        """Client: only rows (K, d) of classes with enough samples; a row that is not present is zero."""
        present = prototypes.present & (class_counts >= self.hyper.min_count)
        return Prototypes(prototypes.values * present.unsqueeze(1), present)

    def merge(self, uploads: Sequence[Upload]) -> Prototypes:
        """Server: coordinate by coordinate the median over the clients that sent a class."""
        if self.hyper.merging == "mean":
            return super().merge(uploads)
        present = torch.stack([upload.rows.present for upload in uploads])  # (M, K)
        values = torch.stack([upload.rows.values for upload in uploads])  # (M, K, d)
        median = values.masked_fill(~present.unsqueeze(2), torch.nan).nanquantile(0.5, dim=0)
        return Prototypes(median.nan_to_num(), present.any(0))


def build(hyper: RobustProtoHyper, federation: FederationSpec) -> Algorithm:
    """FedProto's client and server around our transform."""
    return build_fedproto("robust_proto", hyper, federation, Robust(federation.proto_dim, hyper=hyper))


SPEC = AlgorithmSpec("robust_proto", "RobustProto", RobustProtoHyper, build)
