"""One diverging client is left out of its rounds and keeps its last good state; the run goes on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support import FEDERATION, PROTO_DIM, InProcess, SimulationSettings, same_tensors, tiny_net
from support_rounds import build
from tinyproto.algorithms import ALGORITHMS
from tinyproto.algorithms.base import Client, FederationSpec
from tinyproto.core.task import FitResult, Task
from tinyproto.data.dataset import FederatedData
from tinyproto.engine.client import LastGood, LocalTraining, _finite_by_scaling
from tinyproto.engine.training import EagerTrainer
from tinyproto.errors import LeftOutError
from tinyproto.models.split import SplitModel
from tinyproto.storage.checkpoint import Position, load_newest, restore_server, save
from tinyproto.tracking.run_folder import record_values
from tinyproto.tracking.summary import Totals

ILL = 2
SETTINGS = SimulationSettings(LocalTraining(rounds=4, batch_size=8), PROTO_DIM)


class Diverging(EagerTrainer):
    """Breaks one weight of some clients at the end of their training, in the rounds that are named."""

    def __init__(self, rounds: dict[int, set[int]], weight: str = "model.head.bias", value: float = torch.nan) -> None:
        super().__init__()
        self.rounds, self.weight, self.value = rounds, weight, value
        self.count = 0

    def fit(self, tasks: Sequence[Task]) -> list[FitResult]:
        results = super().fit(tasks)
        if any(task.name.startswith("client") for task in tasks):
            self.count += 1
            for task in tasks:
                client = int(task.name.removeprefix("client "))
                if self.count in self.rounds.get(client, ()):
                    with torch.no_grad():
                        task.modules.get_parameter(self.weight)[...] = self.value
        return results


def diverging(
    data: FederatedData, name: str, rounds: dict[int, set[int]], settings: SimulationSettings = SETTINGS, **how: Any
) -> InProcess:
    played = InProcess(data, [tiny_net], build(name), settings, seed=0)
    played.loopback.clients.trainer = Diverging(rounds, **how)
    return played


def state_of(played: InProcess, client: int) -> dict[str, Tensor]:
    return {name: value for name, value in played.snapshot().items() if name.startswith(f"client/{client}/")}


@pytest.mark.parametrize("weight", ["model.head.bias", "model.extractor.1.weight"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_diverging_client_is_left_out_and_keeps_the_state_it_had_before_the_round(
    quarters: FederatedData, name: str, weight: str
) -> None:
    played = diverging(quarters, name, {ILL: {2, 3}}, weight=weight)
    rounds = played.rounds()
    next(rounds)
    before = state_of(played, ILL)
    second = next(rounds).record
    assert same_tensors(state_of(played, ILL), before)
    assert second.participants == (0, 1, 3, 4)
    assert list(second.refused) == [ILL]
    assert second.refused[ILL].startswith(f"training diverged at client {ILL} in round 2 (")
    assert second.refused[ILL].endswith("lower " + ", then ".join(played.server.expectation.remedies))
    assert second.clients[ILL].test_samples == len(quarters.shares[ILL].test)  # its scores count
    third, fourth, closing = (played_.record for played_ in rounds)
    assert (list(third.refused), list(fourth.refused), list(closing.refused)) == ([ILL], [], [])
    assert fourth.participants == (0, 1, 2, 3, 4)
    assert not same_tensors(state_of(played, ILL), before)
    assert all(bool(value.isfinite().all()) for value in played.server.state.values())
    assert all(bool(value.isfinite().all()) for value in played.snapshot().values())


@pytest.mark.parametrize(
    "name", ["fedproto", "fedtgp", "fedavg", "feddistill", "fedgh", "protonorm", "fedsa", "fedorgp"]
)
def test_the_others_train_as_if_the_client_had_not_taken_part(quarters: FederatedData, name: str) -> None:
    ill, well = diverging(quarters, name, {ILL: {1}}), diverging(quarters, name, {})
    first = next(iter(ill.rounds())).record
    next(iter(well.rounds()))
    assert first.participants == (0, 1, 3, 4)
    for client in first.participants:
        assert same_tensors(state_of(ill, client), state_of(well, client))
    assert not same_tensors(ill.server.state, well.server.state)


def test_nothing_changes_where_nothing_diverges(quarters: FederatedData) -> None:
    kept, plain = diverging(quarters, "tinyproto_ft", {}), diverging(quarters, "tinyproto_ft", {})
    plain.loopback.clients.last_good.keep = lambda _clients: None  # type: ignore[method-assign, assignment]
    assert [one.record for one in kept.rounds()] == [one.record for one in plain.rounds()]
    assert same_tensors(kept.snapshot(), plain.snapshot())


@pytest.mark.parametrize("name", ["fedavg", "fedkd", "tinyproto_fp"])
def test_a_budget_of_one_byte_gives_the_same_records_and_states(quarters: FederatedData, name: str) -> None:
    rounds = {ILL: {2, 3}}
    roomy = diverging(quarters, name, rounds)
    tight = InProcess(quarters, [tiny_net], build(name), replace(SETTINGS, client_memory=1), seed=0)
    one_by_one = {ILL: {5 * (number - 1) + ILL + 1 for number in rounds[ILL]}}  # each client is a fit of its own
    tight.loopback.clients.trainer = Diverging(one_by_one)
    assert [one.record for one in roomy.rounds()] == [one.record for one in tight.rounds()]
    assert same_tensors(roomy.snapshot(), tight.snapshot())
    assert tight.loopback.clients.last_good._weights == {}


def test_a_weight_that_only_overflows_its_round_s_upload_is_put_back_too(quarters: FederatedData) -> None:
    played = diverging(quarters, "fedproto", {ILL: {1}}, weight="model.extractor.5.bias", value=1e20)
    first = next(iter(played.rounds())).record
    assert "prototype of class" in first.refused[ILL]
    assert "norm 3.46e+20" in first.refused[ILL]  # √12 · 1e20
    assert bool(next(iter(played.clients[ILL].model.parameters())).isfinite().all())
    assert float(played.clients[ILL].model.extractor[5].bias.detach().abs().max()) < 1e3  # type: ignore[index]


@pytest.mark.parametrize(
    ("value", "ill"), [(1e30, False), (-3e38, False), (math.inf, True), (-math.inf, True), (math.nan, True)]
)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
def test_weights_are_ill_if_they_are_not_finite_however_large_they_are(
    quarters: FederatedData, value: float, ill: bool, kind: torch.dtype
) -> None:
    played = diverging(quarters, "local", {})
    well, other = (played.clients[client] for client in (0, 1))
    other.model.head.to(kind)
    next(other.model.head.parameters()).data[0, :2] = value
    assert LastGood().diverged([well, other]) == ({1} if ill else set())


class Remembering(nn.Module):
    """Has a buffer only once it has seen values."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", None)

    def forward(self, values: Tensor) -> Tensor:
        if self.training:
            self.mean = values.detach().mean(0)
        return values


def test_a_buffer_that_training_makes_or_removes_is_looked_at_and_put_back(quarters: FederatedData) -> None:
    client = diverging(quarters, "local", {}).clients[0]
    layer = Remembering()
    client.model.extractor.append(layer)  # type: ignore[operator]
    good = LastGood()
    good.keep([client])
    layer.mean = torch.tensor([1.0, math.nan])
    assert good.diverged([client]) == {client.id}
    good.put_back(client)
    assert layer.mean is None
    layer.mean = torch.ones(2)
    good.keep([client])
    layer.mean = torch.tensor([math.inf, 0.0])
    assert good.diverged([client]) == {client.id}
    layer.mean = None
    assert good.diverged([client]) == set()
    good.put_back(client)
    assert torch.equal(layer.mean, torch.ones(2))


def test_a_network_that_training_replaces_is_looked_at_and_put_back(quarters: FederatedData) -> None:
    client = diverging(quarters, "local", {}).clients[0]
    good, first = LastGood(), client.model
    before = {name: value.clone() for name, value in first.state_dict().items()}
    good.keep([client])
    client.model = SplitModel(nn.Linear(2, 2), nn.Linear(2, 2))
    with torch.no_grad():
        client.model.head.weight[0, 0] = math.nan  # type: ignore[operator]
    assert good.diverged([client]) == {client.id}
    good.put_back(client)
    assert client.model is first
    assert same_tensors(client.model.state_dict(), before)


def test_what_was_never_finite_such_as_a_mask_does_not_make_a_client_ill(quarters: FederatedData) -> None:
    client = diverging(quarters, "local", {}).clients[0]
    client.model.register_buffer("mask", torch.full((3, 3), -math.inf).triu(1))
    good = LastGood()
    good.keep([client])
    assert good.diverged([client]) == set()
    client.model.mask[0, 0] = math.nan  # type: ignore[operator]
    assert good.diverged([client]) == {client.id}
    good.put_back(client)
    assert good.diverged([client]) == set()


def test_a_buffer_that_grows_is_put_back_in_its_size(quarters: FederatedData) -> None:
    client = diverging(quarters, "local", {}).clients[0]
    client.model.register_buffer("seen", torch.zeros(0, 2))
    good = LastGood()
    for size in (0, 3, 5):
        client.model.seen = torch.full((size, 2), float(size))
        good.keep([client])
        client.model.seen = torch.full((size + 1, 2), math.nan)
        assert good.diverged([client]) == {client.id}
        good.put_back(client)
        assert torch.equal(client.model.seen, torch.full((size, 2), float(size)))


@pytest.mark.parametrize("value", [1e30, math.inf, -math.inf, math.nan])
def test_the_check_of_a_gpu_finds_what_is_not_finite_and_changes_no_bit(value: float) -> None:
    weights = [torch.randn(5, 3), torch.randn(4).bfloat16(), torch.randn(2).double()]
    weights[1][2] = value
    before = [weight.clone() for weight in weights]
    assert _finite_by_scaling(weights) == math.isfinite(value)
    for one, two in zip(weights, before, strict=True):
        assert torch.equal(one.view(torch.uint8), two.view(torch.uint8))


@pytest.mark.parametrize(("most", "ill"), [(0.0, {2}), (0.2, {2, 3}), (0.5, {0, 1, 2}), (1.0, {0, 1, 2, 3, 4})])
def test_a_run_ends_where_more_than_the_share_or_all_are_left_out(
    quarters: FederatedData, most: float, ill: set[int]
) -> None:
    settings = replace(SETTINGS, max_left_out=most)
    played = diverging(quarters, "tinyproto_fp", {client: {2} for client in ill}, settings)
    rounds = played.rounds()
    next(rounds)
    with pytest.raises(LeftOutError) as caught:
        next(rounds)
    sentence = str(caught.value)
    how_many = "all" if len(ill) == 5 else f"{len(ill)} of 5"
    assert sentence.startswith(f"round 2 left out {how_many} clients")
    assert f"training diverged at client {min(ill)} in round 2 (NaN or infinity in the weights)" in sentence
    assert "lower algorithms.proto_weight, then algorithms.global_scale, then train.learning_rate" in sentence
    assert "resume" not in sentence
    assert ("train.max_left_out" in sentence) == (len(ill) < 5)


@pytest.mark.parametrize(("most", "ill"), [(0.2, {2}), (0.5, {2, 3}), (1.0, {0, 1, 2, 3})])
def test_a_run_goes_on_up_to_the_share(quarters: FederatedData, most: float, ill: set[int]) -> None:
    settings = replace(SETTINGS, max_left_out=most)
    records = [one.record for one in diverging(quarters, "local", {client: {2} for client in ill}, settings).rounds()]
    assert [set(record.refused) for record in records] == [set(), ill, set(), set(), set()]


def test_the_summary_counts_client_rounds_and_names_clients(quarters: FederatedData) -> None:
    played = list(diverging(quarters, "local", {1: {2}, ILL: {1, 2, 4}}).rounds())
    told = Totals(played).summary({}, None, 0, {})
    assert (told["left_out"], told["left_out_clients"]) == (4, {"1": 1, "2": 3})
    none = Totals(diverging(quarters, "local", {}).rounds()).summary({}, None, 0, {})
    assert (none["left_out"], none["left_out_clients"]) == (0, {})


@pytest.mark.parametrize("name", ["fedproto", "fedavg"])
def test_a_resume_in_the_middle_of_it_leaves_the_same_records(
    quarters: FederatedData, tmp_path: Path, name: str
) -> None:
    def fresh(shift: int) -> InProcess:
        played = InProcess(quarters, [tiny_net], build(name), SETTINGS, seed=0, folder=tmp_path / "clients")
        played.loopback.clients.trainer = Diverging({ILL: {number - shift for number in (2, 3)}})
        return played

    whole = [record_values(one.record) for one in fresh(0).rounds()]
    first, rounds = fresh(0), []
    for one in first.rounds():
        rounds.append(record_values(one.record))
        if one.record.round == 2:
            break
    save(tmp_path, Position(0, 3, 0, 0, {}), first.server, first.host.save())
    second = fresh(2)
    checkpoint = load_newest(tmp_path, tmp_path / "clients")
    assert checkpoint is not None
    restore_server(second.server, checkpoint)
    second.host.restore(checkpoint.clients)
    rounds += [record_values(one.record) for one in second.rounds(first=3)]
    assert rounds == whole


def test_a_buffer_that_a_network_replaces_goes_back_too(quarters: FederatedData) -> None:
    def forgetful(input_shape: tuple[int, ...], proto_dim: int, num_classes: int) -> SplitModel:
        class Counting(nn.Module):
            calls: Tensor

            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("calls", torch.zeros(1))

            def forward(self, inputs: Tensor) -> Tensor:
                if self.training:
                    self.calls = self.calls + 1
                return inputs

        model = tiny_net(input_shape, proto_dim, num_classes)
        return SplitModel(nn.Sequential(Counting(), model.extractor), model.head)

    def calls(client: Client) -> float:
        return float(client.model.extractor.get_buffer("0.calls"))

    federation: FederationSpec = replace(FEDERATION, networks=(forgetful,))
    spec = ALGORITHMS["local"]
    played = InProcess(quarters, [forgetful], spec.build(spec.hyper(), federation), SETTINGS, seed=0)
    played.loopback.clients.trainer = Diverging({ILL: {2}})
    rounds: Iterator[Any] = played.rounds()
    next(rounds)
    once = calls(played.clients[ILL])
    next(rounds)
    assert once > 0
    assert calls(played.clients[ILL]) == once
