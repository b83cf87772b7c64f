"""TinyProto-FT, the paper's appendix: FedTGP with Class-wise Prototype Sparsification (CPS) and scaling.

Clients run LocalUpdate of TinyProto-FP: train with L + λ·R, compute prototypes, scale them by n_ij, and send the s
owned dimensions of each class. The server is FedTGP's, in this order:

1. Normalise each upload: μ n_ij ĉ_ij, no longer than R, reconstructed to d dimensions (`normalise`).
2. Train the global prototypes on the uploads by contrastive learning (`fedtgp.py: TrainableServer.aggregate`).
3. Compress the trained prototypes to the owned dimensions and broadcast them (`compress`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

from torch import Tensor

from tinyproto.algorithms.base import Algorithm, AlgorithmSpec, FederationSpec, positive
from tinyproto.algorithms.fedproto import Upload, prototype_algorithm
from tinyproto.algorithms.fedtgp import FedTGPHyper, TrainableServer
from tinyproto.algorithms.tinyproto_fp import TinyProtoClient
from tinyproto.algorithms.tinyproto_hyper import TinyProtoHyper
from tinyproto.core import cps
from tinyproto.core.prototypes import Prototypes


@dataclass(frozen=True)
class TinyProtoFTHyper(TinyProtoHyper, FedTGPHyper):
    """The hyper-parameters that both TinyProtos share, FedTGP's, and the longest prototype allowed."""

    max_length: Annotated[
        float | Literal["auto"] | None,
        "R, above 0: uploads and global prototypes are shortened to it; `auto`: d·√s / 2λ; `null`: never",
    ] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.max_length, float | int):
            positive(max_length=self.max_length)


class TinyProtoFTServer(TrainableServer):
    """FedTGP's server for count-scaled, compressed uploads."""

    def __init__(self, hyper: TinyProtoFTHyper, federation: FederationSpec, masks: Tensor | None, width: int) -> None:
        super().__init__(hyper, federation, width)
        self.is_scaled = hyper.scaling == "count"
        self.given_scale = hyper.global_scale
        self.masks = masks  # m_j, (K, d); None without CPS
        self.max_length = longest(hyper, federation, width)  # R

    def normalise(self, uploads: Sequence[Upload]) -> list[Prototypes]:
        """Return μ n_ij c̃_ij (K, d) of each client, no row longer than R."""
        factor = 1.0
        if self.is_scaled:
            classes = sum(upload.client.counted_classes for upload in uploads)
            factor = self.global_scale(classes, sum(upload.client.counted_samples for upload in uploads))
        normalised = [cps.shorten(cps.scale(upload.rows, factor), self.max_length) for upload in uploads]
        return [cps.reconstruct(rows, self.masks) for rows in normalised]

    def global_scale(self, classes: int, samples: int) -> float:
        """Return μ, given Σ K_i and Σ n_i of the senders."""
        return cps.derived_trainable_scale(classes, samples) if self.given_scale == "auto" else self.given_scale

    def compress(self, learned: Prototypes) -> Prototypes:
        """Return ĉᴳ_j (K, s) from the learned prototypes (K, d), no row longer than R."""
        return cps.shorten(cps.compress(learned, self.masks), self.max_length)


def longest(hyper: TinyProtoFTHyper, federation: FederationSpec, width: int) -> float:
    """Return R, or infinity if nothing is shortened; `auto` shortens nothing without scaling."""
    if hyper.max_length is None or (hyper.max_length == "auto" and hyper.scaling == "none"):
        return math.inf
    if hyper.max_length == "auto":
        return cps.longest_prototype(federation.proto_dim, width, hyper.proto_weight)
    return hyper.max_length


def build(hyper: TinyProtoFTHyper, federation: FederationSpec) -> Algorithm:
    """Return TinyProto-FT."""
    masks, width = hyper.sent(federation)
    client = TinyProtoClient(hyper, federation, masks, hyper.scaling)
    server = TinyProtoFTServer(hyper, federation, masks, width)
    algorithm = prototype_algorithm("tinyproto_ft", client, server, width=width, masks=masks, scaling=hyper.scaling)
    return replace(algorithm, derived=partial(hyper.derived, width, server.global_scale))


SPEC = AlgorithmSpec("tinyproto_ft", "TinyProto-FT", TinyProtoFTHyper, build)
