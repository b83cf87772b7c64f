"""Clients beyond the budget go to disk and come back to the bit; a client that nobody changed needs no file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support import FEDERATION, PROTO_DIM, InProcess, SimulationSettings, same_tensors, tiny_net, wide_net
from tinyproto.algorithms import ALGORITHMS, Algorithm
from tinyproto.algorithms.base import Client
from tinyproto.core.prototypes import Message
from tinyproto.data.dataset import FederatedData
from tinyproto.engine.client import LocalTraining
from tinyproto.engine.participation import EvaluatedClients
from tinyproto.engine.round import RoundRecord
from tinyproto.errors import ClientStateError
from tinyproto.models import ModelEntry
from tinyproto.simulation.client_store import memory_of

SETTINGS = SimulationSettings(LocalTraining(4, batch_size=8), PROTO_DIM, participation=0.4)
ONE_BYTE = replace(SETTINGS, client_memory=1)


def networks_for(name: str) -> tuple[ModelEntry, ...]:
    return (tiny_net,) if name == "fedavg" else (tiny_net, wide_net)


def build(name: str) -> Algorithm:
    spec = ALGORITHMS[name]
    return spec.build(spec.hyper(), replace(FEDERATION, networks=networks_for(name)))


def simulation(
    data: FederatedData, settings: SimulationSettings, name: str = "tinyproto_ft", folder: Path | None = None
) -> InProcess:
    return InProcess(data, networks_for(name), build(name), settings, seed=0, folder=folder)


def records(played: InProcess) -> list[RoundRecord]:
    return [round_.record for round_ in played.rounds()]


@pytest.mark.parametrize("evaluated", ["participants", "all"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_budget_of_one_byte_gives_the_same_records_and_the_same_clients(
    quarters: FederatedData, name: str, evaluated: EvaluatedClients
) -> None:
    settings = replace(SETTINGS, evaluate_clients=evaluated)
    roomy, tight = (simulation(quarters, replace(settings, client_memory=b), name) for b in (float("inf"), 1))
    assert records(roomy) == records(tight)
    assert same_tensors(roomy.snapshot(), tight.snapshot())
    assert roomy.clients.counts.written == 0
    assert tight.clients.counts.read_back > 0


def test_the_order_in_which_clients_are_asked_for_does_not_matter(quarters: FederatedData) -> None:
    forth, back = (simulation(quarters, SETTINGS) for _ in range(2))
    for client in reversed(range(5)):
        assert back.clients[client].id == client
    assert same_tensors(forth.snapshot(), back.snapshot())


def test_the_hello_builds_no_network(quarters: FederatedData, tmp_path: Path) -> None:
    played = simulation(quarters, ONE_BYTE, folder=tmp_path)
    told = {client: played.clients.info(client) for client in played.clients}
    assert played.clients.counts.built == 0
    next(iter(played.rounds()))
    assert played.server.infos == told
    assert played.clients.counts.built == 2  # who takes part
    assert [info.train_samples for info in told.values()] == [30, 20, 9, 1, 17]
    assert [info.counted_classes for info in told.values()] == [4, 4, 1, 1, 4]


def test_a_client_that_nobody_changed_needs_no_file(quarters: FederatedData, tmp_path: Path) -> None:
    played = simulation(quarters, ONE_BYTE, folder=tmp_path)
    for _ in range(2):
        assert [client.id for client in played.clients.values()] == list(range(5))
    assert played.clients.counts.built == 10
    assert list(tmp_path.iterdir()) == []


def test_who_is_only_evaluated_writes_what_arrived_and_not_its_network(quarters: FederatedData, tmp_path: Path) -> None:
    played = simulation(quarters, replace(ONE_BYTE, evaluate_clients="all"), folder=tmp_path)
    rounds = played.rounds()
    trained = {client for _ in range(2) for client in next(rounds).record.participants}
    stored = played.clients.save()
    assert trained < stored.keys()
    for client, parts in stored.items():
        assert ("model" in parts) == (client in trained)
        assert "received" in parts
    assert {place.file for parts in stored.values() for place in parts.values()} == {p.name for p in tmp_path.iterdir()}


def test_memory_stays_within_the_budget_and_gradients_do_not_outlast_a_training(quarters: FederatedData) -> None:
    whole = simulation(quarters, SETTINGS)
    weights = [memory_of(whole.clients[client]) for client in range(5)]
    budget = 3 * (weights[0] + weights[1]) + 1
    settings = replace(SETTINGS, client_memory=budget, participation=1.0)
    played = simulation(quarters, settings)
    store, seen = played.clients, []
    assert list(store.portions(range(5))) == [[0, 1], [2, 3], [4]]

    class Watching:
        def __init__(self) -> None:
            self.trainer = played.loopback.clients.trainer

        def __getattr__(self, name: str) -> object:
            here = store._here
            gradients = [p.grad is not None for c in here.values() for p in c.model.parameters()]
            weights = played.loopback.clients.last_good._weights.values()
            kept = [copy for own in weights for kind in own.copies for copy in kind]
            copies = sum(copy.numel() * copy.element_size() for copy in kept)
            seen.append((sum(map(memory_of, here.values())) + copies, any(gradients)))
            return getattr(self.trainer, name)

    played.loopback.clients.trainer = Watching()  # type: ignore[assignment]
    records(played)
    assert 0 < max(used for used, _ in seen) <= budget
    assert not any(left for _, left in seen)


def test_the_longest_unused_go_first(quarters: FederatedData) -> None:
    whole = simulation(quarters, SETTINGS, "fedavg")
    store = simulation(quarters, replace(SETTINGS, client_memory=3 * memory_of(whole.clients[0])), "fedavg").clients
    for client in (0, 1, 2, 0, 3):
        assert store[client].id == client
    assert store.counts.built == 4
    assert (store[0].id, store[2].id, store.counts.built) == (0, 2, 4)
    assert (store[1].id, store.counts.built) == (1, 5)


def test_files_out_of_date_are_removed_unless_a_checkpoint_may_need_them(
    quarters: FederatedData, tmp_path: Path
) -> None:
    store = simulation(quarters, ONE_BYTE, folder=tmp_path).clients

    def changed_and_put_away() -> str:
        client = store[0]
        client.state["values"] = client.state["values"] + 1
        assert store[1].id == 1
        (place,) = store._stored[0].values()
        return place.file

    first, second = changed_and_put_away(), changed_and_put_away()
    assert first != second
    assert {path.name for path in tmp_path.iterdir()} == {second}
    assert {place.file for place in store.save()[0].values()} == {second}
    third, fourth = changed_and_put_away(), changed_and_put_away()
    assert third not in {path.name for path in tmp_path.iterdir()}
    assert {path.name for path in tmp_path.iterdir()} == {second, fourth}


def test_a_client_that_returns_to_a_checkpointed_state_leaves_the_checkpoint_alone(
    quarters: FederatedData, tmp_path: Path
) -> None:
    store = simulation(quarters, ONE_BYTE, folder=tmp_path).clients

    def set_to(value: float) -> None:
        store[0].state["values"] = torch.full_like(store[0].state["values"], value)
        assert store[1].id == 1

    set_to(1.0)
    saved = store.save()
    for value in (2.0, 1.0, 3.0):
        set_to(value)
    store.restore(saved)
    assert bool((store[0].state["values"] == 1.0).all())


def test_a_state_of_another_network_or_a_damaged_one_is_refused(quarters: FederatedData, tmp_path: Path) -> None:
    played = simulation(quarters, replace(ONE_BYTE, participation=1.0), folder=tmp_path)
    next(iter(played.rounds()))
    saved = played.clients.save()
    played.clients.restore({1: saved[0]})
    with pytest.raises(ClientStateError, match="the state of client 1 does not fit this run: RuntimeError"):
        played.clients[1]
    played.clients.restore(saved)
    file = tmp_path / saved[2]["model"].file
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(ClientStateError, match=r"the state of client 2, is damaged \(SafetensorError"):
        played.clients[2]
    (tmp_path / saved[3]["model"].file).write_bytes((tmp_path / saved[1]["model"].file).read_bytes())
    with pytest.raises(ClientStateError, match="the state of client 3, is damaged"):
        played.clients[3]
    assert played.clients[0].id == 0


def test_who_is_not_there_is_not_there(quarters: FederatedData) -> None:
    store = simulation(quarters, SETTINGS).clients
    assert (len(store), 4 in store, 5 in store) == (5, True, False)
    with pytest.raises(KeyError):
        store[5]


class Accumulating:
    """A client side of someone else's, which writes into its network behind autograd's back when something arrives."""

    def __init__(self, side: object) -> None:
        self.side = side

    def __getattr__(self, name: str) -> object:
        return getattr(self.side, name)

    def receive(self, client: Client, message: Message) -> None:
        for parameter in client.model.head.parameters():
            parameter.data += 1


def test_a_network_that_changes_without_training_is_kept_too(quarters: FederatedData) -> None:
    plain = build("local")
    odd = replace(plain, client=Accumulating(plain.client))  # type: ignore[arg-type]
    settings = replace(SETTINGS, evaluate_clients="all")
    roomy, tight = (
        InProcess(quarters, [tiny_net], odd, replace(settings, client_memory=b), seed=0) for b in (float("inf"), 1)
    )
    assert records(roomy) == records(tight)
    assert same_tensors(roomy.snapshot(), tight.snapshot())


def test_seconds_spent_on_clients_are_a_phase_of_their_own(quarters: FederatedData) -> None:
    ticks: Iterator[int] = iter(range(100_000))
    played = InProcess(quarters, [tiny_net], build("fedavg"), ONE_BYTE, 0, clock=lambda: float(next(ticks)))
    seconds = [round_.seconds for round_ in played.rounds()]
    assert all(each["clients"] > 0 for each in seconds)
    for each in seconds[1:]:  # what the hello took is told with the first
        assert sum(value for phase, value in each.items() if phase != "total") < each["total"]
