from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from support import FEDERATION, NO_FIT, NUM_CLASSES, PROTO_DIM, STREAMS, make_client, random_prototypes, update
from tinyproto.algorithms.base import ClientInfo, Round
from tinyproto.algorithms.fedproto import SPEC, FedProtoHyper, keep_last
from tinyproto.core.prototypes import Message, Prototypes, mse_regulariser
from tinyproto.core.task import batch_plan
from tinyproto.engine.training import EagerTrainer

ALGORITHM = SPEC.build(FedProtoHyper(proto_weight=3.0), FEDERATION)
INFO = ClientInfo(0, 10, 10, 2)
ROUND = Round(1, 2)


def test_the_loss_is_cross_entropy_plus_the_weighted_pull() -> None:
    client, received = make_client([4, 4, 4, 0]), random_prototypes([0, 2])
    client.model.eval()
    ALGORITHM.client.init(client, STREAMS)
    ALGORITHM.client.receive(client, Message(rows=received))
    task = ALGORITHM.client.task(client, batch_plan(12, 12, 1, last="keep", shuffle=None), seed=0)
    batch = client.train.batch(torch.arange(12))
    output = client.model(batch.inputs)
    cross_entropy = functional.cross_entropy(output.logits, batch.labels)
    pull = mse_regulariser(output.features, batch.labels, received)
    step = task.loss(task.modules, batch, task.context)
    torch.testing.assert_close(step.loss, cross_entropy + 3.0 * pull)
    torch.testing.assert_close(step.parts, torch.stack((cross_entropy, pull)).detach())
    assert step.observed is None


def test_round_one_has_the_same_task_over_no_prototypes() -> None:
    client = make_client([4, 4, 0, 0])
    ALGORITHM.client.init(client, STREAMS)
    plan = batch_plan(8, 8, 1, last="keep", shuffle=None)
    first = ALGORITHM.client.task(client, plan, seed=0)
    shapes = {name: value.shape for name, value in first.context.items()}
    step = first.loss(first.modules, client.train.batch(torch.arange(8)), first.context)
    assert float(step.parts[1]) == 0.0
    ALGORITHM.client.receive(client, Message(rows=random_prototypes([1])))
    later = ALGORITHM.client.task(client, plan, seed=1)
    assert later.key == first.key
    assert later.loss is first.loss
    assert {name: value.shape for name, value in later.context.items()} == shapes


def test_running_prototypes_observe_the_features_of_the_batch() -> None:
    running = SPEC.build(FedProtoHyper(prototype_source="running"), FEDERATION)
    client = make_client([4, 4, 0, 0])
    client.model.eval()
    running.client.init(client, STREAMS)
    task = running.client.task(client, batch_plan(8, 8, 1, last="keep", shuffle=None), seed=0)
    batch = client.train.batch(torch.arange(8))
    observed = task.loss(task.modules, batch, task.context).observed
    assert observed is not None
    assert not observed.requires_grad
    torch.testing.assert_close(observed, client.model(batch.inputs).features.detach())


def test_a_client_sends_the_prototypes_of_the_classes_it_holds() -> None:
    local = random_prototypes([1, 3])
    message = ALGORITHM.client.update(make_client([0, 5, 0, 5], local), NO_FIT, ROUND)
    assert message.rows is local
    assert message.parameters == 2 * PROTO_DIM


def test_the_server_averages_over_holders_and_keeps_what_nobody_sent() -> None:
    state = ALGORITHM.server.init(STREAMS)
    assert ALGORITHM.server.broadcast(state, INFO).rows is None
    first, second = random_prototypes([0, 1], seed=1), random_prototypes([1], seed=2)
    state = ALGORITHM.server.aggregate(state, [update(first), update(second, 1)], EagerTrainer(), ROUND, STREAMS)
    sent = ALGORITHM.server.broadcast(state, INFO).rows
    assert sent is not None
    torch.testing.assert_close(sent.values[0], first.values[0])
    torch.testing.assert_close(sent.values[1], (first.values[1] + second.values[1]) / 2)
    assert sent.present.tolist() == [True, True, False, False]

    third = random_prototypes([3], seed=3)
    later = ALGORITHM.server.aggregate(state, [update(third)], EagerTrainer(), ROUND, STREAMS)
    assert later["present"].tolist() == [True, True, False, True]
    torch.testing.assert_close(later["values"][0], first.values[0])


def test_a_round_without_uploads_changes_nothing() -> None:
    state = ALGORITHM.server.init(STREAMS)
    assert ALGORITHM.server.aggregate(state, [update(None)], EagerTrainer(), ROUND, STREAMS) is state


def test_table_2_counts_held_classes_up_and_all_classes_down() -> None:
    assert ALGORITHM.table2_parameters([2, 3]) == (2 + 3 + 2 * NUM_CLASSES) * PROTO_DIM


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="proto_weight must not be negative"):
        FedProtoHyper(proto_weight=-1.0)


def test_a_class_nobody_sent_keeps_its_last_value() -> None:
    last = Prototypes(torch.tensor([[9.0, 9.0], [8.0, 8.0], [7.0, 7.0]]), torch.tensor([True, True, False]))
    new = Prototypes(torch.tensor([[4.0, 0.0], [0.0, 0.0], [0.0, 0.0]]), torch.tensor([True, False, False]))
    kept = keep_last(new, last)
    assert kept.values.tolist() == [[4.0, 0.0], [8.0, 8.0], [7.0, 7.0]]
    assert kept.present.tolist() == [True, True, False]
