"""TinyProto-FT at its defaults on a network without normalisation, which it diverged on before it was bounded."""

from __future__ import annotations

import numpy as np
import pytest

import tinyproto as tp
from benchmarks.networks import Case, train
from benchmarks.ordinary import NETWORKS, PATTERNS, draw_pattern, plain_cnn
from tinyproto.core.cps import longest_prototype


def patterns(per_class: int) -> tp.data.Dataset:
    draws = np.random.default_rng(0)
    images = np.stack([draw_pattern(name, draws) for name in PATTERNS for _ in range(per_class)])
    return tp.data.from_arrays(images.transpose(0, 3, 1, 2), np.repeat(np.arange(len(PATTERNS)), per_class))


def play(algorithm: dict[str, object]) -> tp.Result:
    return tp.simulate(
        data=patterns(40), models=plain_cnn, algorithm={"name": "tinyproto_ft", **algorithm}, num_clients=3, alpha=5.0,
        rounds=14, proto_dim=20, cps_dim=5, settings={"train": {"batch_size": 8}},
    )  # fmt: skip


def test_prototypes_and_margin_stay_within_their_bounds_in_every_round() -> None:
    result = play({})
    most = longest_prototype(dim=20, width=5, proto_weight=10.0)
    assert not result.left_out
    assert all(record.server["longest_prototype"] <= most * (1 + 1e-6) for record in result.rounds)
    assert all(record.server["margin"] <= 2 * most for record in result.rounds)


def test_without_the_bound_prototypes_grow_beyond_it() -> None:
    result = play({"max_length": None})
    most = longest_prototype(dim=20, width=5, proto_weight=10.0)
    assert max(record.server["longest_prototype"] for record in result.rounds) > 2 * most


@pytest.mark.slow
@pytest.mark.parametrize("network", [*NETWORKS, "mixed"])
def test_no_client_diverges_on_an_ordinary_network(network: str) -> None:
    found = train(Case("patterns", network, "tinyproto_ft", seed=0, rounds=40))
    assert found["left_out"] == 0
    assert found["accuracy"]["local"] > 0.6
