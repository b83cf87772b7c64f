"""Methods that exchange parts of networks, through the round: what is evaluated, and what a bad upload does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from support import FEDERATION, PROTO_DIM, InProcess, SimulationSettings, same_tensors, tiny_net, wide_net
from tinyproto.algorithms import ALGORITHMS, Algorithm
from tinyproto.algorithms.base import Round
from tinyproto.core.prototypes import Message, class_means
from tinyproto.data.dataset import FederatedData
from tinyproto.engine.client import LocalTraining
from tinyproto.engine.measure import Meter, score
from tinyproto.engine.round import RoundRecord, play_round
from tinyproto.engine.server import Reply, RoundPlan
from tinyproto.errors import LeftOutError
from tinyproto.wire.codec import decode, encode, encode_body
from tinyproto.wire.frame import Body, Header, Kind
from tinyproto.wire.values import Coding

EXCHANGING = ["fedavg", "lg_fedavg", "fml", "fedkd"]


def build(name: str, learning_rate: float = 0.05) -> Algorithm:
    networks = (tiny_net,) if name == "fedavg" else (tiny_net, wide_net)
    spec = ALGORITHMS[name]
    return spec.build(spec.hyper(), replace(FEDERATION, networks=networks, learning_rate=learning_rate))


def simulation(data: FederatedData, name: str, learning_rate: float = 0.05) -> InProcess:
    networks = [tiny_net] if name == "fedavg" else [tiny_net, wide_net]
    settings = SimulationSettings(LocalTraining(rounds=2, batch_size=8), PROTO_DIM)
    return InProcess(data, networks, build(name, learning_rate), settings, seed=0)


@pytest.mark.parametrize(("name", "prefix"), [("fedavg", "head."), ("lg_fedavg", "")])
@pytest.mark.parametrize("kind", [Kind.EVALUATE, Kind.TRAIN])
def test_what_arrives_is_what_is_evaluated(quarters: FederatedData, name: str, prefix: str, kind: Kind) -> None:
    played = simulation(quarters, name)
    always_two = {name: value.clone() for name, value in played.server.state.items()}
    always_two[f"{prefix}weight"].zero_()
    always_two[f"{prefix}bias"].copy_(torch.tensor([0.0, 0.0, 1.0, 0.0]))
    clients = played.loopback.clients
    header = Header(kind, 1, 0, clients.expectation.digest, evaluate=True)
    answer = decode(clients.handle({0: encode(header, Message(tensors=always_two))})[0], header.digest).message
    of_class_two = int((played.clients[0].test.labels == 2).sum())
    assert 0 < of_class_two < len(played.clients[0].test)
    assert answer.metrics["correct_head"] == of_class_two


@pytest.mark.parametrize("kind", [Kind.EVALUATE, Kind.TRAIN])
def test_local_prototypes_are_of_the_network_that_arrived_to_be_evaluated(quarters: FederatedData, kind: Kind) -> None:
    played = simulation(quarters, "fedavg")
    list(played.rounds())
    shared, client, runtime = dict(played.server.state), played.clients[0], played.loopback.clients
    (features,) = runtime.trainer.features([client.model], [client.test])  # as it arrived in the closing exchange
    (own,) = runtime.trainer.features([client.model], [client.train])
    expected = score(
        client.model.head, features, client.test.labels, None, class_means(own, client.train.labels, 4)
    )  # fmt: skip
    with torch.no_grad():
        client.local.values.normal_(generator=torch.Generator().manual_seed(0))  # whatever it had before
    header = Header(kind, 2, 0, runtime.expectation.digest, evaluate=True)
    answer = decode(runtime.handle({0: encode(header, Message(tensors=shared))})[0], header.digest).message
    assert answer.metrics["correct_local"] == expected["correct_local"] > 0


@pytest.mark.parametrize("name", ["fml", "fedkd"])
def test_a_shared_network_is_never_evaluated(quarters: FederatedData, name: str) -> None:
    played, local = simulation(quarters, name), simulation(quarters, "local")
    first, alone = (next(iter(each.rounds())).record for each in (played, local))
    assert first.accuracy["head"] == alone.accuracy["head"]


@pytest.mark.parametrize("name", EXCHANGING)
def test_both_ways_weigh_the_same_and_the_payload_is_four_bytes_a_number(quarters: FederatedData, name: str) -> None:
    played = simulation(quarters, name)
    each = sum(value.numel() for value in played.server.state.values())
    first, second, closing = (round_.record for round_ in played.rounds())
    assert first.traffic["training"]["down"].parameters == 5 * each  # the server's draw, whole
    assert closing.traffic["closing"]["down"].parameters == 5 * sum(v.numel() for v in played.server.state.values())
    assert closing.traffic["closing"]["up"].parameters == 0
    for record in (first, second):
        for cost in record.traffic["training"].values():
            assert cost.payload == 4 * cost.parameters < cost.wire
            assert cost.parameters == 5 * each if name != "fedkd" else 0 < cost.parameters <= 5 * each


class Tampering:
    """A channel on which client 1's tensors are changed by someone."""

    def __init__(self, played: InProcess, change: dict[str, Tensor | None]) -> None:
        self.channel = played.loopback
        self.digest = played.server.expectation.digest
        self.change = change

    def exchange(self, round_number: int, frames: Mapping[int, bytes]) -> Iterable[Reply]:
        for client, frame, _ in self.channel.exchange(round_number, frames):
            if client != 1 or not round_number:
                yield Reply(client, frame)
                continue
            decoded = decode(frame, self.digest)
            tensors = {**decoded.message.tensors, **self.change}
            kept = {name: value for name, value in tensors.items() if value is not None}
            yield Reply(client, encode(decoded.header, Message(tensors=kept)))


def tolerant_round(played: InProcess, change: dict[str, Tensor | None]) -> RoundRecord:
    meter = Meter()
    played.server.greet(played.host, range(5), meter)
    plan = RoundPlan(Round(1, 2), participants=range(5), evaluated=frozenset())
    return play_round(played.server, Tampering(played, change), plan, meter)


WEIGHT = "extractor.1.weight"


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("fedavg", {"extractor.2.running_var": None}, "tensor 'extractor.2.running_var': it has to be there once"),
        ("lg_fedavg", {"bias": None}, "tensor 'bias': it has to be there once, whole"),
        ("fml", {"head.weight": None}, "tensor 'head.weight': it has to be there once, whole"),
        ("fedkd", {"head.bias": None}, "tensor 'head.bias': it has to be there once, whole"),
        (
            "fedkd",
            {WEIGHT: None, f"{WEIGHT}.left": torch.ones(16, 3), f"{WEIGHT}.right": None},
            f"tensor {WEIGHT!r}: it has to be there once, whole or in parts",
        ),
        (
            "fedkd",
            {WEIGHT: None, f"{WEIGHT}.left": torch.ones(16, 3), f"{WEIGHT}.right": torch.ones(2, 36)},
            f"tensor {WEIGHT!r}: its parts do not fit",
        ),
        ("fedkd", {f"{WEIGHT}.left": torch.ones(16, 12)}, f"tensor '{WEIGHT}.left': its shape is 16 × 12, not 16 × up"),
        ("fedavg", {"stranger": torch.ones(1)}, "tensor 'stranger': this algorithm exchanges no such tensor"),
    ],
)  # fmt: skip
def test_a_bad_upload_is_refused_and_named_while_the_round_goes_on(
    quarters: FederatedData, name: str, change: dict[str, Tensor | None], words: str
) -> None:
    played = simulation(quarters, name)
    before = {key: value.clone() for key, value in played.server.state.items()}
    record = tolerant_round(played, change)
    assert record.participants == (0, 2, 3, 4)
    assert list(record.refused) == [1]
    assert record.refused[1].startswith(f"frame of client 1, round 1, refused: {words}")
    after = played.server.state
    assert before.keys() != after.keys() or any(not torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("name", EXCHANGING)
def test_an_upload_of_nothing_takes_no_part_in_the_mean(quarters: FederatedData, name: str) -> None:
    silent, refused = simulation(quarters, name), simulation(quarters, name)
    answer = decode(first_answer(simulation(quarters, name)), silent.server.expectation.digest)
    record = tolerant_round(silent, dict.fromkeys(answer.message.tensors))
    assert not record.refused
    assert list(tolerant_round(refused, {"stranger": torch.ones(1)}).refused) == [1]
    assert same_tensors(silent.server.state, refused.server.state)


def answers(played: InProcess) -> Mapping[int, bytes]:
    """Return what client 1 says in round 1, encoded when it is read."""
    clients = played.loopback.clients
    header = Header(Kind.TRAIN, 1, 1, clients.expectation.digest)
    return clients.handle({1: encode(header, Message(tensors=played.server.state))})


def first_answer(played: InProcess) -> bytes:
    return answers(played)[1]


@pytest.mark.parametrize("name", EXCHANGING)
def test_an_answer_that_is_read_late_has_the_weights_as_they_were(quarters: FederatedData, name: str) -> None:
    played = simulation(quarters, name)
    late, client = answers(played), played.clients[1]
    for tensor in [*client.model.state_dict().values(), *client.modules.state_dict().values()]:
        tensor.zero_()
    assert late[1] == first_answer(simulation(quarters, name))


@pytest.mark.parametrize("name", EXCHANGING)
def test_training_that_diverges_ends_in_a_sentence(quarters: FederatedData, name: str) -> None:
    sentence = r"left out all clients: training diverged at client 0 in round 1 \(.*\); lower train\.learning_rate"
    with pytest.raises(LeftOutError, match=sentence):
        list(simulation(quarters, name, learning_rate=1e20).rounds())


def test_the_largest_frame_of_a_factorised_network_is_finite_and_holds_what_is_sent(quarters: FederatedData) -> None:
    played = simulation(quarters, "fedkd")
    limit = played.loopback.clients.expectation.largest_frame
    assert (
        len(first_answer(played)) <= limit < 12 * sum(value.numel() for value in played.server.state.values()) + 10_000
    )


@pytest.mark.parametrize("name", EXCHANGING)
def test_what_all_clients_are_sent_is_encoded_once(
    quarters: FederatedData, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = []

    def counted(message: Message, coding: Coding) -> Body:
        encoded.append(message)
        return encode_body(message, coding)

    monkeypatch.setattr("tinyproto.engine.server.encode_body", counted)
    list(simulation(quarters, name).rounds())
    assert len(encoded) == 4  # the hello, two rounds and the closing exchange
