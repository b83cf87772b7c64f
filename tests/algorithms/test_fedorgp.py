from __future__ import annotations

import math

import pytest
import torch

from support import FEDERATION, NUM_CLASSES, PROTO_DIM, STREAMS, make_client, random_prototypes, same_tensors, update
from tinyproto.algorithms.base import Algorithm, ClientInfo, Round, Update
from tinyproto.algorithms.fedorgp import SPEC, FedORGPHyper, cosine_regulariser, orthogonality_loss
from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.core.task import State, batch_plan
from tinyproto.engine.training import EagerTrainer

ALGORITHM = SPEC.build(FedORGPHyper(server_epochs=60, server_batch_size=4), FEDERATION)
SPARSE = SPEC.build(FedORGPHyper(server_epochs=20, sent_dim=5), FEDERATION)
INFO = ClientInfo(0, 10, 10, 2)
UPLOADS = [update(random_prototypes([0, 1], seed=1)), update(random_prototypes([1, 2], seed=2), 1)]
THREE = torch.ones(3, dtype=torch.bool)


def fitted(algorithm: Algorithm, updates: list[Update], rounds: int = 1) -> State:
    state = algorithm.server.init(STREAMS)
    for number in range(1, rounds + 1):
        state = algorithm.server.aggregate(state, updates, EagerTrainer(), Round(number, rounds), STREAMS)
    return state


def test_the_client_pays_one_minus_the_cosine_and_lengths_do_not_count() -> None:
    prototypes = Prototypes(torch.tensor([[2.0, 0.0], [3.0, 4.0], [0.0, 0.0]]), torch.tensor([True, True, False]))
    features = torch.tensor([[5.0, 0.0], [0.0, 7.0], [10.0, 0.0], [1.0, 1.0]])
    # cosines 1, 0 and 3/5; the last sample's class has no prototype.
    found = cosine_regulariser(features, torch.tensor([0, 0, 1, 2]), prototypes)
    assert float(found) == pytest.approx((0 + 1 + 0.4 + 0) / 4)


def test_a_feature_of_zero_adds_nothing_and_gets_no_gradient() -> None:
    features = torch.zeros(1, 2, requires_grad=True)
    found = cosine_regulariser(features, torch.tensor([0]), Prototypes(torch.ones(3, 2), THREE))
    found.backward()  # type: ignore[no-untyped-call]
    assert float(found.detach()) == 0.0
    assert features.grad is not None
    assert not features.grad.any()


def test_the_server_pays_for_the_angle_to_the_own_prototype_and_for_cosines_to_the_others() -> None:
    learned = torch.tensor([[2.0, 0.0], [0.0, 3.0], [-3.0, -4.0]])
    uploads, labels = torch.tensor([[4.0, 0.0], [3.0, 4.0]]), torch.tensor([0, 1])
    # Cosines 1, 0, −3/5 and 3/5, 4/5, −1.
    found = orthogonality_loss(uploads, labels, learned, THREE, weight=0.5)
    assert float(found) == pytest.approx((0 + 0.5 * 0.6) + (0.2 + 0.5 * (0.6 + 1)))
    without_last = torch.tensor([True, True, False])
    assert float(orthogonality_loss(uploads, labels, learned, without_last, 0.5)) == pytest.approx(0.2 + 0.5 * 0.6)
    assert float(orthogonality_loss(uploads, labels, learned, THREE, 0.0)) == pytest.approx(0.2)


def test_orthogonal_prototypes_in_their_uploads_directions_cost_nothing() -> None:
    eye = torch.eye(3)
    assert float(orthogonality_loss(5 * eye, torch.arange(3), 2 * eye, THREE, weight=1.0)) == pytest.approx(0.0)


def test_the_fit_makes_directions_more_orthogonal_than_the_means() -> None:
    sent = [update(random_prototypes([0, 1, 2, 3], seed), seed) for seed in range(3)]
    values = fitted(ALGORITHM, sent, rounds=5)["values"]
    means = torch.stack([random_prototypes([0, 1, 2, 3], seed).values for seed in range(3)]).mean(0)
    pairs = ~torch.eye(NUM_CLASSES, dtype=torch.bool)
    units = means / means.norm(dim=1, keepdim=True)
    assert float((values @ values.T)[pairs].abs().mean()) < 0.5 * float((units @ units.T)[pairs].abs().mean())


def test_rows_have_length_1_and_only_classes_ever_uploaded_are_offered() -> None:
    state = fitted(ALGORITHM, UPLOADS)
    assert state["present"].tolist() == [True, True, True, False]
    torch.testing.assert_close(state["values"].norm(dim=1), torch.tensor([1.0, 1.0, 1.0, 0.0]))
    assert "margin" not in state
    everything = SPEC.build(FedORGPHyper(server_epochs=1, offered_classes="all"), FEDERATION)
    assert fitted(everything, UPLOADS)["present"].all()


def test_nothing_is_sent_before_anything_was_uploaded_and_a_round_without_uploads_changes_nothing() -> None:
    state = ALGORITHM.server.init(STREAMS)
    assert ALGORITHM.server.broadcast(state, INFO).rows is None
    assert same_tensors(ALGORITHM.server.aggregate(state, [], EagerTrainer(), Round(1, 1), STREAMS), state)


def test_a_single_class_is_fitted_without_a_nan() -> None:
    state = fitted(ALGORITHM, [update(random_prototypes([2]))])
    assert bool(state["values"].isfinite().all())
    assert state["present"].tolist() == [False, False, True, False]


def test_with_cps_the_owned_dimensions_travel() -> None:
    state = fitted(SPARSE, [update(random_prototypes([0, 1, 2], width=5))])
    assert state["values"].shape == (NUM_CLASSES, 5)
    torch.testing.assert_close(state["values"].norm(dim=1), torch.tensor([1.0, 1.0, 1.0, 0.0]))
    client = make_client([4, 4, 0, 0])
    received = SPARSE.client.receive(client, SPARSE.server.broadcast(state, INFO))
    assert received is not None
    assert SPARSE.masks is not None
    assert not received.values[~SPARSE.masks].any()


def test_the_loss_is_cross_entropy_plus_lambda_times_the_pull() -> None:
    client, received = make_client([4, 4, 0, 0]), random_prototypes([0, 1])
    ALGORITHM.client.init(client, STREAMS)
    ALGORITHM.client.receive(client, Message(rows=received))
    client.model.eval()
    task = ALGORITHM.client.task(client, batch_plan(8, 8, 1, last="keep", shuffle=None), seed=0)
    batch = client.train.batch(torch.arange(8))
    step = task.loss(task.modules, batch, task.context)
    pull = cosine_regulariser(client.model(batch.inputs).features, batch.labels, received)
    torch.testing.assert_close(step.parts[1], pull.detach())
    torch.testing.assert_close(step.loss, step.parts[0] + 10.0 * pull)


def test_equal_seeds_give_equal_states() -> None:
    assert same_tensors(fitted(ALGORITHM, UPLOADS), fitted(ALGORITHM, UPLOADS))


@pytest.mark.parametrize("field", ["server_epochs", "server_learning_rate", "server_batch_size", "sent_dim"])
def test_hyper_parameters_have_to_be_above_zero(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be above 0"):
        SPEC.hyper(**{field: 0})


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("field", ["proto_weight", "orthogonality_weight"])
def test_weights_must_not_be_negative(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} must not be negative"):
        SPEC.hyper(**{field: value})


def test_its_rows_have_all_dimensions_unless_an_entry_says_otherwise() -> None:
    assert (ALGORITHM.row_width, SPARSE.row_width) == (PROTO_DIM, 5)
