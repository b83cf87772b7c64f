from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from support import FEDERATION, NO_FIT, NUM_CLASSES, STREAMS, make_client, random_prototypes, update
from support_rounds import build, simulation
from tinyproto.algorithms.base import Client, ClientInfo, Round
from tinyproto.algorithms.feddistill import SPEC, FedDistillHyper, class_logit_loss
from tinyproto.core.prototypes import Message, Prototypes, class_means
from tinyproto.core.task import FitResult, TensorData, batch_plan
from tinyproto.data.dataset import FederatedData
from tinyproto.engine.training import EagerTrainer
from tinyproto.models.split import SplitModel

ALGORITHM = SPEC.build(FedDistillHyper(distill_weight=2.0), FEDERATION)
OTHERS = SPEC.build(FedDistillHyper(teachers="others"), FEDERATION)
INFO = ClientInfo(0, 10, 10, 2)
ROUND = Round(1, 2)


def logits(held: list[int], seed: int = 0) -> Prototypes:
    return random_prototypes(held, seed, width=NUM_CLASSES)


def started(counts: list[int]) -> Client:
    client = make_client(counts)
    ALGORITHM.client.init(client, STREAMS)
    return client


def test_the_loss_is_cross_entropy_plus_the_weighted_pull_of_the_class_logits() -> None:
    client, received = started([4, 4, 4, 0]), logits([0, 2])
    client.model.eval()
    assert ALGORITHM.client.receive(client, Message(rows=received)) is None  # nothing to classify by
    task = ALGORITHM.client.task(client, batch_plan(12, 12, 1, last="keep", shuffle=None), seed=0)
    batch = client.train.batch(torch.arange(12))
    said = client.model(batch.inputs).logits
    cross_entropy = functional.cross_entropy(said, batch.labels)
    pull = class_logit_loss(said, batch.labels, received)
    step = task.loss(task.modules, batch, task.context)
    torch.testing.assert_close(step.loss, cross_entropy + 2.0 * pull)
    torch.testing.assert_close(step.parts, torch.stack((cross_entropy, pull)).detach())
    assert step.observed is not None
    torch.testing.assert_close(step.observed, said.detach())
    assert not step.observed.requires_grad


def test_round_one_is_cross_entropy_alone_with_the_same_task() -> None:
    client = started([4, 4, 0, 0])
    plan = batch_plan(8, 8, 1, last="keep", shuffle=None)
    assert ALGORITHM.server.broadcast(ALGORITHM.server.init(STREAMS), INFO) == Message()
    ALGORITHM.client.receive(client, Message())
    first = ALGORITHM.client.task(client, plan, seed=0)
    step = first.loss(first.modules, client.train.batch(torch.arange(8)), first.context)
    assert float(step.parts[1]) == 0.0
    torch.testing.assert_close(step.loss.detach(), step.parts[0])
    ALGORITHM.client.receive(client, Message(rows=logits([1])))
    later = ALGORITHM.client.task(client, plan, seed=1)
    assert (later.key, later.loss) == (first.key, first.loss)


def test_rows_are_the_mean_logits_given_in_training_in_the_last_epoch() -> None:
    client = started([3, 0, 5, 0])
    client.model = SplitModel(nn.Flatten(), nn.Linear(36, NUM_CLASSES))
    twin = nn.Linear(36, NUM_CLASSES)
    twin.load_state_dict(client.model.head.state_dict())
    plan = batch_plan(8, 4, 2, last="keep", shuffle=torch.Generator().manual_seed(1))
    (result,) = EagerTrainer().fit([ALGORITHM.client.task(client, plan, seed=0)])
    sent = ALGORITHM.client.update(client, result, ROUND).rows

    said, labels = [], []
    for epoch in range(2):
        for start in (0, 4):
            batch = client.train.batch(plan.order[epoch, start : start + 4])
            output = twin(batch.inputs.flatten(1))
            if epoch == 1:  # before the step, as it was said
                said.append(output.detach())
                labels.append(batch.labels)
            gradients = torch.autograd.grad(functional.cross_entropy(output, batch.labels), list(twin.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(twin.parameters(), gradients, strict=True):
                    parameter.sub_(FEDERATION.learning_rate * gradient)
    expected = class_means(torch.cat(said), torch.cat(labels), NUM_CLASSES)
    assert sent is not None
    assert sent.present.tolist() == [True, False, True, False]
    torch.testing.assert_close(sent.values, expected.values)


def test_a_client_sends_a_row_of_k_for_every_class_it_trained_on() -> None:
    client = started([3, 0, 5, 0])
    (result,) = EagerTrainer().fit(
        [ALGORITHM.client.task(client, batch_plan(8, 4, 1, last="keep", shuffle=None), seed=0)]
    )
    assert ALGORITHM.client.update(client, result, ROUND).parameters == 2 * NUM_CLASSES
    assert ALGORITHM.row_width == NUM_CLASSES
    assert not ALGORITHM.tensor_shapes


def test_a_client_without_training_samples_sends_nothing() -> None:
    client = started([1, 1, 1, 1])
    client.train = TensorData(torch.zeros(0, 1, 6, 6), torch.zeros(0, dtype=torch.int64))
    (result,) = EagerTrainer().fit(
        [ALGORITHM.client.task(client, batch_plan(0, 4, 1, last="keep", shuffle=None), seed=0)]
    )
    assert ALGORITHM.client.update(client, result, ROUND) == Message()
    assert ALGORITHM.client.update(client, NO_FIT, ROUND) == Message()
    assert isinstance(result, FitResult)


def test_the_server_averages_over_holders_all_alike_and_keeps_what_nobody_sent() -> None:
    first, second = logits([0, 1], seed=1), logits([1], seed=2)
    state = ALGORITHM.server.aggregate(
        ALGORITHM.server.init(STREAMS), [update(first, samples=1), update(second, 1, samples=99)],
        EagerTrainer(), ROUND, STREAMS,
    )  # fmt: skip
    sent = ALGORITHM.server.broadcast(state, INFO).rows
    assert sent is not None
    torch.testing.assert_close(sent.values[0], first.values[0])
    torch.testing.assert_close(sent.values[1], (first.values[1] + second.values[1]) / 2)
    assert sent.present.tolist() == [True, True, False, False]
    later = ALGORITHM.server.aggregate(state, [update(logits([3]))], EagerTrainer(), ROUND, STREAMS)
    assert later["present"].tolist() == [True, True, False, True]


def row(*values: float) -> Prototypes:
    """Class 1 with these logits, and no other class."""
    rows = torch.zeros(NUM_CLASSES, NUM_CLASSES)
    rows[1] = torch.tensor(values)
    return Prototypes(rows, torch.tensor([False, True, False, False]))


def test_each_client_learns_from_the_others_and_who_sent_nothing_from_all() -> None:
    # Class 1: (3, 0, 0, 0), (0, 6, 0, 0) and (0, 0, 9, 0). Without the first the mean is (0, 3, 4.5, 0).
    uploads = [update(row(3, 0, 0, 0), 0), update(row(0, 6, 0, 0), 1, samples=99), update(row(0, 0, 9, 0), 4)]
    state = OTHERS.server.aggregate(OTHERS.server.init(STREAMS), uploads, EagerTrainer(), ROUND, STREAMS)
    means = {0: [0, 3, 4.5, 0], 1: [1.5, 0, 4.5, 0], 4: [1.5, 3, 0, 0], 2: [1, 2, 3, 0], -1: [1, 2, 3, 0]}
    for client, expected in means.items():
        sent = OTHERS.server.broadcast(state, replace(INFO, id=client)).rows
        assert sent is not None
        assert sent.values[1].tolist() == expected
        assert sent.present.tolist() == [False, True, False, False]


def test_a_class_that_only_one_client_sent_has_no_teacher_for_it() -> None:
    both = Prototypes(torch.ones(NUM_CLASSES, NUM_CLASSES), torch.tensor([True, True, False, False]))
    uploads = [update(both, 0), update(row(5, 5, 5, 5), 1)]
    state = OTHERS.server.aggregate(OTHERS.server.init(STREAMS), uploads, EagerTrainer(), ROUND, STREAMS)
    alone, other = (OTHERS.server.broadcast(state, replace(INFO, id=client)).rows for client in (0, 1))
    assert alone is not None
    assert other is not None
    assert (alone.present.tolist(), other.present.tolist()) == ([False, True, False, False], [True, True, False, False])
    assert alone.values.tolist() == row(5, 5, 5, 5).values.tolist()
    assert other.values[1].tolist() == [1, 1, 1, 1]
    only = OTHERS.server.aggregate(OTHERS.server.init(STREAMS), [update(both, 0)], EagerTrainer(), ROUND, STREAMS)
    assert OTHERS.server.broadcast(only, INFO) == Message()


def test_a_class_keeps_its_last_senders_until_it_is_sent_again() -> None:
    server, zero = OTHERS.server, Prototypes(torch.ones(4, 4), torch.tensor([True, False, False, False]))
    state = server.init(STREAMS)
    for uploads in ([update(row(2, 0, 0, 0), 0), update(row(4, 0, 0, 0), 1)], [update(zero, 2)], []):
        state = server.aggregate(state, uploads, EagerTrainer(), ROUND, STREAMS)
    found = [server.broadcast(state, replace(INFO, id=client)).rows for client in (0, 1, 2)]
    assert [float(rows.values[1, 0]) for rows in found if rows is not None] == [4, 2, 3]
    later = server.aggregate(state, [update(row(8, 0, 0, 0), 1)], EagerTrainer(), ROUND, STREAMS)
    found = [server.broadcast(later, replace(INFO, id=client)).rows for client in (0, 1, 2)]
    assert [bool(rows.present[1]) for rows in found if rows is not None] == [True, False, True]
    assert found[0] is not None
    assert float(found[0].values[1, 0]) == 8  # client 0's own row of the first round is in no mean any more


def test_without_its_own_logits_a_client_receives_no_more_bytes(quarters: FederatedData) -> None:
    costs = []
    for teachers in ("all", "others"):
        played = simulation(quarters, build("feddistill", teachers=teachers))
        _, second, _ = (result.record for result in played.rounds())
        costs.append(second.traffic["training"])
    assert costs[1]["up"] == costs[0]["up"]
    assert costs[1]["down"].parameters == costs[0]["down"].parameters  # every class has a second holder here


def test_a_pull_is_never_negative_and_one_by_default() -> None:
    assert FedDistillHyper().distill_weight == 1.0
    for value in (-0.5, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="distill_weight must not be negative"):
            FedDistillHyper(distill_weight=value)
