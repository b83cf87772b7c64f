"""Controls for the comparison of prototype methods: each removes one explanation of a gain.

A config names them by path, for example `{name: "benchmarks.controls:FT_MEAN_COUNTS"}`:
- `FT_MEAN_COUNTS`: TinyProto-FT whose clients scale by the mean of their n_ij, so no class counts travel.
- `FEDTGP_RAISED`: FedTGP whose global prototypes are brought to one length, as long as those of TinyProto-FT.

Anchors with random dense directions (`cps_dim: null`) and another λ with R held (`proto_weight`, `length`) need no
code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from tinyproto.algorithms import fedtgp, tinyproto_ft
from tinyproto.algorithms.base import Algorithm, AlgorithmSpec, FederationSpec, positive
from tinyproto.algorithms.fedproto import PrototypeClient, prototype_algorithm
from tinyproto.algorithms.tinyproto_fp import TinyProtoClient
from tinyproto.core import cps
from tinyproto.core.prototypes import Prototypes


class MeanCountClient(TinyProtoClient):
    """Scales all its prototypes by the same number."""

    def upload(self, prototypes: Prototypes, class_counts: Tensor) -> Prototypes:
        """Return n̄_i ĉᴸ_ij, where n̄_i is the mean of the client's n_ij over the classes it holds."""
        held = class_counts > 0
        mean = class_counts.double().sum() / held.sum().clamp_min(1)
        return super().upload(prototypes, torch.where(held, mean, torch.zeros_like(mean)))


def build_mean_counts(hyper: tinyproto_ft.TinyProtoFTHyper, federation: FederationSpec) -> Algorithm:
    """Return TinyProto-FT with the mean in place of n_ij."""
    algorithm = tinyproto_ft.build(hyper, federation)
    client = MeanCountClient(hyper, federation, algorithm.masks)
    return replace(algorithm, client=client, agreed={"scaling": "mean"})


@dataclass(frozen=True)
class RaisedHyper(fedtgp.FedTGPHyper):
    """FedTGP's hyper-parameters, and the length of what it sends."""

    length: Annotated[float, "R of all global prototypes; above 0"] = 100.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(length=self.length)


class RaisedServer(fedtgp.TrainableServer):
    """FedTGP's server; the learned prototypes keep their directions and get one length."""

    def __init__(self, hyper: RaisedHyper, federation: FederationSpec) -> None:
        super().__init__(hyper, federation, federation.proto_dim)
        self.length = hyper.length

    def compress(self, learned: Prototypes) -> Prototypes:
        """Return the rows to broadcast, all of length R."""
        return cps.with_length(learned, self.length)


def build_raised(hyper: RaisedHyper, federation: FederationSpec) -> Algorithm:
    """Return FedTGP with targets of one length."""
    server = RaisedServer(hyper, federation)
    return prototype_algorithm(
        "fedtgp_raised", PrototypeClient(hyper, federation), server, width=federation.proto_dim
    )  # fmt: skip


FT_MEAN_COUNTS = AlgorithmSpec(
    "ft_mean_counts", "TinyProto-FT, mean n", tinyproto_ft.TinyProtoFTHyper, build_mean_counts
)
FEDTGP_RAISED = AlgorithmSpec("fedtgp_raised", "FedTGP, raised", RaisedHyper, build_raised)
