from __future__ import annotations

import pytest
import torch

from support import FEDERATION, NUM_CLASSES, PROTO_DIM, STREAMS, random_prototypes, update
from tinyproto.algorithms.base import ClientInfo, Round
from tinyproto.algorithms.fedtgp import SPEC, FedTGPHyper
from tinyproto.core.prototypes import nearest
from tinyproto.engine.training import EagerTrainer

HYPER = FedTGPHyper(server_epochs=60, server_learning_rate=0.05, server_batch_size=2)
ALGORITHM = SPEC.build(HYPER, FEDERATION)
INFO = ClientInfo(0, 10, 10, 2)
ROUND = Round(1, 2)
UPLOADS = [update(random_prototypes([0, 1], seed=1)), update(random_prototypes([1, 2], seed=2), 1)]


def test_nothing_is_sent_before_anything_was_uploaded() -> None:
    assert ALGORITHM.server.broadcast(ALGORITHM.server.init(STREAMS), INFO).rows is None


def test_the_fit_brings_each_upload_nearest_to_its_own_class() -> None:
    state = ALGORITHM.server.init(STREAMS)
    for number in range(1, 6):
        state = ALGORITHM.server.aggregate(state, UPLOADS, EagerTrainer(), Round(number, 6), STREAMS)
    learned = ALGORITHM.server.broadcast(state, INFO).rows
    assert learned is not None
    for sent in UPLOADS:
        assert sent.message.rows is not None
        held = sent.message.rows.present.nonzero().squeeze(1)
        assert nearest(sent.message.rows.values[held], learned).tolist() == held.tolist()


def test_only_classes_ever_uploaded_are_offered() -> None:
    state = ALGORITHM.server.aggregate(ALGORITHM.server.init(STREAMS), UPLOADS, EagerTrainer(), ROUND, STREAMS)
    assert state["present"].tolist() == [True, True, True, False]
    assert state["values"][3].tolist() == [0.0] * PROTO_DIM
    later = ALGORITHM.server.aggregate(state, [update(random_prototypes([3]))], EagerTrainer(), Round(2, 2), STREAMS)
    assert later["present"].all()


def test_all_classes_are_offered_where_the_published_runs_did() -> None:
    everything = SPEC.build(FedTGPHyper(server_epochs=1, offered_classes="all"), FEDERATION)
    state = everything.server.aggregate(everything.server.init(STREAMS), UPLOADS, EagerTrainer(), ROUND, STREAMS)
    assert state["present"].all()
    assert bool((state["values"][3] != 0).any())


def test_the_state_that_was_given_is_not_changed() -> None:
    state = ALGORITHM.server.init(STREAMS)
    before = {name: value.clone() for name, value in state.items()}
    ALGORITHM.server.aggregate(state, UPLOADS, EagerTrainer(), ROUND, STREAMS)
    assert all(torch.equal(state[name], value) for name, value in before.items())


def test_equal_seeds_give_equal_states_and_the_global_generator_is_left_alone() -> None:
    def fitted() -> dict[str, torch.Tensor]:
        return ALGORITHM.server.aggregate(ALGORITHM.server.init(STREAMS), UPLOADS, EagerTrainer(), ROUND, STREAMS)

    torch.manual_seed(3)
    before = torch.get_rng_state()
    first, second = fitted(), fitted()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_round_without_uploads_changes_nothing() -> None:
    state = ALGORITHM.server.init(STREAMS)
    assert ALGORITHM.server.aggregate(state, [], EagerTrainer(), ROUND, STREAMS) is state


def test_a_single_class_is_fitted_without_a_nan() -> None:
    state = ALGORITHM.server.aggregate(
        ALGORITHM.server.init(STREAMS), [update(random_prototypes([2]))], EagerTrainer(), ROUND, STREAMS
    )
    assert bool(state["values"].isfinite().all())
    assert state["present"].tolist() == [False, False, True, False]


def test_the_state_names_the_network_and_the_rows() -> None:
    state = ALGORITHM.server.init(STREAMS)
    assert state["network.embedding.weight"].shape == (NUM_CLASSES, PROTO_DIM)
    assert state["values"].shape == (NUM_CLASSES, PROTO_DIM)


@pytest.mark.parametrize("field", ["server_epochs", "server_learning_rate", "server_batch_size", "margin_cap"])
def test_hyper_parameters_have_to_be_above_zero(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be above 0"):
        SPEC.hyper(**{field: 0})
