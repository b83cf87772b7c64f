from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from support import (
    FEDERATION,
    NO_FIT,
    NUM_CLASSES,
    PROTO_DIM,
    STREAMS,
    make_client,
    random_prototypes,
    same_tensors,
    tensors_update,
    tiny_net,
    update,
    wide_net,
)
from tinyproto.algorithms.base import ClientInfo, Round, Update
from tinyproto.algorithms.defence import Defence, defended
from tinyproto.algorithms.exchange import drawn, exchanged
from tinyproto.algorithms.fedgh import SPEC, FedGHHyper
from tinyproto.core import cps
from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.core.task import State
from tinyproto.engine.training import EagerTrainer
from tinyproto.models.split import SplitModel

MIXED = replace(FEDERATION, networks=(tiny_net, wide_net))
ALGORITHM = SPEC.build(FedGHHyper(), MIXED)
INFO = ClientInfo(0, 10, 10, 2)
ZERO = {"weight": torch.zeros(NUM_CLASSES, PROTO_DIM), "bias": torch.zeros(NUM_CLASSES)}


def deep_headed(input_shape: tuple[int, ...], proto_dim: int, num_classes: int) -> SplitModel:
    head = nn.Sequential(nn.Linear(proto_dim, 7), nn.ReLU(), nn.Linear(7, num_classes))
    return SplitModel(tiny_net(input_shape, proto_dim, num_classes).extractor, head)


def trained(hyper: FedGHHyper, state: State, *updates: Update) -> State:
    server = SPEC.build(hyper, MIXED).server
    return server.aggregate(state, updates, EagerTrainer(), Round(1, 1), STREAMS)


def test_the_first_head_is_the_server_s_draw() -> None:
    sent = ALGORITHM.server.broadcast(ALGORITHM.server.init(STREAMS), INFO)
    assert sent.rows is None
    assert same_tensors(sent.tensors, exchanged(drawn(tiny_net, MIXED.shape, STREAMS).head, buffers=False))


def test_what_arrives_replaces_the_head_and_class_means_are_sent() -> None:
    client = make_client([3, 3, 0, 0], random_prototypes([0, 1]))
    head = {"weight": torch.ones(NUM_CLASSES, PROTO_DIM), "bias": torch.arange(float(NUM_CLASSES))}
    assert ALGORITHM.client.receive(client, Message(tensors=head)) is None
    assert same_tensors(exchanged(client.model.head, buffers=False), head)
    message = ALGORITHM.client.update(client, NO_FIT, Round(1, 1))
    assert message.tensors == {}
    assert message.rows is client.local
    assert message.parameters == 2 * PROTO_DIM


def test_one_step_of_sgd_from_a_head_of_zero() -> None:
    # All four classes have probability 1/4, so the logits' gradient is 1/4 − [class 1]; the rate is 0.1.
    sent = random_prototypes([1])
    state = trained(FedGHHyper(server_learning_rate=0.1), ZERO, update(sent))
    slopes = torch.tensor([0.25, -0.75, 0.25, 0.25])
    torch.testing.assert_close(state["bias"], -0.1 * slopes)
    torch.testing.assert_close(state["weight"], -0.1 * torch.outer(slopes, sent.values[1]))


def test_every_single_upload_counts_once_an_epoch() -> None:
    # In one batch of two means of classes 0 and 1, the bias moves against the mean of both gradients, in each epoch.
    sent = [update(random_prototypes([0], 1)), update(random_prototypes([1], 2), 1)]
    once = trained(FedGHHyper(server_learning_rate=0.1, server_batch_size=2), ZERO, *sent)
    torch.testing.assert_close(once["bias"], -0.1 * torch.tensor([-0.25, -0.25, 0.25, 0.25]))
    many = trained(FedGHHyper(server_epochs=50, server_learning_rate=0.1), ZERO, *sent)
    for number, update_ in enumerate(sent):
        rows = update_.message.rows
        assert rows is not None
        assert int((rows.values[number] @ many["weight"].T + many["bias"]).argmax()) == number


def test_with_cps_the_owned_dimensions_travel_and_the_head_learns_from_them() -> None:
    sparse = SPEC.build(FedGHHyper(sent_dim=3, server_learning_rate=0.1), MIXED)
    client = make_client([3, 3, 0, 0], random_prototypes([1]))
    rows = sparse.client.update(client, NO_FIT, Round(1, 1)).rows
    assert rows is not None
    assert rows.values.shape == (NUM_CLASSES, 3) == (NUM_CLASSES, sparse.row_width)
    state = sparse.server.aggregate(ZERO, [update(rows)], EagerTrainer(), Round(1, 1), STREAMS)
    assert sparse.masks is not None
    kept = cps.sparsify(client.local, sparse.masks).values[1]
    torch.testing.assert_close(state["weight"][1], 0.075 * kept)
    assert state["weight"].shape == (NUM_CLASSES, PROTO_DIM)


@pytest.mark.parametrize("updates", [[], [update(Prototypes.absent(NUM_CLASSES, PROTO_DIM))], [update(None)]])
def test_a_round_without_rows_changes_nothing(updates: list[Update]) -> None:
    state = ALGORITHM.server.init(STREAMS)
    assert ALGORITHM.server.aggregate(state, updates, EagerTrainer(), Round(1, 1), STREAMS) is state


def test_the_state_that_was_given_is_not_changed_and_equal_seeds_give_equal_heads() -> None:
    state = ALGORITHM.server.init(STREAMS)
    before = {name: value.clone() for name, value in state.items()}
    sent = [update(random_prototypes([0, 1, 3], seed), seed) for seed in range(3)]
    first, again = (trained(FedGHHyper(), state, *sent) for _ in range(2))
    assert same_tensors(state, before)
    assert same_tensors(first, again)
    assert not same_tensors(first, before)


def test_different_heads_are_refused_by_the_names_of_their_networks() -> None:
    message = "the heads of tiny_net and deep_headed have different parameters, so they cannot be shared"
    with pytest.raises(ValueError, match=message):
        SPEC.build(FedGHHyper(), replace(FEDERATION, networks=(tiny_net, wide_net, deep_headed)))


def test_the_guard_leaves_out_hostile_rows_and_tensors_that_nobody_asked_for() -> None:
    side = defended(ALGORITHM, Defence("guard"))
    good = [update(random_prototypes([0, 1, 2, 3]), client) for client in range(4)]
    rows = good[0].message.rows
    assert rows is not None
    hostile = update(Prototypes(-1e3 * rows.values, rows.present), 4)
    head = tensors_update({name: value + 1 for name, value in ZERO.items()}, 5)
    states = [
        side.aggregate(ZERO, sent, EagerTrainer(), Round(1, 1), STREAMS) for sent in (good, [*good, hostile, head])
    ]
    assert same_tensors(*states)


@pytest.mark.parametrize("field", ["server_epochs", "server_learning_rate", "server_batch_size", "sent_dim"])
def test_hyper_parameters_have_to_be_above_zero(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be above 0"):
        SPEC.hyper(**{field: 0})
