"""What travels of a network, the server's draw, and the mean of what was sent."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from support import FEDERATION, STREAMS, same_tensors, tensors_update, tiny_net, wide_net
from tinyproto.algorithms.base import ClientInfo, Round
from tinyproto.algorithms.exchange import (
    MeanServer,
    Weighting,
    blueprint,
    drawn,
    exchanged,
    host,
    overwrite,
    shapes_of,
    smallest,
    tensor_mean,
)
from tinyproto.core.prototypes import Message
from tinyproto.core.streams import Streams
from tinyproto.engine.training import EagerTrainer
from tinyproto.models.split import SplitModel

ROUND = Round(1, 2)


class Odd(nn.Module):
    """A parameter without axes, statistics in float64, a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("mean", torch.tensor([0.25, 0.5], dtype=torch.float64))
        self.register_buffer("steps", torch.tensor(7))


def test_parameters_travel_and_where_asked_running_statistics_but_never_counters() -> None:
    assert list(exchanged(nn.BatchNorm1d(3), buffers=False)) == ["weight", "bias"]
    assert list(exchanged(nn.BatchNorm1d(3), buffers=True)) == ["weight", "bias", "running_mean", "running_var"]
    assert shapes_of(exchanged(Odd(), buffers=True)) == {"temperature": (), "mean": (2,)}


def test_what_travels_is_a_copy_in_float32_and_finds_its_way_back() -> None:
    module, other = Odd(), Odd()
    sent = host(exchanged(module, buffers=True))
    assert {value.dtype for value in sent.values()} == {torch.float32}
    sent["mean"] += 1
    sent["temperature"] += 1
    assert module.mean.tolist() == [0.25, 0.5]  # type: ignore[operator]
    overwrite(other, sent)
    assert float(other.temperature.detach()) == 3.0
    assert other.mean.tolist() == [1.25, 1.5]  # type: ignore[operator]
    assert other.mean.dtype == torch.float64
    assert int(other.steps) == 7  # type: ignore[arg-type]
    assert other.temperature.requires_grad


def test_what_did_not_travel_stays() -> None:
    module = nn.BatchNorm1d(2)
    module.running_mean = torch.tensor([5.0, 6.0])
    overwrite(module, {"bias": torch.tensor([1.0, 2.0])})
    assert module.bias.tolist() == [1.0, 2.0]
    assert module.weight.tolist() == [1.0, 1.0]
    assert module.running_mean.tolist() == [5.0, 6.0]


def test_the_server_s_draw_is_the_same_wherever_it_is_drawn_and_another_with_another_seed() -> None:
    first, second, other = (
        drawn(tiny_net, FEDERATION.shape, streams).state_dict() for streams in (STREAMS, STREAMS, Streams(1))
    )
    assert same_tensors(first, second)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_a_blueprint_takes_no_memory_unless_the_network_is_there_already() -> None:
    plan = blueprint(wide_net, FEDERATION.shape)
    assert {value.device.type for value in plan.parameters()} == {"meta"}
    given = tiny_net((1, 6, 6), FEDERATION.proto_dim, FEDERATION.num_classes)
    copied = blueprint(given, FEDERATION.shape)
    assert {value.device.type for value in copied.parameters()} == {"cpu"}
    assert shapes_of(exchanged(copied, buffers=True)) == shapes_of(exchanged(given, buffers=True))


def test_a_factory_that_loads_weights_is_planned_without_a_warning() -> None:
    weights = tiny_net((1, 6, 6), FEDERATION.proto_dim, FEDERATION.num_classes).state_dict()

    def trained(input_shape: tuple[int, ...], proto_dim: int, num_classes: int) -> SplitModel:
        model = tiny_net(input_shape, proto_dim, num_classes)
        model.load_state_dict(weights)
        return model

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        blueprint(trained, FEDERATION.shape)
    assert same_tensors(dict(drawn(trained, FEDERATION.shape, STREAMS).state_dict()), weights)


def test_the_smallest_network_has_the_fewest_parameters_and_of_equals_it_is_the_first() -> None:
    def twin(input_shape: tuple[int, ...], proto_dim: int, num_classes: int) -> SplitModel:
        return tiny_net(input_shape, proto_dim, num_classes)

    assert smallest(replace(FEDERATION, networks=(wide_net, tiny_net))) is tiny_net
    assert smallest(replace(FEDERATION, networks=(wide_net, twin, tiny_net))) is twin
    assert smallest(replace(FEDERATION, networks=(tiny_net, wide_net, twin))) is tiny_net


def server(weighting: Weighting) -> MeanServer:
    return MeanServer(lambda _: {"w": torch.tensor([9.0])}, weighting)


def aggregated(weighting: Weighting, *uploads: tuple[float, int]) -> Tensor:
    side = server(weighting)
    updates = [tensors_update({"w": torch.tensor([value])}, id_, n) for id_, (value, n) in enumerate(uploads)]
    return side.aggregate(side.init(STREAMS), updates, EagerTrainer(), ROUND, STREAMS)["w"]


@pytest.mark.parametrize(("weighting", "mean"), [("samples", 5.0), ("uniform", 4.0)])
def test_clients_weigh_their_samples_or_all_alike(weighting: Weighting, mean: float) -> None:
    assert aggregated(weighting, (2.0, 10), (6.0, 30)).tolist() == [mean]


def test_a_client_without_samples_has_no_weight_where_samples_count() -> None:
    assert aggregated("samples", (2.0, 0), (6.0, 30)).tolist() == [6.0]
    assert aggregated("samples", (2.0, 0), (6.0, 0)).tolist() == [4.0]


def test_before_anyone_sent_anything_the_server_sends_its_draw() -> None:
    side = server("samples")
    state = side.init(STREAMS)
    assert side.broadcast(state, ClientInfo(0, 1, 1, 1)).tensors["w"].tolist() == [9.0]
    silent = tensors_update({}, 1)
    assert side.aggregate(state, [silent], EagerTrainer(), ROUND, STREAMS) is state
    heard = side.aggregate(state, [silent, tensors_update({"w": torch.tensor([2.0])})], EagerTrainer(), ROUND, STREAMS)
    assert heard["w"].tolist() == [2.0]
    assert side.broadcast(heard, ClientInfo(0, 1, 1, 1)) == Message(tensors=heard)


def test_tensors_are_averaged_one_by_one_with_their_weights() -> None:
    uploads = [
        {"w": torch.tensor([2.0, 0.0]), "b": torch.tensor(1.0)},
        {"w": torch.tensor([6.0, 4.0]), "b": torch.tensor(5.0)},
    ]
    weighted, plain = tensor_mean(uploads, [1, 3]), tensor_mean(uploads, [1, 1])
    assert (weighted["w"].tolist(), float(weighted["b"])) == ([5.0, 3.0], 4.0)
    assert (plain["w"].tolist(), float(plain["b"])) == ([4.0, 2.0], 3.0)
    assert weighted["w"].dtype == torch.float32


def test_who_has_no_samples_has_no_weight_unless_nobody_has_any() -> None:
    uploads = [{"w": torch.tensor([2.0])}, {"w": torch.tensor([8.0])}]
    assert tensor_mean(uploads, [0, 7])["w"].tolist() == [8.0]
    assert tensor_mean(uploads, [0, 0])["w"].tolist() == [5.0]


def test_a_mean_of_many_equal_tensors_is_that_tensor() -> None:
    value = torch.tensor([0.1, 1e-8, 12345.678])
    assert torch.equal(tensor_mean([{"w": value}] * 1000, [3] * 1000)["w"], value)
