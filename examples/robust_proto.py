"""RobustProto: FedProto in which clients keep rare classes and the server may take the median of the uploads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from tinyproto.algorithms.base import Algorithm, AlgorithmSpec, FederationSpec, positive
from tinyproto.algorithms.fedproto import AveragingServer, FedProtoHyper, PrototypeClient, Upload, prototype_algorithm
from tinyproto.core.prototypes import Prototypes


@dataclass(frozen=True)
class RobustProtoHyper(FedProtoHyper):
    """FedProto's hyper-parameters and two more."""

    min_count: Annotated[int, "a client sends the classes of which it has at least this many samples"] = 3
    merging: Annotated[Literal["median", "mean"], "how the server merges the uploads"] = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(min_count=self.min_count)


class RobustClient(PrototypeClient):
    """FedProto's client, which sends only classes with enough samples."""

    def __init__(self, hyper: RobustProtoHyper, federation: FederationSpec) -> None:
        super().__init__(hyper, federation)
        self.min_count = hyper.min_count

    def upload(self, prototypes: Prototypes, class_counts: Tensor) -> Prototypes:
        """Return the rows (K, d) of classes with enough samples; a row that is not present is zero."""
        present = prototypes.present & (class_counts >= self.min_count)
        return Prototypes(prototypes.values * present.unsqueeze(1), present)


class MedianServer(AveragingServer):
    """FedProto's server, with the median in place of the mean."""

    def merge(self, uploads: Sequence[Upload]) -> Prototypes:
        """Return, coordinate by coordinate, the median over the clients that sent a class."""
        values, present = (torch.stack(parts) for parts in zip(*(upload.rows for upload in uploads), strict=True))
        median = values.masked_fill(~present.unsqueeze(2), torch.nan).nanquantile(0.5, dim=0)  # (M, K, d) to (K, d)
        return Prototypes(median.nan_to_num(), present.any(0))


def build(hyper: RobustProtoHyper, federation: FederationSpec) -> Algorithm:
    """Return our client with our server, or with FedProto's."""
    kind = MedianServer if hyper.merging == "median" else AveragingServer
    client, server = RobustClient(hyper, federation), kind(federation.num_classes, federation.proto_dim)
    return prototype_algorithm("robust_proto", client, server, width=federation.proto_dim)


SPEC = AlgorithmSpec("robust_proto", "RobustProto", RobustProtoHyper, build)
