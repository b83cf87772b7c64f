from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from support import FEDERATION, NO_FIT, NUM_CLASSES, PROTO_DIM, STREAMS, make_client, random_prototypes, update
from tinyproto.algorithms.base import ClientInfo, FederationSpec, Round
from tinyproto.algorithms.fedsa import SPEC, FedSAHyper, calibration, contrast, drawn_anchors, mean_gap
from tinyproto.core.prototypes import Message, Prototypes, mse_regulariser
from tinyproto.core.streams import Streams
from tinyproto.core.task import batch_plan
from tinyproto.engine.training import EagerTrainer

ALGORITHM = SPEC.build(FedSAHyper(proto_weight=2.0, contrast_weight=3.0, calibration_weight=5.0), FEDERATION)
INFO = ClientInfo(0, 10, 10, 2)
THREE = torch.ones(3, dtype=torch.bool)


def test_there_is_an_anchor_for_each_class_before_round_1() -> None:
    state = ALGORITHM.server.init(STREAMS)
    sent = ALGORITHM.server.broadcast(state, INFO).rows
    assert sent is not None
    assert sent.present.all()
    assert bool((sent.values >= 0).all())
    assert torch.equal(sent.values, drawn_anchors(NUM_CLASSES, PROTO_DIM, STREAMS))
    assert not torch.equal(sent.values, drawn_anchors(NUM_CLASSES, PROTO_DIM, Streams(1)))


def test_anchors_are_standardised_over_the_classes_and_half_of_them_is_zero() -> None:
    anchors = drawn_anchors(200, 50, STREAMS)  # the positive half of a standard Gaussian: mean 1/√2π, mean square 1/2
    assert float(anchors.mean()) == pytest.approx(1 / math.sqrt(2 * math.pi), abs=0.02)
    assert float(anchors.square().mean()) == pytest.approx(0.5, abs=0.03)


def test_one_class_alone_has_an_anchor_too() -> None:
    anchors = drawn_anchors(1, 50, STREAMS)
    assert bool(anchors.isfinite().all())
    assert anchors.any()


def test_anchors_move_towards_the_mean_of_the_holders_by_one_minus_alpha() -> None:
    algorithm = SPEC.build(FedSAHyper(anchor_decay=0.75), FederationSpec(3, 2, 0.1))
    state = {"values": torch.tensor([[4.0, 0.0], [0.0, 4.0], [1.0, 1.0]]), "present": THREE}
    first = Prototypes(torch.tensor([[0.0, 2.0], [8.0, 8.0], [0.0, 0.0]]), torch.tensor([True, True, False]))
    second = Prototypes(torch.tensor([[0.0, 6.0], [0.0, 0.0], [0.0, 0.0]]), torch.tensor([True, False, False]))
    updates = [update(first), update(second, 1)]
    after = algorithm.server.aggregate(state, updates, EagerTrainer(), Round(1, 1), STREAMS)
    # Class 0: 3/4 (4, 0) + 1/4 (0, 4). Class 1: 3/4 (0, 4) + 1/4 (8, 8). Nobody sent class 2.
    torch.testing.assert_close(after["values"], torch.tensor([[3.0, 1.0], [2.0, 5.0], [1.0, 1.0]]))
    assert after["present"].all()
    nothing = algorithm.server.aggregate(state, [], EagerTrainer(), Round(1, 1), STREAMS)
    assert torch.equal(nothing["values"], state["values"])


def test_the_gap_is_the_mean_distance_to_the_nearest_other_class() -> None:
    # On a line at 0, 3, 10 the nearest is 3, 3 and 7 away.
    values = torch.tensor([[0.0], [3.0], [10.0]])
    assert float(mean_gap(Prototypes(values, THREE))) == pytest.approx(13 / 3)
    assert float(mean_gap(Prototypes(values, torch.tensor([True, False, True])))) == pytest.approx(10)
    assert float(mean_gap(Prototypes(values, torch.tensor([True, False, False])))) == 0.0
    assert float(mean_gap(Prototypes.absent(3, 1))) == 0.0


def test_the_contrast_is_cross_entropy_over_negative_distances_with_the_margin_on_the_true_class() -> None:
    anchors = Prototypes(torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 2.0]]), THREE)
    found = contrast(torch.zeros(1, 2), torch.tensor([1]), anchors, torch.tensor(0.5))
    # Distances 5, 1, 2; the true class 1 is pushed to 1 + 0.5.
    assert float(found) == pytest.approx(math.log(math.exp(-5) + math.exp(-1.5) + math.exp(-2)) + 1.5, rel=1e-5)


def test_an_anchor_that_a_client_does_not_have_is_no_candidate() -> None:
    anchors = Prototypes(torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 0.0]]), torch.tensor([True, True, False]))
    features = torch.zeros(2, 2, requires_grad=True)
    found = contrast(features, torch.tensor([1, 2]), anchors, torch.tensor(0.0))
    expected = math.log(math.exp(-5) + math.exp(-1)) + 1  # of the first sample; the second has no anchor
    assert float(found.detach()) == pytest.approx(expected / 2, rel=1e-4)
    found.backward()  # type: ignore[no-untyped-call]
    assert features.grad is not None
    assert bool(features.grad.isfinite().all())
    assert not features.grad[1].any()


def test_the_head_is_calibrated_on_the_anchors_that_are_there() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0], [0.0, math.log(2), 0.0], [9.0, 9.0, 9.0]])
    found = calibration(logits, torch.tensor([True, True, False]))
    assert float(found) == pytest.approx((math.log(3) + math.log(2)) / 2)  # probabilities 1/3 and 2/4
    assert float(calibration(logits, ~THREE)) == 0.0


def test_the_loss_is_the_weighted_sum_of_its_four_terms_and_the_margin_the_larger_gap() -> None:
    client = make_client([4, 4, 4, 0], random_prototypes([0, 1]))
    ALGORITHM.client.init(client, STREAMS)
    anchors = ALGORITHM.server.broadcast(ALGORITHM.server.init(STREAMS), INFO).rows
    assert anchors is not None
    assert ALGORITHM.client.receive(client, Message(rows=anchors)) is not None
    margin = torch.maximum(mean_gap(anchors), mean_gap(client.local))
    torch.testing.assert_close(client.state["margin"], margin)
    client.model.eval()
    task = ALGORITHM.client.task(client, batch_plan(12, 12, 1, last="keep", shuffle=None), seed=0)
    batch = client.train.batch(torch.arange(12))
    step = task.loss(task.modules, batch, task.context)
    features, logits = client.model(batch.inputs)
    terms = [
        functional.cross_entropy(logits, batch.labels),
        mse_regulariser(features, batch.labels, anchors),
        contrast(features, batch.labels, anchors, margin),
        calibration(client.model.head(anchors.values), anchors.present),
    ]
    torch.testing.assert_close(step.parts, torch.stack(terms).detach())
    torch.testing.assert_close(step.loss, terms[0] + 2 * terms[1] + 3 * terms[2] + 5 * terms[3])


def test_a_longer_gap_between_the_client_s_own_prototypes_is_the_margin() -> None:
    local = random_prototypes([0, 1])
    client = make_client([4, 4, 0, 0], Prototypes(100 * local.values, local.present))
    ALGORITHM.client.receive(client, Message(rows=random_prototypes([0, 1, 2, 3], 1)))
    assert float(client.state["margin"]) == pytest.approx(100 * float(mean_gap(local)), rel=1e-5)


def test_without_anchors_the_loss_is_cross_entropy_alone() -> None:
    client = make_client([4, 4, 0, 0])
    ALGORITHM.client.init(client, STREAMS)
    task = ALGORITHM.client.task(client, batch_plan(8, 8, 1, last="keep", shuffle=None), seed=0)
    step = task.loss(task.modules, client.train.batch(torch.arange(8)), task.context)
    assert step.parts[1:].tolist() == [0.0, 0.0, 0.0]
    torch.testing.assert_close(step.loss.detach(), step.parts[0])


def test_a_client_sends_its_prototypes_in_full() -> None:
    client = make_client([4, 4, 0, 0], random_prototypes([0, 1]))
    assert ALGORITHM.client.update(client, NO_FIT, Round(1, 1)).rows is client.local


@pytest.mark.parametrize("field", ["contrast_weight", "calibration_weight", "proto_weight"])
def test_weights_must_not_be_negative(field: str) -> None:
    SPEC.hyper(**{field: 0.0})
    with pytest.raises(ValueError, match=f"{field} must not be negative"):
        SPEC.hyper(**{field: -1.0})


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_the_decay_lies_between_0_and_1(value: float) -> None:
    with pytest.raises(ValueError, match="anchor_decay must be between 0 and 1"):
        SPEC.hyper(anchor_decay=value)
