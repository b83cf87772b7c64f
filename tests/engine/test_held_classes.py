"""Downloads of the classes that a client holds: the same training for fewer bytes, evaluation by all classes apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from support import NUM_CLASSES, PROTO_DIM, InProcess, SimulationSettings, same_tensors, tiny_net
from support_rounds import build
from tinyproto.algorithms.base import Algorithm, Round
from tinyproto.data.dataset import FederatedData
from tinyproto.engine.client import LocalTraining
from tinyproto.engine.measure import Meter
from tinyproto.engine.round import RoundRecord, play_round
from tinyproto.engine.server import Reply, RoundPlan
from tinyproto.storage.checkpoint import Position, load_newest, restore_server, save
from tinyproto.wire.codec import decode
from tinyproto.wire.frame import Kind
from tinyproto.wire.values import WireSettings

SETTINGS = SimulationSettings(LocalTraining(rounds=3, batch_size=8), PROTO_DIM)
HELD = WireSettings(download="held")
BY_ROWS = ("fedproto", "fedtgp", "tinyproto_fp", "tinyproto_ft", "tinyproto_sphere", "protonorm", "fedorgp")


def play(data: FederatedData, algorithm: Algorithm, **changes: object) -> tuple[InProcess, list[RoundRecord]]:
    settings: SimulationSettings = replace(SETTINGS, **changes)  # type: ignore[arg-type]
    simulation = InProcess(data, [tiny_net], algorithm, settings, 0)
    return simulation, [played.record for played in simulation.rounds()]


@pytest.mark.parametrize("name", [*BY_ROWS, "feddistill", "lg_fedavg", "fedgh"])
def test_training_on_the_classes_held_is_the_same_training(quarters: FederatedData, name: str) -> None:
    everything, due = play(quarters, build(name))
    held, found = play(quarters, build(name), wire=HELD)
    assert same_tensors(held.server.state, everything.server.state)
    for one, other in zip(found, due, strict=True):
        assert (one.accuracy, one.client_mean, one.loss) == (other.accuracy, other.client_mean, other.loss)
        assert one.participants == other.participants


@pytest.mark.parametrize("name", [*BY_ROWS, "feddistill"])
def test_a_download_has_the_rows_of_the_last_upload_and_evaluation_is_counted_apart(
    quarters: FederatedData, name: str
) -> None:
    _, records = play(quarters, build(name), wire=HELD)
    for before, record in pairwise(records[:-1]):
        training = record.traffic["training"]
        assert training["down"].parameters == before.traffic["training"]["up"].parameters
        if name == "feddistill":  # whose clients classify by their heads
            assert set(record.traffic) == {"training"}
        else:
            width = PROTO_DIM if not name.startswith("tiny") else 3
            assert record.traffic["evaluation"]["down"].parameters == 5 * NUM_CLASSES * width


def classes_of(data: FederatedData, client: int) -> set[int]:
    return {class_ for class_, count in enumerate(data.train_counts[client].tolist()) if count}


def test_a_client_that_never_uploaded_is_sent_all_classes(quarters: FederatedData) -> None:
    simulation = InProcess(quarters, [tiny_net], build("fedproto"), replace(SETTINGS, wire=HELD), 0)
    meter = Meter()
    simulation.server.greet(simulation.host, range(5), meter)
    channel = Listening(simulation)
    for number, participants in ((1, (0, 1)), (2, (0, 4))):
        play_round(simulation.server, channel, RoundPlan(Round(number, 3), participants, frozenset()), Meter())
    own = classes_of(quarters, 0)
    known = own | classes_of(quarters, 1)
    assert channel.rows[2, Kind.TRAIN, 0] == own
    assert channel.rows[2, Kind.TRAIN, 4] == known


class Listening:
    """A channel that notes which classes every frame down has rows of; and that may spoil some answers."""

    def __init__(self, simulation: InProcess, spoiled: Iterable[tuple[Kind, int]] = ()) -> None:
        self.loopback = simulation.loopback
        self.digest = simulation.server.expectation.digest
        self.spoiled = set(spoiled)
        self.rows: dict[tuple[int, Kind, int], set[int]] = {}

    def exchange(self, round_number: int, frames: Mapping[int, bytes]) -> Iterable[Reply]:
        asked = {}
        for client, frame in frames.items():
            decoded = decode(frame, self.digest)
            rows = decoded.message.rows
            asked[client] = decoded.header.kind
            present = set() if rows is None else set(rows.present.nonzero()[:, 0].tolist())
            self.rows[round_number, decoded.header.kind, client] = present
        for client, frame, _ in self.loopback.exchange(round_number, frames):
            yield Reply(client, frame[:-1] if (asked[client], client) in self.spoiled else frame)


def test_who_fails_an_evaluation_is_not_trained_and_who_fails_training_was_still_evaluated(
    quarters: FederatedData,
) -> None:
    simulation = InProcess(quarters, [tiny_net], build("fedproto"), replace(SETTINGS, wire=HELD), 0)
    simulation.server.greet(simulation.host, range(5), Meter())
    channel = Listening(simulation, [(Kind.EVALUATE, 1), (Kind.TRAIN, 3)])
    plan = RoundPlan(Round(1, 3), range(5), frozenset(range(5)))
    record = play_round(simulation.server, channel, plan, Meter())
    assert record.participants == (0, 2, 4)
    assert sorted(record.refused) == [1, 3]
    assert (1, Kind.TRAIN, 1) not in channel.rows
    assert sorted(record.clients) == [0, 2, 3, 4]
    assert record.clients[3].test_samples
    assert sorted(simulation.server.held) == [0, 2, 4]


def test_a_checkpoint_remembers_who_holds_what(quarters: FederatedData, tmp_path: Path) -> None:
    settings, clients = replace(SETTINGS, wire=HELD, participation=0.6), tmp_path / "clients"

    def simulation() -> InProcess:
        return InProcess(quarters, [tiny_net], build("fedproto"), settings, 0, folder=clients)

    due = [played.record for played in simulation().rounds()]
    first = simulation()
    rounds = first.rounds()
    for _ in range(2):
        next(rounds)
    save(tmp_path / "checkpoint", Position.beginning({}), first.server, first.host.save())
    checkpoint = load_newest(tmp_path / "checkpoint", clients)
    assert checkpoint is not None
    again = simulation()
    restore_server(again.server, checkpoint)
    again.host.restore(checkpoint.clients)
    assert sorted(again.server.held) == sorted(first.server.held) != []
    assert all(torch.equal(again.server.held[client], classes) for client, classes in first.server.held.items())
    assert [played.record for played in again.rounds(first=3)] == due[2:]
