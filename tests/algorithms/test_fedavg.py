from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from support import (
    FEDERATION,
    NO_FIT,
    STREAMS,
    make_client,
    same_tensors,
    tensors_update,
    tiny_net,
    wide_net,
)
from tinyproto.algorithms.base import ClientInfo, NoHyper, Round
from tinyproto.algorithms.exchange import drawn, exchanged
from tinyproto.algorithms.fedavg import SPEC
from tinyproto.core.prototypes import Message
from tinyproto.engine.training import EagerTrainer
from tinyproto.models.count import count_parameters

ALGORITHM = SPEC.build(NoHyper(), FEDERATION)
INFO = ClientInfo(0, 10, 10, 2)
STATISTICS = 2 * 16  # of tiny_net's one normalisation


def test_the_server_s_draw_goes_down_first_statistics_included() -> None:
    sent = ALGORITHM.server.broadcast(ALGORITHM.server.init(STREAMS), INFO).tensors
    network = drawn(tiny_net, FEDERATION.shape, STREAMS)
    assert same_tensors(sent, exchanged(network, buffers=True))
    assert not any("num_batches" in name for name in sent)


def test_what_arrives_replaces_the_whole_network() -> None:
    client = make_client([3, 3, 0, 0])
    tensors = {name: torch.full_like(value, 0.5) for name, value in exchanged(client.model, buffers=True).items()}
    assert ALGORITHM.client.receive(client, Message(tensors=tensors)) is None
    assert same_tensors(exchanged(client.model, buffers=True), tensors)


def test_a_client_sends_its_whole_network_and_the_payload_is_four_bytes_a_number() -> None:
    client = make_client([3, 3, 0, 0])
    message = ALGORITHM.client.update(client, NO_FIT, Round(1, 1))
    assert same_tensors(message.tensors, exchanged(client.model, buffers=True))
    assert {name: tuple(value.shape) for name, value in message.tensors.items()} == dict(ALGORITHM.tensor_shapes)
    assert message.parameters == count_parameters(client.model) + STATISTICS


def test_networks_and_their_statistics_are_averaged_by_samples() -> None:
    template = make_client([1, 1, 1, 1]).model
    first, second = (
        {name: torch.full_like(tensor, value) for name, tensor in exchanged(template, buffers=True).items()}
        for value in (2.0, 6.0)
    )
    updates = [tensors_update(first, 0, samples=10), tensors_update(second, 1, samples=30)]
    state = ALGORITHM.server.aggregate(ALGORITHM.server.init(STREAMS), updates, EagerTrainer(), Round(1, 1), STREAMS)
    assert state.keys() == ALGORITHM.tensor_shapes.keys()
    assert all(bool((value == 5.0).all()) for value in state.values())


def test_table_2_counts_the_parameters_of_every_client_both_ways() -> None:
    parameters = 36 * 16 + 16 + 2 * 16 + 16 * 12 + 12 + 12 * 4 + 4
    assert ALGORITHM.table2_parameters([1, 4, 2]) == 2 * 3 * parameters


def test_different_networks_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"all clients need the same one; this federation has wide_net, tiny_net$"):
        SPEC.build(NoHyper(), replace(FEDERATION, networks=(wide_net, tiny_net, wide_net)))
    built = [nn.Sequential(nn.Flatten(), nn.Linear(36, FEDERATION.proto_dim)) for _ in range(2)]
    with pytest.raises(ValueError, match=r"this federation has Sequential, Sequential$"):
        SPEC.build(NoHyper(), replace(FEDERATION, networks=tuple(built)))


def test_the_same_network_named_twice_is_one() -> None:
    twice = SPEC.build(NoHyper(), replace(FEDERATION, networks=(tiny_net, tiny_net)))
    assert twice.tensor_shapes == ALGORITHM.tensor_shapes
