from __future__ import annotations

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
    same_tensors,
    tiny_net,
    update,
)
from tinyproto.algorithms.base import Algorithm, FederationSpec, Round, Update, expected_frames
from tinyproto.algorithms.tinyproto_sphere import SPEC, SphereServer
from tinyproto.core import cps
from tinyproto.core.prototypes import Prototypes
from tinyproto.core.task import State
from tinyproto.data.dataset import FederatedData
from tinyproto.engine.client import LocalTraining
from tinyproto.engine.training import EagerTrainer
from tinyproto.wire.values import VALUE_TYPES, ValueName, WireSettings

PLANE = FederationSpec(num_classes=2, proto_dim=2, learning_rate=0.1)
SETTINGS = SimulationSettings(LocalTraining(rounds=3, batch_size=8), PROTO_DIM)


def built(federation: FederationSpec = FEDERATION, **hyper: Any) -> Algorithm:
    return SPEC.build(SPEC.hyper(**hyper), federation)


def aggregated(algorithm: Algorithm, updates: list[Update], state: State | None = None) -> State:
    before = algorithm.server.init(STREAMS) if state is None else state
    return algorithm.server.aggregate(before, updates, EagerTrainer(), Round(1, 1), STREAMS)


def plane(values: list[list[float]], present: tuple[bool, bool] = (True, True)) -> Update:
    return update(Prototypes(torch.tensor(values), torch.tensor(present)))


def test_each_class_s_sum_is_brought_to_one_length() -> None:
    # Class 0: (1, 0) + (2, 4) = (3, 4), of length 5, to 10. Class 1: (0, 2) alone.
    updates = [plane([[1.0, 0.0], [0.0, 0.0]], (True, False)), plane([[2.0, 4.0], [0.0, 2.0]])]
    state = aggregated(built(PLANE, length=10.0), updates)
    torch.testing.assert_close(state["values"], torch.tensor([[6.0, 8.0], [0.0, 10.0]]))


def test_a_client_sends_its_counts_times_its_prototypes() -> None:
    algorithm = built(cps_dim=3)
    client = make_client([3, 5, 0, 0], random_prototypes([0, 1]))
    rows = algorithm.client.update(client, NO_FIT, Round(1, 1)).rows
    assert rows is not None
    expected = cps.compress(cps.scale_by_count(client.local, client.class_counts), algorithm.masks)
    assert torch.equal(rows.values, expected.values)
    whole = built().client.update(client, NO_FIT, Round(1, 1)).rows
    assert whole is not None
    torch.testing.assert_close(whole.values[1], 5 * client.local.values[1])


def test_a_class_that_nobody_sent_or_whose_sum_is_zero_keeps_its_last_row() -> None:
    algorithm = built(PLANE, length=10.0)
    first = aggregated(algorithm, [plane([[3.0, 4.0], [0.0, 2.0]])])
    second = aggregated(algorithm, [plane([[0.0, 0.0], [1.0, 0.0]]), plane([[0.0, 0.0], [-1.0, 0.0]])], first)
    assert torch.equal(second["values"], first["values"])
    third = aggregated(algorithm, [plane([[0.0, 0.0], [5.0, 0.0]], (False, True))], first)
    torch.testing.assert_close(third["values"], torch.tensor([[6.0, 8.0], [10.0, 0.0]]))
    assert aggregated(algorithm, [], third) is third


@pytest.mark.parametrize("factor", [-1e7, 1e-7, 1e7])
@pytest.mark.parametrize("cps_dim", [None, 3])
def test_no_row_is_longer_than_r_whatever_one_client_uploads(cps_dim: int | None, factor: float) -> None:
    algorithm = built(cps_dim=cps_dim, length=7.0)
    width = algorithm.row_width
    assert width is not None
    honest = [update(random_prototypes([0, 1, 2], seed, width), seed) for seed in range(4)]
    drawn = random_prototypes([0, 1, 2, 3], 9, width)
    state = aggregated(algorithm, [*honest, update(Prototypes(factor * drawn.values, drawn.present), 9)])
    torch.testing.assert_close(state["values"].norm(dim=1), torch.full((NUM_CLASSES,), 7.0))


@pytest.mark.parametrize("cps_dim", [None, 3])
def test_gathering_in_parts_gives_what_all_at_once_gives(cps_dim: int | None) -> None:
    algorithm = built(cps_dim=cps_dim)
    server = algorithm.server
    assert isinstance(server, SphereServer)
    updates = [update(random_prototypes([0, 1, seed % 4], seed, server.width), seed) for seed in range(6)]
    at_once = aggregated(algorithm, updates)
    one, parts = server.gather(), [server.gather() for _ in range(3)]
    for number, (client, message) in enumerate(updates):
        assert message.rows is not None
        one.add(client, message.rows)
        parts[number % 3].add(client, message.rows)
    assert same_tensors(server.conclude(server.init(STREAMS), one), at_once)
    merged, *others = parts
    for other in others:
        merged.merge(other)
    torch.testing.assert_close(server.conclude(server.init(STREAMS), merged)["values"], at_once["values"])


def test_sizes_do_not_matter_to_the_server() -> None:
    algorithm = built(cps_dim=3)
    rows = [random_prototypes([0, 1], seed, 3) for seed in range(2)]
    few, many = ([update(one, seed, samples) for seed, one in enumerate(rows)] for samples in (2, 10_000))
    assert same_tensors(aggregated(algorithm, few), aggregated(algorithm, many))


@pytest.mark.parametrize("values", VALUE_TYPES)
@pytest.mark.parametrize("cps_dim", [None, 3])
def test_it_trains_with_values_of_every_type(quarters: FederatedData, cps_dim: int | None, values: ValueName) -> None:
    algorithm = built(cps_dim=cps_dim)
    settings = replace(SETTINGS, wire=WireSettings(values, values))
    played = InProcess(quarters, [tiny_net], algorithm, settings, seed=0)
    *rounds, closing = [round_.record for round_ in played.rounds()]
    assert not any(record.refused for record in rounds)
    assert closing.accuracy["global"] is not None
    lengths = played.server.state["values"].norm(dim=1)
    torch.testing.assert_close(lengths, torch.full_like(lengths, algorithm.derived([])["length"]))


@pytest.mark.parametrize("cps_dim", [None, 3])
def test_sending_held_classes_only_is_the_same_training(quarters: FederatedData, cps_dim: int | None) -> None:
    def trained(wire: WireSettings) -> InProcess:
        played = InProcess(quarters, [tiny_net], built(cps_dim=cps_dim), replace(SETTINGS, wire=wire), seed=0)
        list(played.rounds())
        return played

    everything, held = trained(WireSettings()), trained(WireSettings(download="held"))
    assert same_tensors(held.server.state, everything.server.state)


def test_the_length_follows_lambda_and_can_be_given() -> None:
    assert built(cps_dim=4).derived([]) == {"length": pytest.approx(12 * 2 / 20)}
    assert built(cps_dim=4, length=3.0).derived([]) == {}
    assert built(cps_dim=4, proto_weight=0.0).derived([]) == {"length": pytest.approx(2.0)}


def test_both_sides_agree_on_masks_and_scaling_and_the_length_is_the_server_s() -> None:
    digests = [
        expected_frames(built(**hyper), NUM_CLASSES, PROTO_DIM).digest
        for hyper in ({"cps_dim": 3}, {"cps_dim": 3, "length": 9.0}, {"cps_dim": 3, "mask_seed": 1}, {})
    ]
    assert digests[0] == digests[1]  # rows arrive ready to use
    assert len(set(digests)) == 3
