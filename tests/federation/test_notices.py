"""A client whose answer the coordinator refused is told why, in its own journal, before the federation ends."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict

import support_federation
from support_flower import NODE, Change, Federation, frame_of, framed, in_round, kind_of, small_federation
from support_members import small_values
from tinyproto.core.prototypes import Message as Content
from tinyproto.core.prototypes import Prototypes
from tinyproto.errors import WireError
from tinyproto.federation.flower import RECORD
from tinyproto.federation.refusals import ADVICE, LONGEST_REASON, notice, printable, read_notice
from tinyproto.wire.codec import encode
from tinyproto.wire.frame import Kind, unpack
from tinyproto.wire.validate import Expectation, open_frame
from tinyproto.wire.validate import diverged as diverged_at

pytestmark = pytest.mark.flower

BAD = 1
HUGE = """\
from torch import nn


class Huge(nn.Module):
    def __init__(self, proto_dim):
        super().__init__()
        self.layer = nn.LazyLinear(proto_dim)

    def forward(self, images):
        return self.layer(images.flatten(1)) * 1e20


def huge(proto_dim):
    return Huge(proto_dim)
"""


def client_events(federation: Federation, client: int = BAD) -> list[dict[str, Any]]:
    """Return the events in a client's journal."""
    lines = (federation.grid.folders[NODE + client] / "progress.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def refusals(federation: Federation, client: int = BAD) -> list[dict[str, Any]]:
    return [event for event in client_events(federation, client) if event["event"] == "refused"]


def notices(federation: Federation) -> list[int]:
    """The nodes that were sent a notice."""
    return [one.metadata.dst_node_id for one in federation.grid.asked if kind_of(one) == "notice"]


def diverged(expected: Expectation) -> Change:
    """The client's prototypes have a norm that no training gives."""

    def change(asked: Message, reply: Message) -> Iterable[tuple[float, Message]]:
        decoded = open_frame(frame_of(reply), expected, BAD, None, (Kind.UPDATE,))
        rows = decoded.message.rows
        assert rows is not None
        message = Content(Prototypes(1e16 * rows.present[:, None] * torch.ones_like(rows.values), rows.present))
        frame = encode(decoded.header, message, expected.coding(Kind.UPDATE, torch.Generator))
        return [(0.0, framed(asked, {"frame": frame}))]

    return change


def in_training(change: Change) -> Change:
    def changed(asked: Message, reply: Message) -> Iterable[tuple[float, Message]]:
        return change(asked, reply) if kind_of(asked) is Kind.TRAIN else [(0.0, reply)]

    return changed


def play(federation: Federation, change: Change | None = None, number: int | None = None) -> None:
    """Run all rounds; change what the bad client sends in one round, or in all."""
    coordinator = federation.coordinator()
    change = change or diverged(coordinator.setup.expectation)
    federation.grid.changes[NODE + BAD] = in_training(change) if number is None else in_round(number, change)
    coordinator.run()


@pytest.mark.parametrize("number", [1, 2])
def test_a_refused_client_is_told_before_its_next_frame_also_after_the_last_round(number: int, tmp_path: Path) -> None:
    federation = small_federation(tmp_path)
    play(federation, number=number)
    (told,) = refusals(federation)
    assert (told["code"], told["round"]) == ("diverged", number)
    assert told["reason"].startswith("the coordinator refused this client's update: training diverged at client 1 in ")
    assert "lower algorithms.proto_weight, then " in told["reason"]
    order = [(event["event"], event.get("round")) for event in client_events(federation)]
    assert order.index(("refused", number)) == order.index(("answered", number)) + 1
    assert order[-1][0] == "finished"
    assert refusals(federation, 0) == refusals(federation, 2) == []
    assert notices(federation) == [NODE + BAD]


def test_a_client_that_is_refused_in_each_round_is_told_once_in_each(tmp_path: Path) -> None:
    federation = small_federation(tmp_path, small_values(rounds=3))
    play(federation)
    assert [told["round"] for told in refusals(federation)] == [1, 2, 3]


def test_a_client_that_has_no_part_in_the_next_round_is_told_as_well(tmp_path: Path) -> None:
    values = small_values(clients=4, rounds=6)
    values["train"]["participation"] = 0.5
    federation = small_federation(tmp_path, values)
    play(federation)
    rounds = [record["round"] for record in federation.records() if str(BAD) in record["refused"]]
    assert rounds
    assert [told["round"] for told in refusals(federation)] == rounds
    assert set(notices(federation)) == {NODE + BAD}


def test_a_reply_that_is_no_frame_is_told_with_what_to_do(tmp_path: Path) -> None:
    federation = small_federation(tmp_path)
    play(federation, lambda asked, reply: [(0.0, framed(asked, {"text": "no frame"}))], number=1)
    (told,) = refusals(federation)
    assert told["reason"] == "the coordinator refused this client's update: its reply has no frame"
    assert told["code"] == "malformed"


def test_what_a_client_refused_itself_is_not_told_back(tmp_path: Path) -> None:
    federation = small_federation(tmp_path)
    play(federation, lambda asked, reply: [(0.0, framed(asked, {"error": "no-space"}))], number=1)
    assert federation.records()[0]["refused"]
    assert refusals(federation) == []
    assert notices(federation) == []


def test_a_client_whose_hello_is_refused_is_told_at_once(tmp_path: Path) -> None:
    federation = small_federation(tmp_path)
    coordinator = federation.coordinator()
    expected = coordinator.setup.expectation

    def absurd(asked: Message, reply: Message) -> Iterable[tuple[float, Message]]:
        if kind_of(asked) is not Kind.HELLO:
            return [(0.0, reply)]
        header, _ = unpack(frame_of(reply), expected.digest)
        sizes = {"train_samples": 9.0, "counted_samples": 1.0, "counted_classes": 1.0}
        frame = encode(header, Content(metrics=sizes), expected.coding(Kind.HELLO, torch.Generator))
        return [(0.0, framed(asked, {"frame": frame}))]

    federation.grid.changes[NODE + BAD] = absurd
    coordinator.run()
    told = refusals(federation)[0]
    assert told["reason"].startswith("the coordinator refused this client's hello: 9 training samples, 1 counted")
    assert "round" not in told
    kinds = [kind_of(one) for one in federation.grid.asked]
    assert kinds.index("notice") < kinds.index(Kind.TRAIN)


def test_what_a_coordinator_writes_is_cleaned_before_it_is_kept(tmp_path: Path) -> None:
    federation = small_federation(tmp_path)
    said = {"code": "\x1b[2J", "kind": "\x07", "round": "one", "words": "a\x1b[31m\n\u202eb\r\x00" + 9999 * "c"}
    message = Message(RecordDict({RECORD: ConfigRecord(said)}), dst_node_id=NODE + BAD, message_type="query")
    federation.grid.push_messages([message])
    told = refusals(federation)[0]
    assert told["reason"].startswith("the coordinator refused this client's answer: a [31m b ccc")
    assert told["reason"].isprintable()
    assert len(told["reason"]) < LONGEST_REASON + 60
    assert told["code"] == "other"
    assert "round" not in told


def test_a_reason_is_one_printable_line_of_limited_length() -> None:
    assert printable("a\tb\u2028c\u200fd") == "a b c d"
    assert printable("é × 3 → “x”") == "é × 3 → “x”"
    assert (len(printable(1000 * "x")), printable(1000 * "x")[-1]) == (LONGEST_REASON, "…")
    assert printable(None) == "None"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (diverged_at(3, 8, "norm 1.04e+16 of row 1", ["train.learning_rate"]), "diverged"),
        (WireError("frame of client 3, round 8, refused: rows: the scale of row 1 is subnormal"), "malformed"),
        (WireError("frame of client 3, round 8, refused: tensor 'norm1.weight': its shape is 2, not 3"), "malformed"),
        (WireError("its reply has no frame"), "malformed"),
    ],
)
def test_a_notice_says_what_can_be_done(error: WireError, code: str) -> None:
    told = notice(Kind.TRAIN, 8, error)
    assert (told["code"], told["kind"], told["round"]) == (code, "update", 8)
    assert code == "diverged" or "client 3" not in str(told["words"])
    assert read_notice(told)["code"] in ADVICE


@pytest.fixture
def real(tmp_path: Path) -> Iterator[support_federation.Federation]:
    made = support_federation.Federation(tmp_path, rounds=1, quorum=0.3, deadline=60)
    yield made
    made.clean_up()


@pytest.mark.flower_slow
def test_on_its_own_console_a_client_reads_why_its_update_was_refused(real: support_federation.Federation) -> None:
    (real.folder / "nets.py").write_text(HUGE)
    serve = real.serve()
    clients = [real.join(0), real.join(1, "--model", "nets:huge"), real.join(2)]
    assert serve.wait(300) == 0, real.tail()
    assert [client.wait(90) for client in clients] == [0, 0, 0], real.tail()
    (line,) = [line for line in clients[1].said.splitlines() if "refused this client's update" in line]
    assert line.startswith("client 1: round 1: the coordinator refused this client's update: training diverged ")
    assert line.endswith(f". What to do: {ADVICE['diverged']}")
    assert "coordinator refused" not in clients[0].said + clients[2].said
