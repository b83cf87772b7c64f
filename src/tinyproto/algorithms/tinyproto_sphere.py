"""TinyProto-Sphere: a TinyProto whose server adds up the uploads, keeps each sum's direction, and fixes its length.

Clients run LocalUpdate of TinyProto-FP: they send n_ij ĉᴸ_ij, the s owned dimensions of each class. The server needs
Σ_i n_ij ĉᴸ_ij and nothing else: no μ, no numbers of samples, no fit. So it streams, it suits secure sums, and no
upload can make a global prototype longer than R. `cps_dim: null` sends all dimensions.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tinyproto.algorithms.base import Algorithm, AlgorithmSpec, FederationSpec
from tinyproto.algorithms.fedproto import StreamingServer, prototype_algorithm
from tinyproto.algorithms.streaming import Gathered
from tinyproto.algorithms.tinyproto_fp import TinyProtoClient
from tinyproto.algorithms.tinyproto_hyper import FixedLengthHyper
from tinyproto.core import cps
from tinyproto.core.prototypes import ClassSums, Prototypes


class SphereServer(StreamingServer):
    """Brings each class's sum to the length R."""

    def __init__(self, num_classes: int, width: int, length: float) -> None:
        super().__init__(num_classes, width)
        self.length = length  # R

    def merge_sums(self, gathered: Gathered) -> Prototypes:
        """Return R · Σ n_ij ĉ_ij / ‖Σ n_ij ĉ_ij‖; a class whose sum is zero keeps its last row."""
        totals: ClassSums = gathered.sums.totals
        return cps.with_length(Prototypes(totals.sums, totals.counts > 0), self.length)


def build(hyper: FixedLengthHyper, federation: FederationSpec) -> Algorithm:
    """Return TinyProto-Sphere."""
    masks, width = hyper.sent(federation)
    length = hyper.row_length(federation, width)
    client = TinyProtoClient(hyper, federation, masks)
    server = SphereServer(federation.num_classes, width, length)
    algorithm = prototype_algorithm("tinyproto_sphere", client, server, width=width, masks=masks, scaling="count")
    return replace(algorithm, derived=partial(hyper.derived_length, length, width))


SPEC = AlgorithmSpec("tinyproto_sphere", "TinyProto-Sphere", FixedLengthHyper, build)
