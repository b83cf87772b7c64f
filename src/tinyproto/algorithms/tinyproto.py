"""TinyProto: FedProto (FP) and FedTGP (FT) whose prototypes travel count-scaled and class-wise sparsified.

A composition, not a new method: everything is FedProto or FedTGP over the transform below. CPS (`cps_dim: null`) and
scaling (`scaling: none`) switch off separately, which gives the rows of the paper's ablation.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Annotated, Literal

import torch
from torch import Tensor

from tinyproto.algorithms.base import (
    Algorithm,
    AlgorithmSpec,
    ClientInfo,
    Derived,
    FederationSpec,
    Round,
    Update,
    positive,
)
from tinyproto.algorithms.fedproto import FedProtoHyper, StreamingServer, prototype_algorithm, received_rows
from tinyproto.algorithms.fedtgp import FedTGPHyper, build_fedtgp
from tinyproto.algorithms.streaming import Gathered
from tinyproto.algorithms.transform import Upload, gathered_uploads
from tinyproto.core import cps, scaling
from tinyproto.core.aggregate import RunningSums, count_scaled_mean, count_scaled_sum, simple_mean, weighed_mean
from tinyproto.core.prototypes import Prototypes
from tinyproto.core.sizes import bytes_of
from tinyproto.core.streams import Streams
from tinyproto.core.task import State, Trainer
from tinyproto.errors import ConfigError
from tinyproto.wire.codec import rows_frame_bytes
from tinyproto.wire.values import VALUE_TYPES

Scaling = Literal["count", "none"]
Aggregation = Literal["weighed", "sum", "mean"]
GlobalScale = float | Literal["auto"]
MaxLength = float | Literal["auto"] | None


@dataclass(frozen=True)
class SparseHyper:
    """CPS and prototype scaling."""

    cps_dim: Annotated[int | None, "s, how many of the d dimensions a class sends; `null` sends all"] = None
    byte_budget: Annotated[
        str | None, "instead of `cps_dim`: s is the largest whose frames with all K rows, up and down, fit, such as 2kB"
    ] = None
    masks: Annotated[cps.MaskKind, "how CPS masks are built"] = "balanced"
    mask_seed: Annotated[int, "of the CPS masks"] = 0
    scaling: Annotated[Scaling, "send prototypes times n_ij, or plain prototypes"] = "count"
    global_scale: Annotated[GlobalScale, "μ, above 0; `auto` derives it from the clients' hello"] = "auto"

    def __post_init__(self) -> None:
        if self.global_scale != "auto":
            positive(global_scale=self.global_scale)
        if self.cps_dim is not None:
            positive(cps_dim=self.cps_dim)
        if self.byte_budget is not None:
            try:
                bytes_of(self.byte_budget)
            except ConfigError as error:
                raise ValueError(f"byte_budget: {error}") from error
            if self.cps_dim is not None:
                raise ValueError("cps_dim and byte_budget both say how much a class sends; give one of them")


@dataclass(frozen=True)
class TinyProtoFPHyper(SparseHyper, FedProtoHyper):
    """FedProto's, CPS's and scaling's, and how scaled uploads are merged."""

    aggregation: Annotated[
        Aggregation,
        "of count-scaled uploads: `weighed` divides a class's sum by who sent it, over the rounds, without μ; `sum` "
        "and `mean` over a class's holders multiply by one μ for all classes",
    ] = "weighed"

    def __post_init__(self) -> None:
        FedProtoHyper.__post_init__(self)
        SparseHyper.__post_init__(self)
        if self.aggregation == "weighed" and self.global_scale != "auto" and self.scaling == "count":
            raise ValueError("global_scale has no effect with aggregation: weighed; set aggregation: sum with it")


@dataclass(frozen=True)
class TinyProtoFTHyper(SparseHyper, FedTGPHyper):
    """FedTGP's, CPS's and scaling's, and how long a prototype may become."""

    max_length: Annotated[
        MaxLength, "R, above 0: uploads and global prototypes are shortened to it; `auto`: d·√s / 2λ; `null`: never"
    ] = "auto"

    def __post_init__(self) -> None:
        FedTGPHyper.__post_init__(self)
        SparseHyper.__post_init__(self)
        if isinstance(self.max_length, float | int):
            positive(max_length=self.max_length)


@dataclass(frozen=True)
class ScaleAndSparsify:
    """Out: n_ij · c_ij, then the s dimensions the class owns. Back: μ, then zeros everywhere else."""

    num_classes: int
    width: int
    masks: Tensor | None  # (K, d); None without CPS
    scaling: Scaling
    global_scale: GlobalScale
    aggregation: Aggregation
    max_length: float = math.inf  # R, where the server fits to the uploads

    @property
    def agreed(self) -> Mapping[str, str]:
        """Whether rows are prototypes, or prototypes times counts."""
        return {"scaling": self.scaling}

    def upload(self, prototypes: Prototypes, class_counts: Tensor) -> Prototypes:
        """n_ij ĉ_ij: scaled by the class's count, compressed by C."""
        if self.scaling == "count":
            prototypes = scaling.scale_by_count(prototypes, class_counts)
        return self.owned(prototypes)

    def merge(self, uploads: Sequence[Upload]) -> Prototypes:
        """μ Σ n_ij ĉ_ij (sum), or μ times eq. (10) (mean), or eq. (9) without scaling."""
        return self.conclude(gathered_uploads(uploads, measured=self.weighed))

    @property
    def weighed(self) -> bool:
        """Whether a class's sum is weighed by who sent it, rather than multiplied by one μ."""
        return self.scaling == "count" and self.aggregation == "weighed"

    def conclude(self, gathered: Gathered) -> Prototypes:
        """The same, of uploads folded in as they arrived."""
        if self.scaling == "none":
            return simple_mean(gathered.sums)
        if self.weighed:
            sums = gathered.sums
            return weighed_mean(sums.sums, sums.lengths, median(gathered.mean_lengths), sums.holders > 0)
        merge = count_scaled_sum if self.aggregation == "sum" else count_scaled_mean
        return scaling.scale(
            merge(gathered.sums), self.merging_scale(gathered.counted_classes, gathered.counted_samples)
        )

    def normalise(self, uploads: Sequence[Upload]) -> list[Prototypes]:
        """Return μ n_ij ĉ_ij, the server-side normalisation of the paper's appendix, no row longer than R."""
        return [scaling.shorten(rows, self.max_length) for rows in self._scaled_back(uploads)]

    def _scaled_back(self, uploads: Sequence[Upload]) -> list[Prototypes]:
        if self.scaling == "none":
            return [upload.rows for upload in uploads]
        samples = sum(upload.client.counted_samples for upload in uploads)
        classes = sum(upload.client.counted_classes for upload in uploads)
        factor = self.fitting_scale(classes, samples)
        return [scaling.scale(upload.rows, factor) for upload in uploads]

    def merging_scale(self, classes: int, samples: int) -> float:
        """μ where uploads are merged, given Σ K_i and Σ n_i of who sent them."""
        if self.global_scale != "auto":
            return self.global_scale
        if self.aggregation == "sum":
            return scaling.derived_sum_scale(self.num_classes, samples)
        return scaling.derived_mean_scale(classes, samples)

    def fitting_scale(self, classes: int, samples: int) -> float:
        """μ where the server fits to the uploads, given the same."""
        return scaling.derived_trainable_scale(classes, samples) if self.global_scale == "auto" else self.global_scale

    def compress(self, prototypes: Prototypes) -> Prototypes:
        """C, eq. (8), of global prototypes: no row is longer than R, whatever the server's fit came to."""
        return scaling.shorten(self.owned(prototypes), self.max_length)

    def owned(self, prototypes: Prototypes) -> Prototypes:
        """C, eq. (8)."""
        return prototypes if self.masks is None else cps.compress(prototypes, self.masks.to(prototypes.values.device))

    def reconstruct(self, rows: Prototypes) -> Prototypes:
        """The structured sparse c̃ from the compressed ĉ."""
        return rows if self.masks is None else cps.reconstruct(rows, self.masks.to(rows.values.device))


UPDATE_METRICS = 40
"""Bytes of an upload's metrics at the most: two losses of 9, four counts of 5, and 2 that say so."""


def exchanged_bytes(federation: FederationSpec, cps_dim: int) -> int:
    """Wire bytes of a client's round, up and down, with a row of every class both ways."""
    up, down = VALUE_TYPES[federation.wire.up], VALUE_TYPES[federation.wire.down]
    return rows_frame_bytes(federation.num_classes, cps_dim, up, UPDATE_METRICS) + rows_frame_bytes(
        federation.num_classes, cps_dim, down
    )


def largest_cps_dim(federation: FederationSpec, byte_budget: str) -> int:
    """The largest s, at most d, with which a client's round stays within so many bytes."""
    budget, widths = bytes_of(byte_budget), range(1, federation.proto_dim + 1)
    fitting = bisect_right(widths, budget, key=lambda width: exchanged_bytes(federation, width))
    if fitting == 0:
        raise ValueError(
            f"byte_budget {byte_budget} is too small: one dimension of {federation.num_classes} classes, up and down, "
            f"takes {exchanged_bytes(federation, 1)} bytes"
        )
    return fitting


def _cps_dim(hyper: SparseHyper, federation: FederationSpec) -> int | None:
    """s; None where all d travel."""
    if hyper.byte_budget is None:
        return hyper.cps_dim
    fitting = largest_cps_dim(federation, hyper.byte_budget)
    return None if fitting == federation.proto_dim else fitting


def _transform(hyper: SparseHyper, federation: FederationSpec, aggregation: Aggregation) -> ScaleAndSparsify:
    masks, cps_dim = None, _cps_dim(hyper, federation)
    if cps_dim is not None:
        masks = cps.build_masks(hyper.masks, federation.num_classes, federation.proto_dim, cps_dim, hyper.mask_seed)
    return ScaleAndSparsify(
        num_classes=federation.num_classes,
        width=federation.proto_dim if cps_dim is None else cps_dim,
        masks=masks,
        scaling=hyper.scaling,
        global_scale=hyper.global_scale,
        aggregation=aggregation,
    )


def _derived(
    hyper: SparseHyper, transform: ScaleAndSparsify, scale: Callable[[int, int], float] | None,
    clients: Sequence[ClientInfo],
) -> Derived:  # fmt: skip
    """s where a budget was given, and μ where it is `auto` and a round has been."""
    found: dict[str, int | float] = {}
    if hyper.byte_budget is not None:
        found["cps_dim"] = transform.width
    if scale is not None and clients and hyper.scaling == "count" and hyper.global_scale == "auto":
        classes = sum(client.counted_classes for client in clients)
        found["global_scale"] = scale(classes, sum(client.counted_samples for client in clients))
    return found


class WeighedServer(StreamingServer):
    """TinyProto-FP with `aggregation: weighed`: a class's sum is weighed by who sent it.

    With all clients and balanced classes one μ serves all classes, as in the paper. With some of the clients it does
    not: who takes part decides how many samples of a class are in its sum. n_i enters only through the median client's
    mean prototype length, so a false n_i moves next to nothing.
    """

    def init(self, streams: Streams) -> State:
        """No class present, nothing summed."""
        state = super().init(streams)
        sums = torch.zeros(self.num_classes, self.transform.width, dtype=torch.float64)
        lengths, seen = torch.zeros(self.num_classes, dtype=torch.float64), torch.zeros(0, dtype=torch.bool)
        return {**state, "sums": sums, "lengths": lengths, "seen": seen}

    def gather(self) -> Gathered:
        """Nothing gathered yet."""
        return Gathered(self.num_classes, self.transform.width, measured=True)

    def aggregate(
        self, state: State, updates: Sequence[Update], trainer: Trainer, round_: Round, streams: Streams  # noqa: ARG002
    ) -> State:  # fmt: skip
        """Gather the uploads, and conclude."""
        gathered = self.gather()
        for upload in received_rows(updates):
            gathered.add(*upload)
        return self.conclude(state, gathered)

    def conclude(self, state: State, gathered: Gathered) -> State:
        """Fold the round into the running sums; the mean of each class is its global row."""
        if not gathered.uploads:
            return state
        running = RunningSums(state["sums"], state["lengths"], state["seen"]).after(gathered.sums, gathered.clients)
        present = state["present"] | (gathered.sums.holders > 0)
        rows = weighed_mean(running.sums, running.lengths, median(gathered.mean_lengths), present)
        return {**rows._asdict(), "sums": running.sums, "lengths": running.lengths, "seen": running.seen}


def build_fp(hyper: TinyProtoFPHyper, federation: FederationSpec) -> Algorithm:
    """TinyProto-FP, the paper's Algorithm 1."""
    transform = _transform(hyper, federation, hyper.aggregation)
    server = (WeighedServer if transform.weighed else StreamingServer)(federation.num_classes, transform)
    algorithm = prototype_algorithm("tinyproto_fp", hyper, federation, transform, server)
    scale = None if transform.weighed else transform.merging_scale
    return replace(algorithm, derived=partial(_derived, hyper, transform, scale))


def _max_length(hyper: TinyProtoFTHyper, federation: FederationSpec, width: int) -> float:
    """R; infinite where nothing is shortened. Without counts nothing multiplies, so `auto` shortens nothing."""
    if hyper.max_length == "auto" and hyper.scaling == "none":
        return math.inf
    if hyper.max_length == "auto":
        return scaling.longest_prototype(federation.proto_dim, width, hyper.proto_weight)
    return math.inf if hyper.max_length is None else hyper.max_length


def build_ft(hyper: TinyProtoFTHyper, federation: FederationSpec) -> Algorithm:
    """TinyProto-FT, the paper's appendix on FedTGP."""
    transform = _transform(hyper, federation, aggregation="sum")
    transform = replace(transform, max_length=_max_length(hyper, federation, transform.width))
    algorithm = build_fedtgp("tinyproto_ft", hyper, federation, transform)
    return replace(algorithm, derived=partial(_derived, hyper, transform, transform.fitting_scale))


FP_SPEC = AlgorithmSpec("tinyproto_fp", "TinyProto-FP", TinyProtoFPHyper, build_fp)
FT_SPEC = AlgorithmSpec("tinyproto_ft", "TinyProto-FT", TinyProtoFTHyper, build_ft)
