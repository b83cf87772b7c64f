"""TinyProto-FP, the paper's Algorithm 1: FedProto with Class-wise Prototype Sparsification (CPS) and scaling.

| Algorithm 1 | here |
|---|---|
| server, line 1: masks m_j, no ĉᴳ_j yet | `build` (each client builds equal masks, so none are sent), `init` |
| server, lines 3 to 10: clients update in parallel | `engine/round.py: play_round`, the same for each method |
| server, line 11: aggregate n_ij ĉᴸ_ij to ĉᴳ_j | `ScaledServer.merge_sums`, or `WeighedServer.conclude` by default |
| LocalUpdate, line 1: reconstruct c̃ᴳ_j | `TinyProtoClient.reconstruct` |
| LocalUpdate, lines 2 to 6: train with L + λ·R | `base.py: LossClient.task` with `fedproto.py: prototype_loss` |
| LocalUpdate, lines 7 and 8: return n_ij ĉᴸ_ij | `TinyProtoClient.upload` |

The paper's clients multiply by μ what they receive; here the server does, so rows arrive ready to use.
`cps_dim: null` switches CPS off and `scaling: none` scaling, which gives the rows of the paper's ablation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Annotated, Literal

import torch
from torch import Tensor

from tinyproto.algorithms.base import Algorithm, AlgorithmSpec, FederationSpec
from tinyproto.algorithms.fedproto import FedProtoHyper, PrototypeClient, StreamingServer, prototype_algorithm
from tinyproto.algorithms.streaming import Gathered
from tinyproto.algorithms.tinyproto_hyper import TinyProtoHyper
from tinyproto.core import cps
from tinyproto.core.prototypes import Prototypes
from tinyproto.core.streams import Streams
from tinyproto.core.task import State


@dataclass(frozen=True)
class TinyProtoFPHyper(TinyProtoHyper):
    """The hyper-parameters that both TinyProtos share, and the rule that merges scaled uploads."""

    aggregation: Annotated[
        Literal["weighed", "sum", "mean"],
        "of count-scaled uploads: `weighed` divides a class's sum, over the rounds, by the weight of its senders, "
        "without μ; `sum` and `mean` over a class's holders multiply by one μ for all classes",
    ] = "weighed"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.aggregation == "weighed" and self.global_scale != "auto" and self.scaling == "count":
            raise ValueError("global_scale has no effect with aggregation: weighed; set aggregation: sum with it")


class TinyProtoClient(PrototypeClient):
    """LocalUpdate(i, ĉᴳ_j) of Algorithm 1."""

    def __init__(
        self, hyper: FedProtoHyper, federation: FederationSpec, masks: Tensor | None, scaling: str = "count"
    ) -> None:
        super().__init__(hyper, federation)
        self.is_scaled = scaling == "count"
        self.masks = masks  # m_j, (K, d); None without CPS

    def reconstruct(self, rows: Prototypes) -> Prototypes:
        """Return c̃ᴳ_j (K, d) from the ĉᴳ_j (K, s) received."""
        return cps.reconstruct(rows, self.masks)

    def upload(self, prototypes: Prototypes, class_counts: Tensor) -> Prototypes:
        """Return n_ij ĉᴸ_ij (K, s) from the local prototypes c̄ᴸ_ij (K, d): scale by n_ij, keep the owned dimensions."""
        scaled = cps.scale_by_count(prototypes, class_counts) if self.is_scaled else prototypes
        return cps.compress(scaled, self.masks)


class ScaledServer(StreamingServer):
    """The server of Algorithm 1 with one μ for all classes: `aggregation` is `sum` or `mean`."""

    def __init__(self, hyper: TinyProtoFPHyper, num_classes: int, width: int) -> None:
        super().__init__(num_classes, width)
        self.hyper = hyper

    def merge_sums(self, gathered: Gathered) -> Prototypes:
        """Return μ Σ n_ij ĉ_ij (`sum`), or μ times eq. (10) (`mean`)."""
        merge = cps.count_scaled_sum if self.hyper.aggregation == "sum" else cps.count_scaled_mean
        factor = self.global_scale(gathered.counted_classes, gathered.counted_samples)
        return cps.scale(merge(gathered.sums.totals), factor)

    def global_scale(self, classes: int, samples: int) -> float:
        """Return μ, given Σ K_i and Σ n_i of the senders."""
        if self.hyper.global_scale != "auto":
            return self.hyper.global_scale
        if self.hyper.aggregation == "sum":
            return cps.derived_sum_scale(self.num_classes, samples)
        return cps.derived_mean_scale(classes, samples)


class WeighedServer(StreamingServer):
    """The server of Algorithm 1 with `aggregation: weighed`: each class's sum is divided by the weight of its senders.

    With all clients and balanced classes one μ serves all classes, as in the paper. With some of the clients it does
    not: the participants decide how many samples of a class are in its sum. n_i enters only through the median
    client's mean prototype length, so a false n_i changes almost nothing.
    """

    def init(self, streams: Streams) -> State:
        """Return rows of which none is present, and empty sums over the rounds."""
        sums = torch.zeros(self.num_classes, self.width, dtype=torch.float64)  # Σ_i n_ij ĉ_ij
        lengths = torch.zeros(self.num_classes, dtype=torch.float64)  # Σ_i ‖n_ij ĉ_ij‖
        seen = torch.zeros(0, dtype=torch.bool)  # by client id: it has ever sent an upload
        return {**super().init(streams), "sums": sums, "lengths": lengths, "seen": seen}

    def gather(self) -> Gathered:
        """Return an empty accumulator that also measures the uploads of a round."""
        return Gathered(self.num_classes, self.width, measured=True)

    def conclude(self, state: State, gathered: Gathered) -> State:
        """Fold the round into the running sums; the mean of each class is its global row.

        A round with a share ρ of the clients replaces that share of the sums; with all clients they start anew.
        """
        if not gathered.uploads:
            return state
        seen = torch.zeros(max(len(state["seen"]), max(gathered.clients) + 1), dtype=torch.bool)
        seen[: len(state["seen"])] = state["seen"]
        seen[gathered.clients] = True
        kept = 1.0 - len(gathered.clients) / int(seen.sum())
        sums = kept * state["sums"] + gathered.sums.sums
        lengths = kept * state["lengths"] + gathered.sums.lengths
        present = state["present"] | (gathered.sums.holders > 0)
        rows = cps.weighed_mean(sums, lengths, median(gathered.mean_lengths), present)
        return {**rows._asdict(), "sums": sums, "lengths": lengths, "seen": seen}


def build(hyper: TinyProtoFPHyper, federation: FederationSpec) -> Algorithm:
    """Return TinyProto-FP; without scaling its server is FedProto's."""
    masks, width = hyper.sent(federation)
    server, scale = StreamingServer(federation.num_classes, width), None
    if hyper.scaling == "count" and hyper.aggregation == "weighed":
        server = WeighedServer(federation.num_classes, width)
    elif hyper.scaling == "count":
        server = scaled = ScaledServer(hyper, federation.num_classes, width)
        scale = scaled.global_scale
    client = TinyProtoClient(hyper, federation, masks, hyper.scaling)
    algorithm = prototype_algorithm("tinyproto_fp", client, server, width=width, masks=masks, scaling=hyper.scaling)
    return replace(algorithm, derived=partial(hyper.derived, width, scale))


SPEC = AlgorithmSpec("tinyproto_fp", "TinyProto-FP", TinyProtoFPHyper, build)
