"""One file per method; this is the list of them."""

from __future__ import annotations

from collections.abc import Mapping

from tinyproto.algorithms import fedproto, fedtgp, local, tinyproto
from tinyproto.algorithms.base import Algorithm, AlgorithmSpec, FederationSpec

ALGORITHMS: Mapping[str, AlgorithmSpec] = {
    spec.name: spec for spec in (local.SPEC, fedproto.SPEC, fedtgp.SPEC, tinyproto.FP_SPEC, tinyproto.FT_SPEC)
}
"""Every algorithm that a config can name."""

__all__ = ["ALGORITHMS", "Algorithm", "AlgorithmSpec", "FederationSpec"]
