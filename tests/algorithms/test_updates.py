"""FedKD's shared network as updates: both ends hold the same version, whoever is lost on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from support import (
    FEDERATION,
    NO_FIT,
    PROTO_DIM,
    STREAMS,
    InProcess,
    SimulationSettings,
    make_client,
    same_tensors,
    tensors_update,
    tiny_net,
    wide_net,
)
from support_rounds import build
from tinyproto.algorithms.base import Client, ClientInfo, Round, Update, expected_frames
from tinyproto.algorithms.exchange import exchanged, host
from tinyproto.algorithms.fedkd import SPEC, FedKDHyper
from tinyproto.algorithms.updates import BASE, HELD, UNKNOWN, VERSION, UpdateClient, without_prefix
from tinyproto.core.prototypes import Message
from tinyproto.core.task import State
from tinyproto.data.dataset import FederatedData
from tinyproto.engine.client import LocalTraining
from tinyproto.engine.participation import Trace
from tinyproto.engine.training import EagerTrainer
from tinyproto.wire.values import WireSettings

MIXED = replace(FEDERATION, networks=(wide_net, tiny_net))
HYPER = FedKDHyper(factorised="updates")
ALGORITHM = SPEC.build(HYPER, MIXED)
FIRST, LAST = Round(1, 10), Round(10, 10)
STATE = ALGORITHM.server.init(STREAMS)
WEIGHT = "extractor.1.weight"  # 16 × 36


def info(client: int) -> ClientInfo:
    return ClientInfo(client, 10, 10, 2)


def started(id_: int = 0) -> Client:
    client = make_client([6, 6, 0, 0], id_=id_)
    ALGORITHM.client.init(client, STREAMS)
    return client


def shared(client: Client) -> State:
    return host(exchanged(client.modules["auxiliary"], buffers=True))


@torch.no_grad()
def change(client: Client, *energies: float, bias: float = 0.0) -> None:
    """Train by hand: add a matrix with these squared singular values to a weight, and a number to a bias."""
    network = client.modules["auxiliary"]
    for index, energy in enumerate(energies):
        network.get_parameter(WEIGHT)[index, index] += energy**0.5
    network.get_parameter("head.bias").add_(bias)


def sent(client: Client, state: State, *energies: float, bias: float = 0.0, round_: Round = FIRST) -> Update:
    """A client's upload after it received the state and was changed by hand."""
    ALGORITHM.client.receive(client, ALGORITHM.server.broadcast(state, info(client.id)))
    change(client, *energies, bias=bias)
    message = ALGORITHM.client.update(client, NO_FIT, round_)
    return Update(info(client.id), message)


def after(state: State, *uploads: Update) -> State:
    return ALGORITHM.server.aggregate(state, uploads, EagerTrainer(), FIRST, STREAMS)


def held(state: State) -> State:
    return without_prefix(state, HELD)


@pytest.mark.parametrize(("round_", "rank"), [(FIRST, 2), (LAST, 3)])
def test_a_client_sends_the_change_at_the_round_s_threshold_and_not_the_weights(round_: Round, rank: int) -> None:
    # Of the change, shares 0.7, 0.96 and 1: two components are enough for 0.95, not for 0.977 of the last round. The
    # weights themselves are a draw with a flat spectrum, which no factors make smaller.
    upload = sent(started(), STATE, 7.0, 2.6, 0.4, bias=0.5, round_=round_).message.tensors
    left, right = upload[f"{WEIGHT}.left"], upload[f"{WEIGHT}.right"]
    assert (left.shape, right.shape) == ((16, rank), (rank, 36))
    kept = [7.0**0.5, 2.6**0.5, 0.4**0.5 if rank == 3 else 0.0]
    assert (left @ right).diagonal()[:3].tolist() == pytest.approx(kept, abs=1e-5)
    assert upload["head.bias"].tolist() == pytest.approx([0.5] * 4)


def test_the_server_adds_the_mean_change_as_it_was_compressed_and_receivers_hold_the_same() -> None:
    first, second = started(0), started(1)
    uploads = [sent(first, STATE, 7.0, 2.6, 0.4, bias=1.0), sent(second, STATE, 28.0, 10.4, 1.6, bias=3.0)]
    state = after(STATE, *uploads)
    moved = held(state)[WEIGHT] - held(STATE)[WEIGHT]
    assert moved.diagonal()[:4].tolist() == pytest.approx([1.5 * 7.0**0.5, 1.5 * 2.6**0.5, 0.0, 0.0], abs=1e-5)
    assert (held(state)["head.bias"] - held(STATE)["head.bias"]).tolist() == pytest.approx([2.0] * 4)
    update = ALGORITHM.server.broadcast(state, info(0))
    assert update.tensors[f"{WEIGHT}.left"].shape == (16, 2)
    for client in (first, second):
        ALGORITHM.client.receive(client, update)
        assert same_tensors(shared(client), held(state))
    expected_frames(ALGORITHM, 4, PROTO_DIM).check_all_there(update.tensors)


def test_who_was_not_in_the_last_mean_receives_the_network_whole() -> None:
    state = after(STATE, sent(started(0), STATE, 9.0))
    whole, update = (ALGORITHM.server.broadcast(state, info(client)) for client in (1, 0))
    assert same_tensors(whole.tensors, held(state))
    assert BASE not in whole.metrics
    assert update.parameters < whole.parameters
    newcomer = started(1)
    ALGORITHM.client.receive(newcomer, whole)
    assert same_tensors(shared(newcomer), held(state))


def test_an_update_that_comes_twice_is_added_once() -> None:
    client = started()
    state = after(STATE, sent(client, STATE, 9.0))
    for _ in range(2):  # as after a round without any upload, or from a coordinator that resumed
        ALGORITHM.client.receive(client, ALGORITHM.server.broadcast(state, info(0)))
        change(client, 4.0)  # trained in between, for nothing
    ALGORITHM.client.receive(client, ALGORITHM.server.broadcast(state, info(0)))
    assert same_tensors(shared(client), held(state))


def test_a_client_without_the_version_before_sends_nothing_and_receives_all_the_next_time() -> None:
    state = after(STATE, sent(started(0), STATE, 9.0), sent(started(1), STATE, 9.0))
    lost = started(0)  # it begins again, and the server does not know
    before = shared(lost)
    ALGORITHM.client.receive(lost, ALGORITHM.server.broadcast(state, info(0)))
    assert same_tensors(shared(lost), before)
    assert int(lost.state[VERSION]) == UNKNOWN
    silent = ALGORITHM.client.update(lost, NO_FIT, FIRST)
    assert silent == Message()
    later = after(state, Update(info(0), silent), sent(started(2), state, 1.0))
    ALGORITHM.client.receive(lost, ALGORITHM.server.broadcast(later, info(0)))
    assert same_tensors(shared(lost), held(later))


def test_a_client_whose_sum_has_another_last_bit_does_not_drift_but_receives_all_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = started(0)
    state = after(STATE, sent(client, STATE, 9.0))
    assert isinstance(ALGORITHM.client, UpdateClient)
    coder = ALGORITHM.client.coder

    def rounded(tensors: Mapping[str, Tensor]) -> State:
        decoded = coder.decode(tensors)
        return {**decoded, WEIGHT: decoded[WEIGHT] * (1 + 1e-6)}

    with monkeypatch.context() as other_processor:
        other_processor.setattr(ALGORITHM.client, "coder", replace(coder, decode=rounded))
        ALGORITHM.client.receive(client, ALGORITHM.server.broadcast(state, info(0)))
    silent = ALGORITHM.client.update(client, NO_FIT, FIRST)
    assert silent == Message()
    later = after(state, Update(info(0), silent), sent(started(1), state, 1.0))
    whole = ALGORITHM.server.broadcast(later, info(0))
    assert BASE not in whole.metrics
    ALGORITHM.client.receive(client, whole)
    assert int(client.state[VERSION]) == int(later[VERSION])
    assert same_tensors(shared(client), held(later))


def test_an_upload_from_another_version_takes_no_part() -> None:
    late = sent(started(0), STATE, 9.0)
    state = after(STATE, sent(started(1), STATE, 4.0))
    assert after(state, late) is state
    both = after(state, late, sent(started(2), state, 1.0))
    assert same_tensors(both, after(state, sent(started(2), state, 1.0)))
    assert both["in_step"].tolist() == [2]
    unnamed = tensors_update(late.message.tensors)
    assert after(STATE, unnamed) is STATE


def test_a_download_that_rounds_is_refused_and_an_upload_that_does_is_not() -> None:
    with pytest.raises(ValueError, match=r"factorised: updates needs wire\.down: float32, not int8"):
        SPEC.build(HYPER, replace(MIXED, wire=WireSettings("float32", "int8")))
    SPEC.build(HYPER, replace(MIXED, wire=WireSettings("int8", "float32")))


def test_weights_and_updates_are_different_federations() -> None:
    digests = {expected_frames(SPEC.build(hyper, MIXED), 4, PROTO_DIM).digest for hyper in (HYPER, FedKDHyper())}
    assert len(digests) == 2


def simulation(
    data: FederatedData, settings: SimulationSettings, factorised: str = "updates", folder: Path | None = None
) -> InProcess:
    return InProcess(data, [tiny_net], build("fedkd", factorised=factorised), settings, 0, folder=folder)


DROPPED: Trace = {(1, 0): "late", (2, 1): "drop", (3, 2): "late", (3, 3): "drop"}
TRAINING = LocalTraining(rounds=5, batch_size=8)


@pytest.mark.parametrize(
    "settings",
    [
        SimulationSettings(TRAINING, PROTO_DIM),
        SimulationSettings(TRAINING, PROTO_DIM, dropout=DROPPED),
        SimulationSettings(TRAINING, PROTO_DIM, dropout={(2, client): "drop" for client in range(5)}),
        SimulationSettings(TRAINING, PROTO_DIM, participation=0.5, evaluate_clients="all"),
        SimulationSettings(TRAINING, PROTO_DIM, participation=0.5, dropout=0.3, late=0.3),
        SimulationSettings(TRAINING, PROTO_DIM, participation=0.5, client_memory=1.0),
        SimulationSettings(TRAINING, PROTO_DIM, wire=WireSettings("int8", "float32", "stochastic")),
    ],
    ids=["all", "absences", "a round of nobody", "half, all evaluated", "half, absences", "on disk", "int8 up"],
)
def test_after_the_last_exchange_every_client_holds_the_server_s_bits(
    quarters: FederatedData, settings: SimulationSettings
) -> None:
    played = simulation(quarters, settings)
    records = [result.record for result in played.rounds()]
    assert not any(record.refused for record in records)
    version: Tensor = played.server.state[VERSION]
    assert int(version) != int(ALGORITHM.server.init(STREAMS)[VERSION])
    for client in played.clients.values():
        assert int(client.state[VERSION]) == int(version)
        assert same_tensors(shared(client), held(played.server.state))


def test_bytes_are_those_of_the_frames_and_updates_take_fewer(quarters: FederatedData) -> None:
    settings = SimulationSettings(TRAINING, PROTO_DIM)
    weights, updates = (
        [result.record for result in simulation(quarters, settings, form).rounds()] for form in ("weights", "updates")
    )
    first, second = (record.traffic["training"] for record in updates[:2])
    whole = weights[0].traffic["training"]["down"].parameters
    assert first["down"].parameters == whole  # the server's draw
    assert second["down"].parameters < whole
    for cost in (first["up"], second["up"], second["down"]):
        assert cost.payload == 4 * cost.parameters < cost.wire
    for record in updates[1:-1]:
        assert record.traffic["training"]["up"].parameters < whole
