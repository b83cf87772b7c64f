from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

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
from tinyproto.algorithms.auxiliary import AuxiliaryHyper, Reduction
from tinyproto.algorithms.base import Algorithm, Client, ClientInfo, Round
from tinyproto.algorithms.exchange import drawn, exchanged, host
from tinyproto.algorithms.fml import SPEC, FMLHyper, mutual_losses
from tinyproto.core.prototypes import Message
from tinyproto.core.task import ParamGroup, Task, TensorData, batch_plan
from tinyproto.engine.training import EagerTrainer
from tinyproto.models.count import count_parameters

MIXED = replace(FEDERATION, networks=(wide_net, tiny_net))
ALGORITHM = SPEC.build(FMLHyper(), MIXED)
INFO = ClientInfo(0, 10, 10, 2)
ROUND = Round(1, 2)
PARAMETERS = count_parameters(drawn(tiny_net, FEDERATION.shape, STREAMS))


def started(algorithm: Algorithm, counts: list[int] | None = None, id_: int = 0) -> Client:
    client = make_client([6, 6, 0, 0] if counts is None else counts, id_=id_)
    algorithm.client.init(client, STREAMS)
    return client


def task_of(algorithm: Algorithm, client: Client) -> Task:
    return algorithm.client.task(client, batch_plan(len(client.train), 12, 1, last="keep", shuffle=None), seed=0)


def test_every_client_and_the_server_begin_with_one_draw_of_the_smallest_network() -> None:
    first, second = started(ALGORITHM), started(ALGORITHM, id_=1)
    sent = ALGORITHM.server.broadcast(ALGORITHM.server.init(STREAMS), INFO).tensors
    for client in (first, second):
        assert same_tensors(exchanged(client.modules["auxiliary"], buffers=True), sent)
    assert same_tensors(sent, exchanged(drawn(tiny_net, FEDERATION.shape, STREAMS), buffers=True))
    assert not torch.equal(first.model.head.weight, sent["head.weight"])  # type: ignore[arg-type]


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("reduction", ["batch", "element"])
def test_the_loss_is_the_sum_of_both_mutual_losses(reduction: Reduction, detach: bool) -> None:
    hyper = FMLHyper(local_weight=0.3, auxiliary_weight=0.8, reduction=reduction, detach_targets=detach)
    algorithm = SPEC.build(hyper, MIXED)
    client = started(algorithm)
    task = task_of(algorithm, client)
    task.modules.eval()
    batch = client.train.batch(torch.arange(12))
    own, shared = client.model(batch.inputs).logits, client.modules["auxiliary"](batch.inputs).logits
    expected = mutual_losses(own, shared, batch.labels, hyper)
    step = task.loss(task.modules, batch, task.context)
    torch.testing.assert_close(step.loss, expected.local + expected.auxiliary)
    entropies = [functional.cross_entropy(logits, batch.labels) for logits in (own, shared)]
    torch.testing.assert_close(step.parts, torch.stack(entropies).detach())
    assert task.part_names == ("cross_entropy", "auxiliary_cross_entropy")
    found = torch.autograd.grad(step.loss, client.model.head.weight)[0]  # type: ignore[arg-type]
    both = torch.autograd.grad(expected.local + expected.auxiliary, client.model.head.weight)[0]  # type: ignore[arg-type]
    torch.testing.assert_close(found, both)


def test_both_networks_are_trained_at_the_same_rate_and_clipped_each_for_itself() -> None:
    task = task_of(ALGORITHM, started(ALGORITHM))
    assert list(task.groups) == [ParamGroup("model", 0.05, 10.0), ParamGroup("auxiliary", 0.05, 10.0)]
    assert list(task.modules) == ["model", "auxiliary"]


def test_training_changes_both_networks_and_the_shared_one_is_sent_with_its_statistics() -> None:
    client = started(ALGORITHM)
    before = host(exchanged(client.model, buffers=True)), host(exchanged(client.modules["auxiliary"], buffers=True))
    (result,) = EagerTrainer().fit([task_of(ALGORITHM, client)])
    message = ALGORITHM.client.update(client, result, ROUND)
    after = host(exchanged(client.model, buffers=True)), host(exchanged(client.modules["auxiliary"], buffers=True))
    for old, new in zip(before, after, strict=True):
        assert not any(torch.equal(old[name], new[name]) for name in ("head.weight", "extractor.2.running_mean"))
    assert same_tensors(message.tensors, after[1])
    assert message.parameters == PARAMETERS + 2 * 16


def test_what_arrives_replaces_the_shared_network_and_leaves_the_client_s_own() -> None:
    client = started(ALGORITHM)
    own = host(client.model.state_dict())
    tensors = {name: torch.full_like(value, 0.5) for name, value in ALGORITHM.server.init(STREAMS).items()}
    assert ALGORITHM.client.receive(client, Message(tensors=tensors)) is None
    assert same_tensors(exchanged(client.modules["auxiliary"], buffers=True), tensors)
    assert same_tensors(host(client.model.state_dict()), own)
    ALGORITHM.client.receive(client, Message())  # who is told nothing keeps what it has
    assert same_tensors(exchanged(client.modules["auxiliary"], buffers=True), tensors)


def test_statistics_that_do_not_travel_stay_with_the_client() -> None:
    algorithm = SPEC.build(FMLHyper(average_buffers=False), MIXED)
    client = started(algorithm)
    algorithm.client.task(client, batch_plan(12, 12, 1, last="keep", shuffle=None), seed=0)
    EagerTrainer().fit([task_of(algorithm, client)])
    auxiliary = client.modules["auxiliary"]
    mean = auxiliary.get_buffer("extractor.2.running_mean").clone()
    assert float(mean.abs().sum()) > 0
    message = algorithm.client.update(client, NO_FIT, ROUND)
    assert not any("running" in name for name in (*message.tensors, *algorithm.tensor_shapes))
    assert message.parameters == PARAMETERS
    algorithm.client.receive(client, algorithm.server.broadcast(algorithm.server.init(STREAMS), INFO))
    assert torch.equal(auxiliary.get_buffer("extractor.2.running_mean"), mean)


def test_shared_networks_are_averaged_all_clients_alike() -> None:
    state = ALGORITHM.server.init(STREAMS)
    first, second = ({name: torch.full_like(tensor, value) for name, tensor in state.items()} for value in (2.0, 6.0))
    updates = [tensors_update(first, 0, samples=10), tensors_update(second, 1, samples=30)]
    mean = ALGORITHM.server.aggregate(state, updates, EagerTrainer(), ROUND, STREAMS)
    assert mean.keys() == state.keys()
    assert all(bool((value == 4.0).all()) for value in mean.values())


def test_a_client_without_training_samples_sends_back_what_it_was_sent() -> None:
    client = started(ALGORITHM)
    client.train = TensorData(torch.zeros(0, 1, 6, 6), torch.zeros(0, dtype=torch.int64))
    state = ALGORITHM.server.init(STREAMS)
    ALGORITHM.client.receive(client, Message(tensors=state))
    (result,) = EagerTrainer().fit([task_of(ALGORITHM, client)])
    assert (result.steps, result.last_epoch()) == (0, {})
    assert same_tensors(ALGORITHM.client.update(client, result, ROUND).tensors, state)


def test_table_2_counts_the_shared_network_for_every_client_both_ways() -> None:
    assert ALGORITHM.table2_parameters([1, 4, 2]) == 2 * 3 * PARAMETERS
    named = SPEC.build(FMLHyper(auxiliary="small_cnn_a"), MIXED)
    assert (named.table2_parameters([1]) or 0) > 0
    assert named.table2_parameters([1]) != ALGORITHM.table2_parameters([1])


def test_an_unknown_shared_network_is_refused_with_the_key_and_the_nearest_name() -> None:
    with pytest.raises(ValueError, match="auxiliary: unknown model 'resnet9', did you mean 'resnet8'"):
        SPEC.build(FMLHyper(auxiliary="resnet9"), MIXED)


@pytest.mark.parametrize("key", ["local_weight", "auxiliary_weight"])
def test_a_share_outside_zero_to_one_is_refused(key: str) -> None:
    for value in (-0.01, 1.01, float("nan")):
        with pytest.raises(ValueError, match=f"{key} must lie between 0 and 1"):
            SPEC.hyper(**{key: value})
    for value in (0.0, 1.0):
        assert getattr(SPEC.hyper(**{key: value}), key) == value


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_gradients_are_clipped_to_something_above_zero(value: float) -> None:
    with pytest.raises(ValueError, match="clip_norm must be above 0"):
        AuxiliaryHyper(clip_norm=value)
