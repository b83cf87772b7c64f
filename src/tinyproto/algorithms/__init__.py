"""All methods, one file each."""

from __future__ import annotations

from collections.abc import Mapping

from tinyproto.algorithms import (
    anchors,
    fedavg,
    feddistill,
    fedgh,
    fedkd,
    fedorgp,
    fedproto,
    fedsa,
    fedtgp,
    fml,
    input_means,
    lg_fedavg,
    local,
    protonorm,
    tinyproto_fp,
    tinyproto_ft,
    tinyproto_sphere,
)
from tinyproto.algorithms.base import Algorithm, AlgorithmSpec, FederationSpec

ALGORITHMS: Mapping[str, AlgorithmSpec] = {
    spec.name: spec
    for spec in (
        local.SPEC,
        anchors.SPEC,
        fedavg.SPEC,
        lg_fedavg.SPEC,
        fml.SPEC,
        fedkd.SPEC,
        fedgh.SPEC,
        feddistill.SPEC,
        fedproto.SPEC,
        fedtgp.SPEC,
        protonorm.SPEC,
        fedsa.SPEC,
        fedorgp.SPEC,
        input_means.SPEC,
        tinyproto_fp.SPEC,
        tinyproto_ft.SPEC,
        tinyproto_sphere.SPEC,
    )
}
"""The algorithms that a config can name."""

__all__ = ["ALGORITHMS", "Algorithm", "AlgorithmSpec", "FederationSpec"]
