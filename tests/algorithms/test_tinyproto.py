from __future__ import annotations

from collections.abc import Sequence
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
    make_client,
    random_prototypes,
    same_tensors,
    update,
)
from tinyproto.algorithms import fedproto, fedtgp
from tinyproto.algorithms.base import Algorithm, ClientInfo, Round, Update
from tinyproto.algorithms.fedproto import received_rows
from tinyproto.algorithms.tinyproto_fp import SPEC as FP_SPEC
from tinyproto.algorithms.tinyproto_fp import TinyProtoFPHyper
from tinyproto.algorithms.tinyproto_ft import SPEC as FT_SPEC
from tinyproto.algorithms.tinyproto_ft import TinyProtoFTHyper, TinyProtoFTServer
from tinyproto.core.cps import longest_prototype
from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.core.task import State
from tinyproto.engine.training import EagerTrainer

S = 3
INFO = ClientInfo(0, 10, 10, 2)
ROUND = Round(1, 1)
FP = FP_SPEC.build(TinyProtoFPHyper(cps_dim=S), FEDERATION)
FT = FT_SPEC.build(TinyProtoFTHyper(cps_dim=S, server_epochs=2), FEDERATION)


def test_an_upload_is_the_owned_dimensions_times_the_class_count() -> None:
    local = random_prototypes([0, 2])
    message = FP.client.update(make_client([5, 0, 2, 0], local), NO_FIT, ROUND)
    assert message.rows is not None
    assert FP.masks is not None
    assert message.rows.present.tolist() == [True, False, True, False]
    torch.testing.assert_close(message.rows.values[0], 5 * local.values[0][FP.masks[0]])
    torch.testing.assert_close(message.rows.values[2], 2 * local.values[2][FP.masks[2]])
    assert message.parameters == 2 * S


@pytest.mark.parametrize("algorithm", [FP, FT])
def test_what_arrives_is_reconstructed_with_zeros_off_the_mask(algorithm: Algorithm) -> None:
    client, rows = make_client([5, 0, 2, 0]), random_prototypes([1, 2], width=S)
    received = algorithm.client.receive(client, Message(rows=rows))
    assert received is not None
    assert algorithm.masks is not None
    assert received.values.shape == (NUM_CLASSES, PROTO_DIM)
    assert bool((received.values[~algorithm.masks] == 0).all())
    torch.testing.assert_close(received.values[1][algorithm.masks[1]], rows.values[1])


def rows_of(value: float, held: list[int]) -> Prototypes:
    rows = random_prototypes(held, width=S)
    return Prototypes(torch.full_like(rows.values, value) * rows.present.unsqueeze(1), rows.present)


UPDATES = [update(rows_of(6.0, [0, 1]), 0, samples=30, classes=3), update(rows_of(2.0, [1]), 1, samples=10, classes=1)]


LENGTH = (2 * 6.0 * S**0.5 / 30 + 2.0 * S**0.5 / 10) / 2
"""Median over both clients of Σ_j ‖n_ij ĉ_ij‖ / n_i."""


@pytest.mark.parametrize(
    ("changes", "class_0", "class_1"),
    [
        ({}, *2 * (LENGTH / S**0.5,)),  # weighed: both rows point one way and become as long as the median client's
        ({"aggregation": "sum"}, 6.0 * 0.9 * NUM_CLASSES / 40, 8.0 * 0.9 * NUM_CLASSES / 40),  # μ = 0.9 K / Σ n_i
        ({"aggregation": "mean"}, 6.0 * 0.9 * 4 / 40, 4.0 * 0.9 * 4 / 40),  # mean rule, μ = 0.9 Σ K_i / Σ n_i
        ({"global_scale": 0.5, "aggregation": "sum"}, 3.0, 4.0),
        ({"global_scale": 0.5, "aggregation": "mean"}, 3.0, 2.0),
        ({"scaling": "none"}, 6.0, 4.0),  # eq. (9) on compressed rows
        ({"scaling": "none", "global_scale": 0.5}, 6.0, 4.0),
    ],
)
def test_fp_merges_by_its_rule_and_scale(changes: dict[str, Any], class_0: float, class_1: float) -> None:
    algorithm = FP_SPEC.build(replace(TinyProtoFPHyper(cps_dim=S), **changes), FEDERATION)
    state = algorithm.server.aggregate(algorithm.server.init(STREAMS), UPDATES, EagerTrainer(), ROUND, STREAMS)
    assert state["values"].shape == (NUM_CLASSES, S)
    assert state["values"][0].tolist() == pytest.approx([class_0] * S)
    assert state["values"][1].tolist() == pytest.approx([class_1] * S)
    assert state["present"].tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("changes", "factor"), [({}, 3.0 * 4 / 40), ({"global_scale": 0.25}, 0.25), ({"scaling": "none"}, 1.0)]
)
def test_ft_normalises_each_upload_on_the_server(changes: dict[str, Any], factor: float) -> None:
    server = FT_SPEC.build(replace(TinyProtoFTHyper(cps_dim=S, max_length=None), **changes), FEDERATION).server
    assert isinstance(server, TinyProtoFTServer)
    assert FT.masks is not None
    normalised = server.normalise(received_rows(UPDATES))
    assert normalised[0].values[0][FT.masks[0]].tolist() == pytest.approx([6.0 * factor] * S)
    assert normalised[1].values[1][FT.masks[1]].tolist() == pytest.approx([2.0 * factor] * S)
    assert not normalised[0].values[0][~FT.masks[0]].any()


@pytest.mark.parametrize("changes", [{"aggregation": "sum"}, {"aggregation": "mean"}])
def test_fp_tells_the_scale_that_it_merges_with(changes: dict[str, Any]) -> None:
    hyper = replace(TinyProtoFPHyper(cps_dim=S), **changes)
    algorithm = FP_SPEC.build(hyper, FEDERATION)
    derived = algorithm.derived([sent.client for sent in UPDATES])
    assert derived.keys() == {"global_scale"}
    given = FP_SPEC.build(replace(hyper, global_scale=float(derived["global_scale"])), FEDERATION)
    states = [
        one.server.aggregate(one.server.init(STREAMS), UPDATES, EagerTrainer(), ROUND, STREAMS)
        for one in (algorithm, given)
    ]
    assert torch.equal(states[0]["values"], states[1]["values"])
    assert given.derived([INFO]) == {}


def test_a_weighed_sum_has_no_scale_to_tell_or_to_give() -> None:
    assert FP_SPEC.build(TinyProtoFPHyper(cps_dim=S), FEDERATION).derived([INFO]) == {}
    with pytest.raises(ValueError, match="set aggregation: sum"):
        TinyProtoFPHyper(cps_dim=S, global_scale=0.5)


def weighed_state(sent: Sequence[Update], state: State | None = None) -> State:
    server = FP_SPEC.build(TinyProtoFPHyper(cps_dim=S), FEDERATION).server
    return server.aggregate(state or server.init(STREAMS), sent, EagerTrainer(), ROUND, STREAMS)


def test_a_class_that_few_of_its_holders_sent_is_as_long_as_one_that_all_sent() -> None:
    # client 0 alone sends class 0, of which it has few samples; all clients send class 1
    few = Prototypes(
        torch.tensor([[1.0] * S, [9.0] * S, [0.0] * S, [0.0] * S]), torch.tensor([True, True, False, False])
    )
    many = rows_of(30.0, [1])
    state = weighed_state([update(few, 0, samples=10, classes=2), update(many, 1, samples=30, classes=1)])
    lengths = state["values"].norm(dim=1)
    torch.testing.assert_close(lengths[0], lengths[1])


def test_a_class_whose_rows_are_all_zero_has_a_row_of_zeros() -> None:
    rows = rows_of(6.0, [0, 1])
    rows.values[1] = 0.0
    state = weighed_state([update(rows, 0, samples=10, classes=2)])
    assert state["present"].tolist() == [True, True, False, False]
    assert not state["values"][1].any()


def test_who_does_not_take_part_keeps_its_share_of_the_sums() -> None:
    left, right = torch.eye(S)[0], torch.eye(S)[1]  # two clients that point elsewhere

    def sent(client: int, direction: torch.Tensor) -> Update:
        values = torch.zeros(NUM_CLASSES, S)
        values[0] = 10 * direction
        return update(Prototypes(values, torch.tensor([True, False, False, False])), client, samples=10, classes=1)

    both = weighed_state([sent(0, left), sent(1, right)])
    torch.testing.assert_close(both["values"][0], (left + right) / 2)
    again = weighed_state([sent(0, left)], both)  # half of the clients: half of the sums is replaced
    torch.testing.assert_close(again["values"][0], (1.5 * left + 0.5 * right) / 2)
    torch.testing.assert_close(weighed_state([sent(0, left), sent(1, right)], again)["values"], both["values"])


def test_a_false_number_of_samples_moves_a_weighed_sum_by_a_median_alone() -> None:
    clients = [(client, rows_of(6.0 + client, [0, 1])) for client in range(5)]
    honest = weighed_state([update(rows, client, samples=10, classes=2) for client, rows in clients])
    lied = weighed_state(
        [update(rows, client, samples=2**31 - 1 if client == 4 else 10, classes=2) for client, rows in clients]
    )
    assert float(lied["values"].norm()) == pytest.approx(float(honest["values"].norm()), rel=0.15)


def test_ft_shortens_uploads_and_prototypes_to_the_longest_that_its_weight_allows() -> None:
    hyper = TinyProtoFTHyper(cps_dim=S, server_epochs=2)
    limit = longest_prototype(FEDERATION.proto_dim, S, hyper.proto_weight)
    sent = [update(rows_of(1e6, [0, 1]), client, samples=10, classes=2) for client in (0, 1)]
    state: State | None = None
    for built in (FT_SPEC.build(hyper, FEDERATION), FT_SPEC.build(replace(hyper, max_length=0.25), FEDERATION)):
        most = limit if state is None else 0.25
        state = built.server.aggregate(built.server.init(STREAMS), sent, EagerTrainer(), ROUND, STREAMS)
        assert float(state["values"].norm(dim=1).max()) <= most * (1 + 1e-6)
        assert float(state["margin"]) <= 2 * most
        assert built.watched(state)["longest_prototype"] <= most * (1 + 1e-6)
        assert built.watched(state)["margin"] == float(state["margin"])


def test_ft_tells_the_scale_that_it_fits_with() -> None:
    derived = FT.derived([sent.client for sent in UPDATES])
    assert derived == {"global_scale": pytest.approx(3.0 * 4 / 40)}
    given = FT_SPEC.build(
        TinyProtoFTHyper(cps_dim=S, server_epochs=2, global_scale=float(derived["global_scale"])), FEDERATION
    )
    states = [
        one.server.aggregate(one.server.init(STREAMS), UPDATES, EagerTrainer(), ROUND, STREAMS) for one in (FT, given)
    ]
    assert same_tensors(*states)
    assert given.derived([INFO]) == {}


def test_a_scale_that_nobody_uses_or_that_no_round_has_needed_is_not_told() -> None:
    plain = FT_SPEC.build(TinyProtoFTHyper(cps_dim=S, scaling="none"), FEDERATION)
    assert plain.derived([INFO]) == {}
    assert FT.derived([]) == {}
    assert fedtgp.SPEC.build(fedtgp.FedTGPHyper(), FEDERATION).derived([INFO]) == {}


def test_ft_sends_the_masked_output_of_the_trained_network() -> None:
    state = FT.server.aggregate(FT.server.init(STREAMS), UPDATES, EagerTrainer(), ROUND, STREAMS)
    sent = FT.server.broadcast(state, INFO).rows
    assert sent is not None
    assert FT.masks is not None
    hidden = torch.relu(
        state["network.embedding.weight"] @ state["network.hidden.weight"].T + state["network.hidden.bias"]
    )
    learned = hidden @ state["network.output.weight"].T + state["network.output.bias"]
    torch.testing.assert_close(sent.values[1], learned[1][FT.masks[1]])


def test_without_cps_and_scaling_fp_is_fedproto_and_ft_is_fedtgp() -> None:
    rows = [update(random_prototypes([0, 1], seed=1)), update(random_prototypes([1, 3], seed=2), 1)]
    plain: dict[str, Any] = {"scaling": "none", "cps_dim": None}
    pairs = [
        (
            FP_SPEC.build(TinyProtoFPHyper(**plain), FEDERATION),
            fedproto.SPEC.build(fedproto.FedProtoHyper(), FEDERATION),
        ),
        (FT_SPEC.build(TinyProtoFTHyper(**plain), FEDERATION), fedtgp.SPEC.build(fedtgp.FedTGPHyper(), FEDERATION)),
    ]
    for tiny, base in pairs:
        states = [
            algorithm.server.aggregate(algorithm.server.init(STREAMS), rows, EagerTrainer(), ROUND, STREAMS)
            for algorithm in (tiny, base)
        ]
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[1])
        assert tiny.row_width == base.row_width == PROTO_DIM


def test_scaling_alone_sends_all_dimensions() -> None:
    algorithm = FP_SPEC.build(TinyProtoFPHyper(cps_dim=None), FEDERATION)
    local = random_prototypes([1])
    message = algorithm.client.update(make_client([0, 7, 0, 0], local), NO_FIT, ROUND)
    assert message.rows is not None
    torch.testing.assert_close(message.rows.values, 7 * local.values)
    assert algorithm.masks is None


def test_table_2_counts_s_values_per_class() -> None:
    assert FP.table2_parameters([2, 3]) == FT.table2_parameters([2, 3]) == (5 + 2 * NUM_CLASSES) * S


def test_blocks_are_an_option() -> None:
    algorithm = FP_SPEC.build(TinyProtoFPHyper(cps_dim=S, masks="blocks"), FEDERATION)
    assert algorithm.masks is not None
    assert algorithm.masks[0].tolist() == [False] * 9 + [True] * 3


@pytest.mark.parametrize("changes", [{"global_scale": 0.0}, {"global_scale": -1.0}, {"cps_dim": 0}])
def test_impossible_values_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        replace(TinyProtoFPHyper(), **changes)
    with pytest.raises(ValueError, match="must be above 0"):
        replace(TinyProtoFTHyper(), **changes)
