"""A round whose uploads are folded in as they arrive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.aggregate import Intake
from support import NUM_CLASSES, PROTO_DIM, STREAMS, InProcess, random_prototypes
from support_rounds import build, simulation
from tinyproto.algorithms import ALGORITHMS
from tinyproto.algorithms.base import Algorithm, ClientInfo, Round, ServerSide, Update, expected_frames
from tinyproto.algorithms.fedproto import StreamingServer
from tinyproto.algorithms.streaming import Gathered, OrderedUploads, StreamingSide
from tinyproto.core.prototypes import Message, PackedRows, Prototypes
from tinyproto.data.dataset import FederatedData
from tinyproto.engine.measure import Meter
from tinyproto.engine.round import play_round
from tinyproto.engine.server import Reply, RoundPlan
from tinyproto.engine.training import EagerTrainer
from tinyproto.errors import WireError
from tinyproto.wire.codec import encode
from tinyproto.wire.frame import Header, Kind

STREAMED = ("fedproto", "tinyproto_fp", "tinyproto_sphere", "protonorm", "fedsa", "feddistill")


class AllAtOnce:
    """A server side that cannot gather: it has `aggregate` alone, and folds in whole uploads."""

    def __init__(self, side: ServerSide) -> None:
        self.init, self.broadcast, self.aggregate = side.init, side.broadcast, side.aggregate


def all_at_once(algorithm: Algorithm) -> Algorithm:
    """The same method with a server that cannot gather."""
    return replace(algorithm, server=AllAtOnce(algorithm.server))


def test_the_methods_that_need_sums_only_are_the_ones_that_gather() -> None:
    assert {name for name in ALGORITHMS if isinstance(build(name).server, StreamingSide)} == set(STREAMED)


@pytest.mark.parametrize("name", STREAMED)
def test_gathering_gives_the_records_and_the_state_of_all_at_once_to_the_bit(
    quarters: FederatedData, name: str
) -> None:
    streamed, plain = simulation(quarters, build(name)), simulation(quarters, all_at_once(build(name)))
    assert [played.record for played in streamed.rounds()] == [played.record for played in plain.rounds()]
    for key, value in plain.server.state.items():
        assert streamed.server.state[key].numpy().tobytes() == value.numpy().tobytes()


@pytest.mark.parametrize(
    "changes",
    [{}, {"aggregation": "mean"}, {"aggregation": "sum"}, {"scaling": "none"}],
    ids=lambda changes: str(changes),
)
def test_every_rule_of_tinyproto_concludes_as_it_aggregates(changes: dict[str, Any]) -> None:
    side = build("tinyproto_fp", **changes).server
    assert isinstance(side, StreamingSide)
    gathered, updates = side.gather(), []
    for client, held in enumerate([[0, 1], [1], [1, 3]]):
        rows, info = random_prototypes(held, seed=client, width=3), ClientInfo(client, 7, 5 + client, len(held))
        gathered.add(info, packed(rows))
        updates.append(Update(info, Message(rows)))
    state = side.init(STREAMS)
    due = side.aggregate(state, updates, EagerTrainer(), Round(1, 1), STREAMS)
    assert all(torch.equal(side.conclude(state, gathered)[name], due[name]) for name in due)
    assert side.conclude(state, side.gather()) is state


def packed(rows: Prototypes) -> PackedRows:
    classes = rows.present.numpy().nonzero()[0]
    return PackedRows(rows.num_classes, classes, rows.values.numpy()[classes])


class Watching:
    """A channel that notes, before each answer, how many uploads the server has folded in; answers come in `order`."""

    def __init__(self, played: InProcess, order: Iterable[int]) -> None:
        self.loopback, self.order = played.loopback, order
        self.gathered: Gathered | None = None
        self.seen: list[int] = []

    def watch(self, side: StreamingServer, monkeypatch: pytest.MonkeyPatch) -> None:
        gather = side.gather

        def gather_and_tell() -> Gathered:
            self.gathered = gather()
            return self.gathered

        monkeypatch.setattr(side, "gather", gather_and_tell)

    def exchange(self, round_number: int, frames: Mapping[int, bytes]) -> Iterable[Reply]:
        replies = {reply.client: reply for reply in self.loopback.exchange(round_number, frames)}
        for client in self.order:
            if self.gathered is not None:
                self.seen.append(self.gathered.uploads)
            yield replies[client]


@pytest.mark.parametrize(
    ("order", "seen"),
    [([0, 1, 2, 3, 4], [0, 1, 2, 3, 4]), ([1, 0, 4, 2, 3], [0, 0, 2, 2, 3]), ([4, 3, 2, 1, 0], [0] * 5)],
)
def test_uploads_are_folded_one_at_a_time_in_order_of_client_id_and_who_is_early_waits(
    quarters: FederatedData, monkeypatch: pytest.MonkeyPatch, order: list[int], seen: list[int]
) -> None:
    played, straight = simulation(quarters, build("fedproto")), simulation(quarters, build("fedproto"))
    channel, meter = Watching(played, order), Meter()
    played.server.greet(channel, range(5), meter)
    assert isinstance(played.server.side, StreamingServer)
    channel.watch(played.server.side, monkeypatch)
    plan = RoundPlan(Round(1, 2), participants=range(5), evaluated=frozenset())
    play_round(played.server, channel, plan, meter)
    assert channel.seen == seen
    next(iter(straight.rounds()))
    assert torch.equal(played.server.state["values"], straight.server.state["values"])


def test_the_messages_of_a_gathered_round_hold_no_rows(quarters: FederatedData) -> None:
    played, meter = simulation(quarters, build("fedproto")), Meter()
    played.server.greet(played.host, range(5), meter)
    answers = played.server.ask(played.host, RoundPlan(Round(1, 2), range(3), frozenset(range(5))), meter)
    assert answers.gathered is not None
    assert answers.gathered.uploads == 3
    assert all(message.rows is None for message in answers.messages.values())
    assert "cross_entropy" in answers.messages[0].metrics
    assert meter.total("training", "up").parameters == PROTO_DIM * int((quarters.train_counts[:3] > 0).sum())


def test_who_waits_for_someone_that_never_comes_is_folded_in_at_the_end() -> None:
    ordered = OrderedUploads([ClientInfo(client, 1, 1, 1) for client in (7, 3, 5)], Gathered(NUM_CLASSES, 2))
    rows = packed(random_prototypes([0], width=2))
    ordered.add(7, rows)
    ordered.add(5, None)
    assert ordered.gathered.uploads == 0
    assert ordered.close().uploads == 1
    assert ordered.close().uploads == 1


EXPECTED = expected_frames(build("tinyproto_fp"), NUM_CLASSES, PROTO_DIM)


def frame(client: int, rows: Prototypes | None, **metrics: float) -> bytes:
    return encode(Header(Kind.UPDATE, 2, client, EXPECTED.digest), Message(rows, metrics=metrics))


def infos(count: int) -> list[ClientInfo]:
    return [ClientInfo(client, 4, 4 + client, 2) for client in range(count)]


@pytest.mark.parametrize("edges", [1, 2, 3, 7, 12])
def test_edge_aggregators_merge_into_what_one_server_would_have_gathered(edges: int) -> None:
    side = build("tinyproto_fp").server
    assert isinstance(side, StreamingSide)
    one = Intake(EXPECTED, 2, side.gather())
    several = [Intake(EXPECTED, 2, side.gather()) for _ in range(edges)]
    uploads = [random_prototypes([client % NUM_CLASSES, 1], seed=client, width=3) for client in range(10)]
    for info, rows in zip(infos(10), uploads, strict=True):
        assert one.take(info, frame(info.id, rows, cross_entropy=1.5)) == {"cross_entropy": 1.5}
        several[info.id % edges].take(info, frame(info.id, rows))
    merged, *others = (edge.gathered for edge in several)
    for other in others:
        merged.merge(other)
    assert (merged.uploads, merged.counted_samples, merged.counted_classes) == (10, 85, 20)
    assert torch.equal(merged.sums.holders, one.gathered.sums.holders)
    magnitudes = torch.stack([rows.values.double() for rows in uploads]).sum(0)
    apart = (merged.sums.sums - one.gathered.sums.sums).abs()
    assert bool((apart <= 2 * merged.sums.bound(magnitudes)).all())
    states = [side.conclude(side.init(STREAMS), gathered) for gathered in (merged, one.gathered)]
    torch.testing.assert_close(states[0]["values"], states[1]["values"], rtol=2.0**-22, atol=0)
    assert torch.equal(states[0]["present"], states[1]["present"])


def test_an_upload_without_rows_is_no_upload() -> None:
    intake = Intake(EXPECTED, 2, Gathered(NUM_CLASSES, 3))
    assert intake.take(infos(1)[0], frame(0, None, cross_entropy=2.0)) == {"cross_entropy": 2.0}
    assert intake.gathered.uploads == 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (frame(1, None), "client: the frame says client 1"),
        (frame(0, random_prototypes([0], width=3), test_samples=1.0, correct_head=2.0), "2 of 1 test samples correct"),
        (
            frame(0, random_prototypes([0], width=3)._replace(values=torch.full((NUM_CLASSES, 3), torch.nan))),
            "NaN in the prototype of class 0",
        ),
        (
            frame(0, random_prototypes([2], width=3)._replace(values=torch.full((NUM_CLASSES, 3), 1e9))),
            "of the prototype of class 2, above",
        ),
        (frame(0, random_prototypes([0], width=3))[:-1] + b"!", "checksum"),
    ],
)
def test_a_refused_upload_has_changed_nothing(wrong: bytes, words: str) -> None:
    intake = Intake(EXPECTED, 2, Gathered(NUM_CLASSES, 3))
    with pytest.raises(WireError, match=f"client 0.*{words}"):
        intake.take(infos(1)[0], wrong)
    assert not intake.gathered.sums.sums.any()
    assert not intake.gathered.sums.holders.any()
    assert intake.gathered.uploads == 0


def test_sums_of_other_shapes_do_not_merge() -> None:
    with pytest.raises(ValueError, match="sums of 4 × 3 and 4 × 2 do not merge"):
        Gathered(4, 3).merge(Gathered(4, 2))
