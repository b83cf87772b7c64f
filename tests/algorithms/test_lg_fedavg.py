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
    same_tensors,
    tensors_update,
    tiny_net,
    wide_net,
)
from tinyproto.algorithms.base import ClientInfo, NoHyper, Round
from tinyproto.algorithms.exchange import drawn, exchanged, host
from tinyproto.algorithms.lg_fedavg import SPEC
from tinyproto.core.prototypes import Message
from tinyproto.engine.training import EagerTrainer
from tinyproto.models.split import SplitModel

MIXED = replace(FEDERATION, networks=(tiny_net, wide_net))
ALGORITHM = SPEC.build(NoHyper(), MIXED)
INFO = ClientInfo(0, 10, 10, 2)
HEAD = PROTO_DIM * NUM_CLASSES + NUM_CLASSES


def deep_headed(input_shape: tuple[int, ...], proto_dim: int, num_classes: int) -> SplitModel:
    head = nn.Sequential(nn.Linear(proto_dim, 7), nn.ReLU(), nn.Linear(7, num_classes))
    return SplitModel(tiny_net(input_shape, proto_dim, num_classes).extractor, head)


def test_the_first_head_is_the_server_s_draw() -> None:
    sent = ALGORITHM.server.broadcast(ALGORITHM.server.init(STREAMS), INFO).tensors
    assert same_tensors(sent, exchanged(drawn(tiny_net, FEDERATION.shape, STREAMS).head, buffers=False))


def test_what_arrives_replaces_the_head_and_nothing_else() -> None:
    client = make_client([3, 3, 0, 0])
    before = host(client.model.extractor.state_dict())
    head = {"weight": torch.ones(NUM_CLASSES, PROTO_DIM), "bias": torch.arange(float(NUM_CLASSES))}
    assert ALGORITHM.client.receive(client, Message(tensors=head)) is None
    assert same_tensors(exchanged(client.model.head, buffers=False), head)
    assert same_tensors(host(client.model.extractor.state_dict()), before)


def test_a_client_sends_its_head() -> None:
    client = make_client([3, 3, 0, 0])
    message = ALGORITHM.client.update(client, NO_FIT, Round(1, 1))
    assert same_tensors(message.tensors, exchanged(client.model.head, buffers=False))
    assert message.parameters == HEAD
    assert dict(ALGORITHM.tensor_shapes) == {"weight": (NUM_CLASSES, PROTO_DIM), "bias": (NUM_CLASSES,)}


def test_heads_are_averaged_by_samples() -> None:
    first, second = ({"weight": torch.full((4, 12), value), "bias": torch.full((4,), value)} for value in (2.0, 6.0))
    updates = [tensors_update(first, 0, samples=10), tensors_update(second, 1, samples=30)]
    state = ALGORITHM.server.aggregate(ALGORITHM.server.init(STREAMS), updates, EagerTrainer(), Round(1, 1), STREAMS)
    assert all(bool((value == 5.0).all()) for value in state.values())


def test_table_2_counts_the_head_without_its_bias() -> None:
    assert ALGORITHM.table2_parameters([1, 4, 2]) == 2 * 3 * PROTO_DIM * NUM_CLASSES
    own = SPEC.build(NoHyper(), replace(FEDERATION, networks=(deep_headed,)))
    assert own.table2_parameters([1, 4, 2]) == 2 * 3 * (PROTO_DIM * 7 + 7 * NUM_CLASSES)


def test_different_heads_are_refused_by_the_names_of_their_networks() -> None:
    with pytest.raises(ValueError, match="the heads of tiny_net and deep_headed have different parameters"):
        SPEC.build(NoHyper(), replace(FEDERATION, networks=(tiny_net, wide_net, deep_headed)))


def test_a_head_with_dropout_is_averaged_with_those_without() -> None:
    networks = ("resnet8", "efficientnet_b0")
    federation = replace(FEDERATION, networks=networks, input_shape=(3, 32, 32), head_dropout=0.2)
    built = SPEC.build(NoHyper(), federation)
    assert dict(built.tensor_shapes) == dict(ALGORITHM.tensor_shapes)
