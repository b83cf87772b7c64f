from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from support import FEDERATION, NO_FIT, NUM_CLASSES, STREAMS, make_client, make_images
from support_rounds import build, simulation
from tinyproto.algorithms.base import Client, ClientInfo, Round, Update
from tinyproto.algorithms.input_means import (
    BEFORE,
    HELD,
    KNOWN,
    MOST_MEANS,
    InputMeansClient,
    InputMeansHyper,
    group_means,
)
from tinyproto.core.prototypes import Message
from tinyproto.core.task import State, TensorData, batch_plan
from tinyproto.data.dataset import FederatedData
from tinyproto.data.partition import Partition
from tinyproto.engine.measure import WAYS
from tinyproto.engine.training import EagerTrainer

ALGORITHM = build("input_means", group_size=2, means_per_class=2)
ROUND = Round(1, 3)


def draws() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def started(counts: list[int], id_: int = 0, **hyper: object) -> tuple[InputMeansClient, Client]:
    side = build("input_means", group_size=2, means_per_class=2, **hyper).client
    assert isinstance(side, InputMeansClient)
    client = make_client(counts, id_=id_)
    side.init(client, STREAMS)
    return side, client


def test_a_mean_is_of_whole_disjoint_groups_and_small_classes_send_none() -> None:
    data = TensorData(torch.tensor([[1.0], [2.0], [4.0], [8.0], [16.0], [5.0]]), torch.tensor([0, 0, 0, 0, 0, 1]))
    found = group_means(data, 2, InputMeansHyper(group_size=2, means_per_class=9), draws())
    assert list(found) == ["0"]  # one sample of class 1 is no group
    assert found["0"].shape == (2, 1)
    used = {frozenset((a, b)) for a in data.pool[:5, 0].tolist() for b in data.pool[:5, 0].tolist() if a < b}
    pairs = [{pair for pair in used if sum(pair) == 2 * float(mean)} for mean in found["0"]]
    assert all(len(pair) == 1 for pair in pairs)  # sums of these powers of two have one pair each
    (first,), (second,) = pairs
    assert not first & second


def test_no_more_means_than_allowed_travel() -> None:
    data = make_client([8, 0, 0, 0]).train
    found = group_means(data, NUM_CLASSES, InputMeansHyper(group_size=2, means_per_class=3), draws())
    assert {label: values.shape for label, values in found.items()} == {"0": (3, 36)}


def test_means_are_sent_until_the_server_has_them() -> None:
    side, client = started([4, 0, 2, 1])
    sent = side.update(client, NO_FIT, ROUND).tensors
    assert {label: len(values) for label, values in sent.items()} == {"0": 2, "2": 1}
    side.receive(client, Message(metrics={KNOWN: 0.0}))
    assert side.update(client, NO_FIT, ROUND).tensors.keys() == sent.keys()
    side.receive(client, Message(metrics={KNOWN: 3.0}))
    assert side.update(client, NO_FIT, ROUND) == Message(metrics={HELD: 0.0})


def sent(tensors: Mapping[str, Tensor], id_: int, held: int = 0) -> Update:
    return Update(ClientInfo(id_, 10, 10, 2), Message(tensors=tensors, metrics={HELD: float(held)}))


def aggregated(state: State, *updates: Update) -> State:
    return ALGORITHM.server.aggregate(state, updates, EagerTrainer(), ROUND, STREAMS)


def asked(state: State, id_: int) -> Message:
    return ALGORITHM.server.broadcast(state, ClientInfo(id_, 10, 10, 2))


def test_the_server_passes_on_what_a_client_does_not_have_and_never_its_own() -> None:
    first, second = torch.full((2, 36), 1.0), torch.full((1, 36), 2.0)
    start = ALGORITHM.server.init(STREAMS)
    assert asked(start, 0) == Message(metrics={KNOWN: 0.0, BEFORE: 0.0})
    state = aggregated(start, sent({"0": first}, 0), sent({"3": second}, 1))
    assert asked(state, 0).metrics == {KNOWN: 2.0, BEFORE: 0.0}
    assert list(asked(state, 0).tensors) == ["3"]
    assert list(asked(state, 1).tensors) == ["0"]
    assert sorted(asked(state, 2).tensors) == ["0", "3"]  # a client that comes later gets all of them
    later = aggregated(state, sent({}, 0, held=1))
    assert asked(later, 0) == Message(metrics={KNOWN: 2.0, BEFORE: 1.0})
    assert list(asked(later, 1).tensors) == ["0"]  # its answer did not come
    assert len(aggregated(later, sent({"0": first}, 0))["labels"]) == 3  # a second upload of a client is ignored
    assert list(asked(aggregated(later, sent({}, 0, held=0)), 0).tensors) == ["3"]  # a client that lost its state


def test_a_frame_that_comes_twice_is_stored_once() -> None:
    side, client = started([4, 0, 0, 0])
    frame = Message(tensors={"0": torch.ones(2, 36)}, metrics={BEFORE: 0.0})
    side.receive(client, frame)
    side.receive(client, frame)
    assert len(client.state["labels"]) == 2
    side.receive(client, Message(tensors={"1": torch.ones(1, 36)}, metrics={BEFORE: 2.0}))
    assert client.state["labels"].tolist() == [0, 0, 1]
    assert side.update(client, NO_FIT, ROUND).metrics == {HELD: 3.0}
    side.receive(client, Message(tensors={"1": torch.ones(1, 36)}, metrics={BEFORE: 9.0}))  # of a state it lost
    assert len(client.state["labels"]) == 3


def test_more_means_than_a_frame_holds_come_in_pages() -> None:
    state = ALGORITHM.server.init(STREAMS)
    for id_ in range(MOST_MEANS):
        state = aggregated(state, sent({"2": torch.full((2, 36), float(id_))}, id_))
    first = asked(state, 1000).tensors["2"]
    assert len(first) == MOST_MEANS
    state = aggregated(state, sent({}, 1000, held=MOST_MEANS))
    rest = asked(state, 1000).tensors["2"]
    assert torch.cat([first, rest])[:, 0].tolist() == [float(id_) for id_ in range(MOST_MEANS) for _ in range(2)]


def test_a_hostile_upload_neither_fills_the_pool_nor_makes_frames_that_others_refuse() -> None:
    state = aggregated(ALGORITHM.server.init(STREAMS), sent({"0": torch.ones(40, 36)}, 0, held=10**9))
    assert len(state["labels"]) == 2  # means_per_class
    assert state["held"].tolist() == [0]
    state = aggregated(state, sent({"0": torch.full((2, 36), 1e7)}, 1))
    assert len(state["labels"]) == 2


def test_received_means_are_mixed_in_by_the_client_s_own_classes() -> None:
    side, client = started([6, 2, 0, 0], mix=1.0)
    side.receive(client, Message(tensors={"0": torch.ones(3, 36), "1": torch.ones(1, 36), "2": torch.ones(4, 36)}))
    task = side.task(client, batch_plan(8, 4, 200, last="join", shuffle=None), seed=0)
    assert len(task.data) == 8 + 8
    assert task.plan.order.shape == (200, 16)
    assert all(set(range(8)) <= set(epoch) for epoch in task.plan.order.tolist())
    labels = task.data.labels[task.plan.order[task.plan.order >= 8]]
    assert not bool((labels == 2).any())  # a class it does not hold
    assert float((labels == 0).float().mean()) == pytest.approx(0.75, abs=0.03)
    everything, client = started([6, 2, 0, 0], classes="all")
    everything.receive(client, Message(tensors={"0": torch.ones(3, 36), "2": torch.ones(4, 36)}))
    task = everything.task(client, batch_plan(8, 4, 200, last="join", shuffle=None), seed=0)
    assert float((task.data.labels[task.plan.order[task.plan.order >= 8]] == 2).float().mean()) == pytest.approx(
        0.5, abs=0.03
    )


def test_without_means_of_others_a_client_trains_on_its_own_samples_alone() -> None:
    side, client = started([4, 4, 0, 0])
    plan = batch_plan(8, 4, 1, last="join", shuffle=None)
    task = side.task(client, plan, seed=0)
    assert task.plan is plan
    assert task.data is client.train


def test_received_pixels_stay_pixels() -> None:
    side, client = started([2, 0, 0, 0])
    client.train = TensorData(torch.zeros(2, 1, 6, 6, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64))
    side.receive(client, Message(tensors={"0": torch.tensor([[-7.0] * 18 + [300.4] * 18])}))
    pool = side.task(client, batch_plan(2, 2, 1, last="join", shuffle=None), seed=0).data.pool
    assert pool.dtype == torch.uint8
    assert set(pool[2].flatten().tolist()) == {0, 255}


def test_each_mean_travels_once_and_no_rows_do() -> None:
    shares = Partition("iid", 4).shares(make_images(80).labels.numpy())
    algorithm = build("input_means", group_size=3)
    played = [round_.record for round_ in simulation(FederatedData(make_images(80), shares), algorithm, 4).rounds()]
    sent = [{way: record.traffic["training"][way].parameters for way in WAYS} for record in played[:-1]]
    means = sent[0]["up"]
    assert means > 0
    assert sent[0]["down"] == 0
    assert sent[1] == {"up": 0, "down": 3 * means}  # each of four clients gets those of the other three
    assert sent[2] == sent[3] == {"up": 0, "down": 0}


@pytest.mark.parametrize("wrong", [{"group_size": 0}, {"means_per_class": 0}, {"means_per_class": 51}, {"mix": -1.0}])
def test_a_hyper_parameter_out_of_range_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        InputMeansHyper(**wrong)  # type: ignore[arg-type]


def test_the_federation_s_digest_covers_the_length_of_the_anchors() -> None:
    assert build("input_means").agreed != build("input_means", length=3.0).agreed
    assert FEDERATION.input_shape == (1, 6, 6)
