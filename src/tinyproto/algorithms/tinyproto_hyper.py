"""Hyper-parameters that several methods share: CPS, by dimensions or by bytes, one length for all rows, scaling."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor

from tinyproto.algorithms.base import ClientInfo, Derived, FederationSpec, positive
from tinyproto.algorithms.fedproto import FedProtoHyper
from tinyproto.core import cps
from tinyproto.core.masks import MaskKind, build_masks
from tinyproto.core.sizes import bytes_of
from tinyproto.wire.codec import rows_frame_bytes
from tinyproto.wire.values import VALUE_TYPES

UPDATE_METRICS = 40
"""Most bytes of an upload's metrics: two losses of 9, four counts of 5, and 2 for the section."""


@dataclass(frozen=True)
class CPSHyper(FedProtoHyper):
    """FedProto's hyper-parameters, and those of CPS."""

    cps_dim: Annotated[int | None, "s, how many of the d dimensions a class sends; `null` sends all"] = None
    byte_budget: Annotated[
        str | None, "instead of `cps_dim`: s is the largest whose frames with all K rows, up and down, fit, such as 2kB"
    ] = None
    masks: Annotated[MaskKind, "how CPS masks are built"] = "balanced"
    mask_seed: Annotated[int, "of the CPS masks"] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cps_dim is not None:
            positive(cps_dim=self.cps_dim)
        if self.byte_budget is not None:
            try:
                bytes_of(self.byte_budget)
            except ValueError as error:
                raise ValueError(f"byte_budget: {error}") from error
            if self.cps_dim is not None:
                raise ValueError("cps_dim and byte_budget both say how much a class sends; give one of them")

    def sent(self, federation: FederationSpec) -> tuple[Tensor | None, int]:
        """Return the masks m_j, (K, d) bool, or None if all dimensions travel, and how many travel."""
        dim, cps_dim = federation.proto_dim, self.cps_dim
        if self.byte_budget is not None:
            fitting = largest_cps_dim(federation, self.byte_budget)
            cps_dim = None if fitting == dim else fitting
        if cps_dim is None:
            return None, dim
        return build_masks(self.masks, federation.num_classes, dim, cps_dim, self.mask_seed), cps_dim

    def derived_dim(self, width: int) -> dict[str, int | float]:
        """Return s if it follows from a byte budget."""
        return {} if self.byte_budget is None else {"cps_dim": width}


@dataclass(frozen=True)
class OptionalCPSHyper:
    """CPS for a method that was published without it: off unless its entry in the config sets `sent_dim`."""

    sent_dim: Annotated[int | None, "s, how many of the d dimensions a class sends by CPS; `null` sends all"] = None
    masks: Annotated[MaskKind, "how CPS masks are built"] = "balanced"
    mask_seed: Annotated[int, "of the CPS masks"] = 0

    def __post_init__(self) -> None:
        if self.sent_dim is not None:
            positive(sent_dim=self.sent_dim)

    def sent(self, federation: FederationSpec) -> tuple[Tensor | None, int]:
        """Return the masks m_j, (K, d) bool, or None if all dimensions travel, and how many travel."""
        dim, sent = federation.proto_dim, self.sent_dim
        if sent is None:
            return None, dim
        if sent > dim:
            raise ValueError(f"sent_dim ({sent}) is greater than prototypes.dim ({dim})")
        return build_masks(self.masks, federation.num_classes, dim, sent, self.mask_seed), sent


@dataclass(frozen=True)
class FixedLengthHyper(CPSHyper):
    """The hyper-parameters of CPS, and one length for all global prototypes."""

    length: Annotated[
        float | Literal["auto"], "R of all global prototypes, above 0; `auto`: d·√s / 2λ, or √s with λ = 0 or `l2`"
    ] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length != "auto":
            positive(length=self.length)

    def row_length(self, federation: FederationSpec, width: int) -> float:
        """Return R.

        A target of a in each of s dimensions pulls a feature of zero by 2λa/d in each of them; `auto` makes that 1.
        """
        if self.length != "auto":
            return self.length
        if self.distance != "mse" or not self.proto_weight:  # the pull does not depend on R
            return math.sqrt(width)
        return cps.longest_prototype(federation.proto_dim, width, self.proto_weight)

    def derived_length(self, length: float, width: int, _clients: Sequence[ClientInfo]) -> Derived:
        """Return R if it is `auto`, and s if it follows from a byte budget."""
        return {**self.derived_dim(width), **({"length": length} if self.length == "auto" else {})}


@dataclass(frozen=True)
class TinyProtoHyper(CPSHyper):
    """The hyper-parameters of CPS and of prototype scaling."""

    scaling: Annotated[Literal["count", "none"], "send prototypes times n_ij, or plain prototypes"] = "count"
    global_scale: Annotated[float | Literal["auto"], "μ, above 0; `auto` derives it from the clients' hello"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.global_scale != "auto":
            positive(global_scale=self.global_scale)

    def derived(self, width: int, scale: Callable[[int, int], float] | None, clients: Sequence[ClientInfo]) -> Derived:
        """Return s if a byte budget was given, and μ, from Σ K_i and Σ n_i, if it is `auto` and clients took part."""
        found = self.derived_dim(width)
        if scale is not None and clients and self.scaling == "count" and self.global_scale == "auto":
            classes = sum(client.counted_classes for client in clients)
            found["global_scale"] = scale(classes, sum(client.counted_samples for client in clients))
        return found


def exchanged_bytes(federation: FederationSpec, cps_dim: int) -> int:
    """Return the wire bytes of a client's round, up and down, with a row of each class both ways."""
    up, down = VALUE_TYPES[federation.wire.up], VALUE_TYPES[federation.wire.down]
    return rows_frame_bytes(federation.num_classes, cps_dim, up, UPDATE_METRICS) + rows_frame_bytes(
        federation.num_classes, cps_dim, down
    )


def largest_cps_dim(federation: FederationSpec, byte_budget: str) -> int:
    """Return the largest s, at most d, with which a client's round stays within the budget."""
    budget, widths = bytes_of(byte_budget), range(1, federation.proto_dim + 1)
    fitting = bisect_right(widths, budget, key=lambda width: exchanged_bytes(federation, width))
    if fitting == 0:
        raise ValueError(
            f"byte_budget {byte_budget} is too small: one dimension of {federation.num_classes} classes, up and down, "
            f"takes {exchanged_bytes(federation, 1)} bytes"
        )
    return fitting
