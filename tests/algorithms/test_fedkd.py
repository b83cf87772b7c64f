from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from support import (
    FEDERATION,
    NO_FIT,
    PROTO_DIM,
    STREAMS,
    make_client,
    same_tensors,
    tensors_update,
    tiny_net,
    wide_net,
)
from tinyproto.algorithms.auxiliary import Reduction
from tinyproto.algorithms.base import Client, ClientInfo, Round, expected_frames
from tinyproto.algorithms.exchange import exchanged, host
from tinyproto.algorithms.fedkd import SPEC, FedKDHyper, LowRank, adaptive_losses
from tinyproto.core.prototypes import AtMost, Message
from tinyproto.core.task import ParamGroup, batch_plan
from tinyproto.engine.training import EagerTrainer

MIXED = replace(FEDERATION, networks=(wide_net, tiny_net))
ALGORITHM = SPEC.build(FedKDHyper(), MIXED)
INFO = ClientInfo(0, 10, 10, 2)
FIRST, LAST = Round(1, 10), Round(10, 10)
STATE = ALGORITHM.server.init(STREAMS)
SHAPES = {name: tuple(value.shape) for name, value in STATE.items()}
WEIGHT = "extractor.1.weight"  # 16 × 36


def started(id_: int = 0) -> Client:
    client = make_client([6, 6, 0, 0], id_=id_)
    ALGORITHM.client.init(client, STREAMS)
    return client


def with_energies(*energies: float) -> dict[str, Tensor]:
    """The server's draw, with a weight whose squared singular values are these."""
    weight = torch.zeros(SHAPES[WEIGHT])
    for index, energy in enumerate(energies):
        weight[index, index] = energy**0.5
    return {**STATE, WEIGHT: weight}


def total(tensors: dict[str, Tensor]) -> int:
    return sum(value.numel() for value in tensors.values())


def test_the_server_s_draw_goes_down_whole_in_round_one() -> None:
    sent = ALGORITHM.server.broadcast(STATE, INFO).tensors
    assert same_tensors(sent, exchanged(started().modules["auxiliary"], buffers=True))
    expected_frames(ALGORITHM, 4, PROTO_DIM).check_all_there(sent)


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("reduction", ["batch", "element"])
def test_the_loss_is_the_sum_of_both_adaptive_losses(reduction: Reduction, detach: bool) -> None:
    hyper = FedKDHyper(reduction=reduction, detach_targets=detach)
    algorithm = SPEC.build(hyper, MIXED)
    client = make_client([6, 6, 0, 0])
    algorithm.client.init(client, STREAMS)
    task = algorithm.client.task(client, batch_plan(12, 12, 1, last="keep", shuffle=None), seed=0)
    task.modules.eval()
    batch = client.train.batch(torch.arange(12))
    own, shared = client.model(batch.inputs), client.modules["auxiliary"](batch.inputs)
    expected = adaptive_losses(
        own,
        shared,
        client.modules["adapter"](shared.features),
        batch.labels,
        hyper,
    )
    step = task.loss(task.modules, batch, task.context)
    torch.testing.assert_close(step.loss, expected.local + expected.auxiliary)
    head = client.modules["auxiliary"].get_parameter("head.weight")  # its gradient tells fixed targets from free ones
    found, due = (torch.autograd.grad(loss, head)[0] for loss in (step.loss, expected.local + expected.auxiliary))
    torch.testing.assert_close(found, due)
    assert [group.module for group in task.groups] == ["model", "auxiliary", "adapter"]
    assert set(task.groups) == {ParamGroup(name, 0.05, 10.0) for name in ("model", "auxiliary", "adapter")}


@pytest.mark.parametrize("detach", [True, False])
def test_the_feature_map_is_each_client_s_own_learns_and_never_travels(detach: bool) -> None:
    algorithm = SPEC.build(FedKDHyper(detach_targets=detach), MIXED)
    first, second = make_client([6, 6, 0, 0]), make_client([6, 6, 0, 0], id_=1)
    for client in (first, second):
        algorithm.client.init(client, STREAMS)
    adapters = [client.modules["adapter"].get_parameter("weight") for client in (first, second)]
    assert adapters[0].shape == (PROTO_DIM, PROTO_DIM)
    assert not torch.equal(*adapters)
    assert [name for name, _ in first.modules["adapter"].named_parameters()] == ["weight"]
    before = adapters[0].detach().clone()
    EagerTrainer().fit([algorithm.client.task(first, batch_plan(12, 12, 1, last="keep", shuffle=None), seed=0)])
    assert not torch.equal(adapters[0], before)
    kept = adapters[0].detach().clone()
    algorithm.client.receive(first, Message(tensors=STATE))
    assert torch.equal(adapters[0], kept)
    assert not any("adapter" in name for name in algorithm.tensor_shapes)


@pytest.mark.parametrize(("round_", "rank"), [(FIRST, 2), (LAST, 3)])
def test_a_client_sends_as_many_components_as_the_round_s_threshold_asks_for(round_: Round, rank: int) -> None:
    # Shares 0.7, 0.96 and 1: enough for 0.95 of round 1 with two components, not for 0.977 of the last round.
    client = started()
    ALGORITHM.client.receive(client, Message(tensors=with_energies(7.0, 2.6, 0.4)))
    sent = dict(ALGORITHM.client.update(client, NO_FIT, round_).tensors)
    assert WEIGHT not in sent
    assert (sent[f"{WEIGHT}.left"].shape, sent[f"{WEIGHT}.right"].shape) == ((16, rank), (rank, 36))
    assert torch.equal(sent["head.bias"], STATE["head.bias"])


def test_statistics_and_vectors_travel_whole_and_what_no_factors_make_smaller() -> None:
    sent = ALGORITHM.client.update(started(), NO_FIT, FIRST).tensors
    for name in ("head.weight", "extractor.2.running_var", "extractor.5.bias"):  # a 4 × 12 draw has rank 4
        assert torch.equal(sent[name], STATE[name])
    assert total(dict(sent)) <= total(STATE)
    own = SPEC.build(FedKDHyper(average_buffers=False), MIXED)
    assert not any("running" in name for name in own.tensor_shapes)


def test_the_server_restores_averages_all_alike_and_compresses_again() -> None:
    first, second = with_energies(7.0, 2.6, 0.4), with_energies(28.0, 10.4, 1.6)
    uploads = []
    for id_, tensors in enumerate((first, second)):
        client = started(id_)
        ALGORITHM.client.receive(client, Message(tensors=tensors))
        sent = ALGORITHM.client.update(client, NO_FIT, FIRST).tensors
        uploads.append(tensors_update(sent, id_, samples=1 + 9 * id_))
    state = ALGORITHM.server.aggregate(STATE, uploads, EagerTrainer(), FIRST, STREAMS)
    assert state[f"{WEIGHT}.left"].shape == (16, 2)
    restored = LowRank(SHAPES, FedKDHyper()).decode(state)
    diagonal = restored[WEIGHT].diagonal()[:4].tolist()
    assert diagonal == pytest.approx([1.5 * 7.0**0.5, 1.5 * 2.6**0.5, 0.0, 0.0], abs=1e-5)
    receiver = started(2)
    ALGORITHM.client.receive(receiver, ALGORITHM.server.broadcast(state, INFO))
    assert same_tensors(host(exchanged(receiver.modules["auxiliary"], buffers=True)), restored)


def test_a_flat_tensor_is_never_zeroed_on_its_way_there_and_back() -> None:
    flat = with_energies(*[1.0] * 16)
    client = started()
    ALGORITHM.client.receive(client, Message(tensors=flat))
    upload = tensors_update(ALGORITHM.client.update(client, NO_FIT, FIRST).tensors)
    state = ALGORITHM.server.aggregate(STATE, [upload], EagerTrainer(), FIRST, STREAMS)
    assert torch.equal(state[WEIGHT], flat[WEIGHT])


def test_both_sides_know_the_largest_factors_that_can_be_smaller() -> None:
    # 16 × 36: rank 11 has 572 values, fewer than 576. A 4 × 12 head: rank 2 has 32 of 48, rank 3 as many.
    assert ALGORITHM.tensor_shapes[f"{WEIGHT}.left"] == (16, AtMost(11))
    assert ALGORITHM.tensor_shapes[f"{WEIGHT}.right"] == (AtMost(11), 36)
    assert ALGORITHM.tensor_shapes["head.weight.left"] == (4, AtMost(2))
    assert ALGORITHM.tensor_parts[WEIGHT] == (f"{WEIGHT}.left", f"{WEIGHT}.right")
    assert "head.bias" not in ALGORITHM.tensor_parts
    frames = expected_frames(ALGORITHM, 4, PROTO_DIM)
    assert 4 * total(STATE) < frames.largest_frame < 2 * 4 * total(STATE) + 8192


def test_kernels_and_filters_are_different_federations_with_factors_of_different_shapes() -> None:
    convolution: dict[str, tuple[int, ...]] = {"w": (8, 4, 3, 3)}
    assert LowRank(convolution, FedKDHyper()).shapes["w.left"] == (8, AtMost(6))  # 6·(8 + 36) = 264 of 288
    kernels = LowRank(convolution, FedKDHyper(matrices="kernels"))
    assert (kernels.shapes["w.left"], kernels.shapes["w.right"]) == ((8, 4, 3, AtMost(1)), (8, 4, AtMost(1), 3))
    pointwise = LowRank({"w": (8, 4, 1, 1)}, FedKDHyper(matrices="kernels"))
    assert (dict(pointwise.shapes), dict(pointwise.parts)) == ({"w": (8, 4, 1, 1)}, {})
    digests = {
        expected_frames(SPEC.build(FedKDHyper(matrices=view), MIXED), 4, PROTO_DIM).digest
        for view in ("filters", "kernels")
    }
    assert len(digests) == 2


def test_table_2_leaves_the_reduction_open_so_there_is_no_formula() -> None:
    assert ALGORITHM.table2_parameters([1, 2]) is None


@pytest.mark.parametrize(("start", "end"), [(0.0, 0.9), (0.98, 0.95), (0.5, 1.01), (float("nan"), 0.9)])
def test_thresholds_rise_and_lie_between_zero_and_one(start: float, end: float) -> None:
    with pytest.raises(ValueError, match="energy_start ≤ energy_end ≤ 1"):
        FedKDHyper(energy_start=start, energy_end=end)


def test_the_published_thresholds_and_the_clipping_are_the_defaults() -> None:
    assert (FedKDHyper().energy_start, FedKDHyper().energy_end, FedKDHyper().clip_norm) == (0.95, 0.98, 10.0)
    with pytest.raises(ValueError, match="clip_norm must be above 0"):
        FedKDHyper(clip_norm=0.0)
