from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from support import (
    FEDERATION,
    NO_FIT,
    NUM_CLASSES,
    PROTO_DIM,
    STREAMS,
    InProcess,
    SimulationSettings,
    make_client,
    random_prototypes,
    tiny_net,
)
from tinyproto.algorithms.anchors import SPEC
from tinyproto.algorithms.base import Algorithm, ClientInfo, Round, expected_frames
from tinyproto.algorithms.defence import Defence, defended
from tinyproto.core.masks import build_masks
from tinyproto.core.prototypes import Message
from tinyproto.data.dataset import FederatedData
from tinyproto.engine.client import LocalTraining
from tinyproto.errors import WireError
from tinyproto.wire.codec import encode
from tinyproto.wire.frame import Header, Kind
from tinyproto.wire.validate import open_frame

INFO = ClientInfo(0, 10, 10, 2)


def built(**hyper: Any) -> Algorithm:
    return SPEC.build(SPEC.hyper(**hyper), FEDERATION)


def anchors_of(algorithm: Algorithm) -> torch.Tensor:
    received = algorithm.client.receive(make_client([3, 3, 0, 0]), Message())
    assert received is not None
    assert received.present.all()
    return received.values


def digest(**hyper: Any) -> bytes:
    return expected_frames(built(**hyper), NUM_CLASSES, PROTO_DIM).digest


def test_an_anchor_is_constant_on_the_dimensions_of_its_class() -> None:
    # A row of length 6 with four equal values: each is 3.
    found = anchors_of(built(cps_dim=4, length=6.0))
    masks = build_masks("balanced", NUM_CLASSES, PROTO_DIM, 4, seed=0)
    torch.testing.assert_close(found, 3.0 * masks)


def test_auto_length_pulls_a_feature_of_zero_by_one_in_each_owned_dimension() -> None:
    # R = d·√s / 2λ: 12 · 2 / 20, or 0.6 in each of four dimensions; the gradient of λ·MSE there is 2 · 10 · 0.6 / 12.
    algorithm = built(cps_dim=4)
    found = anchors_of(algorithm)
    assert float(found.max()) == pytest.approx(0.6)
    assert dict(algorithm.derived([])) == {"length": pytest.approx(1.2)}
    assert dict(built(cps_dim=4, length=6.0).derived([])) == {}


def test_without_cps_directions_are_dense_positive_and_of_the_seed() -> None:
    first, again, other = (anchors_of(built(length=2.0, mask_seed=seed)) for seed in (0, 0, 1))
    assert bool((first > 0).all())
    torch.testing.assert_close(first.norm(dim=1), torch.full((NUM_CLASSES,), 2.0))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("changed", [{"proto_weight": 0.0}, {"distance": "l2"}])
def test_without_a_pull_that_depends_on_it_the_length_is_the_root_of_s(changed: dict[str, Any]) -> None:
    assert float(anchors_of(built(cps_dim=4, **changed)).norm(dim=1).max()) == pytest.approx(math.sqrt(4))


def test_the_digest_of_the_federation_covers_the_length_and_the_seed() -> None:
    same = digest(cps_dim=4, length=6.0)
    assert same == digest(cps_dim=4, length=6.0)
    assert same != digest(cps_dim=4, length=6.5)
    assert same != digest(cps_dim=4, length=6.0, mask_seed=1)
    assert digest(length=6.0) != digest(length=6.0, mask_seed=1)


def test_the_client_knows_its_anchors_and_nothing_is_sent_either_way() -> None:
    algorithm = built(cps_dim=4)
    client = make_client([3, 3, 0, 0], random_prototypes([0, 1]))
    algorithm.client.init(client, STREAMS)
    assert torch.equal(client.state["values"], anchors_of(algorithm))
    assert algorithm.client.update(client, NO_FIT, Round(1, 1)) == Message()
    assert algorithm.server.broadcast(algorithm.server.init(STREAMS), INFO) == Message()
    assert algorithm.table2_parameters([2, 4]) == 0
    assert set(algorithm.watched({})) == {"prototype_length", "longest_prototype"}


def test_a_frame_with_rows_is_refused() -> None:
    expected = expected_frames(built(cps_dim=4), NUM_CLASSES, PROTO_DIM)
    frame = encode(Header(Kind.UPDATE, 1, 0, expected.digest), Message(rows=random_prototypes([0], width=4)))
    with pytest.raises(WireError, match="exchanges none"):
        open_frame(frame, expected, 0, 1, [Kind.UPDATE])


def test_a_defence_has_nothing_to_do() -> None:
    algorithm = built()
    assert defended(algorithm, Defence("guard")) is algorithm.server


def test_a_training_has_no_payload_and_is_read_by_the_anchors(quarters: FederatedData) -> None:
    settings = SimulationSettings(LocalTraining(rounds=6, batch_size=8), PROTO_DIM)
    played = InProcess(quarters, [tiny_net], built(cps_dim=3), settings, seed=0)
    records = [round_.record for round_ in played.rounds()]
    for record in records:
        for cost in (cost for ways in record.traffic.values() for cost in ways.values()):
            assert (cost.parameters, cost.payload) == (0, 0)
    assert played.server.state == {}
    accuracy = records[-1].accuracy["global"]
    assert accuracy is not None
    assert accuracy > 0.5
    first = records[0].accuracy["global"]
    assert first is not None, "anchors are there before round 1"


def test_a_weight_of_zero_is_legal_and_trains_like_local(quarters: FederatedData) -> None:
    settings = SimulationSettings(LocalTraining(rounds=1, batch_size=8), PROTO_DIM)
    played = InProcess(quarters, [tiny_net], built(cps_dim=3, proto_weight=0.0), settings, seed=0)
    *_, closing = played.rounds()
    assert closing.record.accuracy["head"] is not None


def test_sides_with_other_lengths_do_not_understand_each_other() -> None:
    mine, theirs = (expected_frames(built(length=length), NUM_CLASSES, PROTO_DIM) for length in (1.0, 2.0))
    frame = encode(Header(Kind.UPDATE, 1, 0, theirs.digest), Message())
    with pytest.raises(WireError, match="another federation"):
        open_frame(frame, mine, 0, 1, [Kind.UPDATE])
    assert replace(mine, digest=theirs.digest) == theirs


@pytest.mark.parametrize("length", [0.0, -1.0, math.inf])
def test_a_length_has_to_be_above_zero(length: float) -> None:
    with pytest.raises(ValueError, match="length must be above 0"):
        SPEC.hyper(length=length)
