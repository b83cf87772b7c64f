from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from support import NUM_CLASSES, PROTO_DIM, InProcess, SimulationSettings, head_weight, tiny_net
from tinyproto.algorithms import ALGORITHMS, Algorithm
from tinyproto.algorithms.base import FederationSpec
from tinyproto.core.streams import Streams, one_thread
from tinyproto.data.dataset import FederatedData
from tinyproto.engine.client import LocalTraining
from tinyproto.engine.participation import draw_participants
from tinyproto.engine.round import RoundRecord
from tinyproto.memory import PeakMemory

SETTINGS = SimulationSettings(LocalTraining(rounds=3, batch_size=8), PROTO_DIM)


def algorithm(name: str = "fedproto") -> Algorithm:
    spec = ALGORITHMS[name]
    return spec.build(spec.hyper(), FederationSpec(NUM_CLASSES, PROTO_DIM, 0.05))


def records(
    data: FederatedData, settings: SimulationSettings, seed: int = 0, name: str = "fedproto"
) -> list[RoundRecord]:
    return [played.record for played in InProcess(data, [tiny_net], algorithm(name), settings, seed).rounds()]


def test_equal_seeds_give_equal_records_and_other_seeds_others(quarters: FederatedData) -> None:
    assert records(quarters, SETTINGS) == records(quarters, SETTINGS)
    assert records(quarters, SETTINGS) != records(quarters, SETTINGS, seed=1)


def test_results_do_not_depend_on_the_global_generator_or_thread_count(quarters: FederatedData) -> None:
    torch.manual_seed(0)
    first = records(quarters, SETTINGS)
    torch.manual_seed(123)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert records(quarters, SETTINGS) == first
    finally:
        torch.set_num_threads(threads)


def test_every_algorithm_starts_from_the_same_weights(quarters: FederatedData) -> None:
    first = InProcess(quarters, [tiny_net], algorithm("local"), SETTINGS, 0).clients
    second = InProcess(quarters, [tiny_net], algorithm("fedtgp"), SETTINGS, 0).clients
    assert torch.equal(head_weight(first[0]), head_weight(second[0]))
    assert not torch.equal(head_weight(first[0]), head_weight(first[1]))


def test_partial_participation_trains_and_evaluates_only_who_was_drawn(quarters: FederatedData) -> None:
    played = records(quarters, replace(SETTINGS, participation=0.4))
    for record in played[:-1]:
        assert len(record.participants) == 2
        assert set(record.clients) == set(record.participants)
        assert "evaluation" not in record.traffic
    assert set(played[-1].clients) == set(range(5))
    assert len({record.participants for record in played[:-1]}) > 1


def test_evaluating_everyone_under_partial_participation_is_metered_as_evaluation(quarters: FederatedData) -> None:
    played = records(quarters, replace(SETTINGS, participation=0.4, evaluate_clients="all"))
    for record in played[:-1]:
        assert set(record.clients) == set(range(5))
        assert record.traffic["evaluation"]["up"].wire > 0
    assert played[1].traffic["evaluation"]["down"].parameters == 3 * int(
        played[1].traffic["training"]["down"].parameters / 2
    )


def test_only_participants_change(quarters: FederatedData) -> None:
    simulation = InProcess(quarters, [tiny_net], algorithm(), replace(SETTINGS, participation=0.2), 0)
    before = {client.id: head_weight(client).clone() for client in simulation.clients.values()}
    first = next(iter(simulation.rounds())).record
    changed = {id_ for id_, weight in before.items() if not torch.equal(weight, head_weight(simulation.clients[id_]))}
    assert changed == set(first.participants)


def test_a_client_evaluated_for_the_first_time_has_no_local_prototypes_yet(quarters: FederatedData) -> None:
    played = records(quarters, replace(SETTINGS, participation=0.2, evaluate_clients="all"))
    newcomers = set(range(4)) - set(played[0].participants)  # client 4 has no test part
    assert all(played[1].clients[client].correct["local"] is None for client in newcomers)
    assert all(played[1].clients[client].correct["global"] is not None for client in newcomers)


def test_who_has_no_answer_counts_as_wrong_so_that_all_rules_speak_of_the_same_clients(quarters: FederatedData) -> None:
    played = records(quarters, replace(SETTINGS, participation=0.4, evaluate_clients="all"))
    second = played[1].clients.values()
    assert any(client.correct["local"] is None for client in second if client.test_samples)
    everyone = sum(client.test_samples or 0 for client in second)
    assert played[1].accuracy["local"] == sum(client.correct["local"] or 0 for client in second) / everyone


def test_evaluation_can_be_rarer_and_always_closes(quarters: FederatedData) -> None:
    played = records(quarters, replace(SETTINGS, evaluate_every=2))
    assert [record.accuracy["head"] is not None for record in played] == [True, False, True, True]
    assert played[1].accuracy == {"head": None, "global": None, "local": None}
    assert played[1].loss["cross_entropy"] > 0


def test_the_draw_of_participants_is_uniform_sorted_and_never_empty() -> None:
    draws = [draw_participants(10, 0.3, Streams(0), number) for number in range(1, 301)]
    assert all(len(draw) == 3 and draw == sorted(set(draw)) for draw in draws)
    often = [sum(client in draw for draw in draws) for client in range(10)]
    assert min(often) > 60
    assert max(often) < 120
    assert len(draw_participants(10, 0.001, Streams(0), 1)) == 1
    assert draw_participants(4, 1.0, Streams(0), 1) == [0, 1, 2, 3]


def test_the_clock_is_the_caller_s(quarters: FederatedData) -> None:
    ticks = iter(range(10_000))
    simulation = InProcess(quarters, [tiny_net], algorithm(), SETTINGS, 0, clock=lambda: float(next(ticks)))
    seconds = next(iter(simulation.rounds())).seconds
    assert set(seconds) == {"total", "train", "prototypes", "server", "evaluate", "clients"}
    assert all(value > 0 and value == int(value) for value in seconds.values())


def test_one_thread_gives_the_others_back() -> None:
    threads = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == threads


def test_peak_memory_sees_what_was_taken_since() -> None:
    memory = PeakMemory(torch.device("cpu"))
    before = memory.read()
    block = torch.ones(50_000_000)
    assert memory.read() - before > 100_000_000
    del block


def test_n_ij_may_count_test_samples_too(quarters: FederatedData) -> None:
    train = InProcess(quarters, [tiny_net], algorithm(), SETTINGS, 0)
    everything = InProcess(quarters, [tiny_net], algorithm(), replace(SETTINGS, counted_samples="all"), 0)
    assert int(train.clients[0].class_counts.sum()) == 30
    assert int(everything.clients[0].class_counts.sum()) == 40


@pytest.mark.parametrize("count", [1, 2, 3])
def test_client_i_gets_model_i_modulo_their_number(quarters: FederatedData, count: int) -> None:
    networks = ["small_cnn_a", "small_cnn_b", "small_cnn_c"][:count]
    simulation = InProcess(quarters, networks, algorithm(), SETTINGS, 0)
    architectures = [client.architecture for client in simulation.clients.values()]
    assert architectures == [networks[client % count] for client in range(5)]
