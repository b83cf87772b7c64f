from __future__ import annotations

import pytest
import torch

from support import FEDERATION, NO_FIT, NUM_CLASSES, STREAMS, make_client, make_images, tensors_update
from support_rounds import build, simulation
from tinyproto.algorithms.base import Client, ClientInfo, Round
from tinyproto.algorithms.input_means import KNOWN, InputMeansClient, InputMeansHyper, group_means
from tinyproto.core.prototypes import Message
from tinyproto.core.task import State, TensorData, batch_plan
from tinyproto.data.images import FederatedData
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


def test_no_more_means_than_allowed_travel_and_noise_moves_them() -> None:
    data = make_client([8, 0, 0, 0]).train
    plain = group_means(data, NUM_CLASSES, InputMeansHyper(group_size=2, means_per_class=3), draws())["0"]
    noisy = group_means(data, NUM_CLASSES, InputMeansHyper(group_size=2, means_per_class=3, noise=100.0), draws())["0"]
    assert plain.shape == noisy.shape == (3, 36)
    assert 50 < float((noisy - plain).std()) < 200


def test_means_are_sent_until_the_server_has_them() -> None:
    side, client = started([4, 0, 2, 1])
    sent = side.update(client, NO_FIT, ROUND).tensors
    assert {label: len(values) for label, values in sent.items()} == {"0": 2, "2": 1}
    side.receive(client, Message(metrics={KNOWN: 0.0}))
    assert side.update(client, NO_FIT, ROUND).tensors.keys() == sent.keys()
    side.receive(client, Message(metrics={KNOWN: 3.0}))
    assert side.update(client, NO_FIT, ROUND) == Message()


def test_the_server_passes_on_what_is_new_to_a_client_once_and_never_its_own() -> None:
    server = ALGORITHM.server
    first, second = torch.full((2, 36), 1.0), torch.full((1, 36), 2.0)

    def ask(state: State, id_: int) -> Message:
        return server.broadcast(state, ClientInfo(id_, 10, 10, 2))

    start = server.init(STREAMS)
    assert ask(start, 0) == Message(metrics={KNOWN: 0.0})
    state = server.aggregate(
        start, [tensors_update({"0": first}, 0), tensors_update({"3": second}, 1)], EagerTrainer(), ROUND, STREAMS
    )
    assert ask(state, 0).metrics == {KNOWN: 2.0}
    assert list(ask(state, 0).tensors) == ["3"]
    assert list(ask(state, 1).tensors) == ["0"]
    assert sorted(ask(state, 2).tensors) == ["0", "3"]  # a client that comes later gets all of them
    later = server.aggregate(state, [tensors_update({}, 0)], EagerTrainer(), ROUND, STREAMS)
    assert not ask(later, 0).tensors  # it answered, so it has them
    assert list(ask(later, 1).tensors) == ["0"]  # it did not
    again = server.aggregate(later, [tensors_update({"0": first}, 0)], EagerTrainer(), ROUND, STREAMS)
    assert len(again["labels"]) == 3  # a second upload of a client is ignored


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


@pytest.mark.parametrize("wrong", [{"group_size": 0}, {"means_per_class": 0}, {"mix": -1.0}, {"noise": -1.0}])
def test_a_hyper_parameter_out_of_range_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        InputMeansHyper(**wrong)  # type: ignore[arg-type]


def test_the_federation_s_digest_covers_the_length_of_the_anchors() -> None:
    assert build("input_means").agreed != build("input_means", length=3.0).agreed
    assert FEDERATION.input_shape == (1, 6, 6)
