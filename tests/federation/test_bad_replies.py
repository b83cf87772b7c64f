"""Bad replies: none changes the global state, the journal names client and reason, and the rounds continue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

import httpx
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from support import same_tensors
from support_flower import NODE, InProcessGrid, doubled, frame_of, framed, in_round, kind_of, silent, small_federation
from support_members import CLASSES, small_values
from tinyproto.core.prototypes import Prototypes
from tinyproto.core.task import State
from tinyproto.federation.coordinator import Coordinator
from tinyproto.federation.flower import RECORD
from tinyproto.federation.refusals import WORDS
from tinyproto.wire.codec import encode
from tinyproto.wire.frame import HEADER_BYTES, Body, Header, Kind, pack, peek, unpack
from tinyproto.wire.validate import Expectation, open_frame

pytestmark = pytest.mark.flower

BAD, ROUND = 1, 2
Spoil = Callable[[bytes, Expectation], Any]


def expectation_of(coordinator: Coordinator) -> Expectation:
    return coordinator.setup.expectation


def with_values(frame: bytes, expected: Expectation, value: float) -> bytes:
    """A frame that is right in every respect but for one value."""
    decoded = open_frame(frame, expected, BAD, ROUND, (Kind.UPDATE,))
    rows = decoded.message.rows
    assert rows is not None
    values = rows.values.clone()
    values[rows.present.nonzero()[0, 0], 0] = value
    message = type(decoded.message)(Prototypes(values, rows.present), {}, decoded.message.metrics)
    return encode(decoded.header, message, expected.coding(Kind.UPDATE, torch.Generator))


def with_header(frame: bytes, expected: Expectation, **changes: Any) -> bytes:
    header, body = unpack(frame, expected.digest)
    return pack(header._replace(**changes), bytes(body))


SPOILT: Mapping[str, tuple[Spoil, str]] = {
    "nothing": (lambda frame, expected: b"", "length"),
    "garbage": (lambda frame, expected: np.random.default_rng(0).bytes(len(frame)), "version"),
    "the half of it": (lambda frame, expected: frame[: len(frame) // 2], "checksum"),
    "a flipped bit": (lambda frame, expected: frame[:-1] + bytes([frame[-1] ^ 1]), "checksum"),
    "NaN": (lambda frame, expected: with_values(frame, expected, float("nan")), "NaN"),
    "infinity": (lambda frame, expected: with_values(frame, expected, float("inf")), "infinity"),
    "an absurd norm": (
        lambda frame, expected: with_values(frame, expected, 1e12),
        "training diverged at client 1 in round 2 (norm ",
    ),
    "a stale round": (lambda frame, expected: with_header(frame, expected, round_number=1), "round"),
    "another mask": (lambda frame, expected: with_header(frame, expected, digest=b"another federatn"), "checksum"),
    "another client": (lambda frame, expected: with_header(frame, expected, client=0), "client"),
    "an evaluation": (lambda frame, expected: with_header(frame, expected, kind=Kind.EVALUATION), "kind"),
    "100 MB": (lambda frame, expected: bytes(100_000_000), "length"),
    "100 MB with a good header": (
        lambda frame, expected: pack(Header(Kind.UPDATE, ROUND, BAD, expected.digest), bytes(100_000_000)),
        "length",
    ),
    "text": (lambda frame, expected: "frame", "no frame"),
    "too many correct": (
        lambda frame, expected: encode(
            unpack(frame, expected.digest)[0],
            open_frame(frame, expected, BAD, ROUND, (Kind.UPDATE,)).message.with_metrics({"correct_head": 1e6}),
            expected.coding(Kind.UPDATE, torch.Generator),
        ),
        "test samples correct",
    ),
}


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> State:
    """The state of a federation in which that client was not heard in that round."""
    federation = small_federation(tmp_path_factory.mktemp("without"))
    federation.grid.changes[NODE + BAD] = in_round(ROUND, silent)
    return federation.play().server.state


def play_with(folder: Path, spoil: Callable[[Message, Message, Expectation], Message], without: State) -> str:
    """Both rounds, one client's second reply spoilt; the reason that the record has for it."""
    federation = small_federation(folder)
    coordinator = federation.coordinator()
    expected = expectation_of(coordinator)
    federation.grid.changes[NODE + BAD] = in_round(ROUND, lambda asked, reply: [(0.0, spoil(asked, reply, expected))])
    coordinator.run()
    assert same_tensors(coordinator.server.state, without)
    first, second, closing = federation.records()
    assert first["participants"] == [0, 1, 2]
    assert second["participants"] == [0, 2]
    assert closing["clients"]["id"] == [0, 1, 2]
    reasons: dict[str, str] = second["refused"]
    assert list(reasons) == [str(BAD)]
    told = [event for event in federation.events("refused") if event.get("round") == ROUND]
    own = reasons[str(BAD)].removeprefix(f"client {BAD}, round {ROUND}: ")  # which the event says otherwise
    assert [(event["client"], event["reason"]) for event in told] == [(BAD, own)]
    return reasons[str(BAD)]


@pytest.mark.parametrize("what", SPOILT)
def test_a_frame_that_is_not_good_is_left_out_and_named(what: str, tmp_path: Path, without: State) -> None:
    make, word = SPOILT[what]

    def spoil(asked: Message, reply: Message, expected: Expectation) -> Message:
        return framed(asked, {"frame": make(frame_of(reply), expected)})

    reason = play_with(tmp_path, spoil, without)
    assert f"client {BAD}" in reason
    assert word in reason


def no_record(asked: Message, reply: Message, expected: Expectation) -> Message:
    return Message(RecordDict(), reply_to=asked)


def arrays(asked: Message, reply: Message, expected: Expectation) -> Message:
    return Message(RecordDict({RECORD: ArrayRecord({"frame": Array(np.zeros(3))})}), reply_to=asked)


def unheard_of_code(asked: Message, reply: Message, expected: Expectation) -> Message:
    return framed(asked, {"error": "<script>alert(1)</script>"})


def code_of_another_type(asked: Message, reply: Message, expected: Expectation) -> Message:
    return framed(asked, {"error": [1, 2]})


def crash(asked: Message, reply: Message, expected: Expectation) -> Message:
    return Message(Error(8, "secret/path.py: Traceback …"), reply_to=asked)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (no_record, "its reply has no frame"),
        (arrays, "its reply has no frame"),
        (unheard_of_code, WORDS["failed"]),
        (code_of_another_type, WORDS["failed"]),
        (crash, "its app crashed"),
    ],
)
def test_a_message_that_is_not_ours_is_left_out_in_our_own_words(
    spoil: Callable[[Message, Message, Expectation], Message], words: str, tmp_path: Path, without: State
) -> None:
    assert play_with(tmp_path, spoil, without) == f"client {BAD}, round {ROUND}: {words}"


def test_a_double_reply_counts_once(tmp_path: Path) -> None:
    undisturbed, disturbed = small_federation(tmp_path / "one"), small_federation(tmp_path / "two")
    disturbed.grid.changes[NODE + BAD] = in_round(1, doubled)
    one, two = undisturbed.play(), disturbed.play()
    assert same_tensors(one.server.state, two.server.state)
    assert undisturbed.records() == disturbed.records()
    assert two.channel.ignored == {"double": 1}
    assert [event["reason"] for event in disturbed.events("ignored")] == ["a double reply"]


def test_the_size_is_looked_at_before_anything_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the checksum of a frame that is too long is computed."""
    federation = small_federation(tmp_path)
    coordinator = federation.coordinator()
    limit = expectation_of(coordinator).largest_frame
    seen: list[int] = []

    def noted(frame: bytes, digest: bytes, known: Body | None = None) -> tuple[Header, memoryview]:
        seen.append(len(frame))
        return unpack(frame, digest, known)

    monkeypatch.setattr("tinyproto.wire.validate.unpack", noted)
    federation.grid.changes[NODE + BAD] = in_round(
        ROUND, lambda asked, reply: [(0.0, framed(asked, {"frame": bytes(limit + 1)}))]
    )
    coordinator.run()
    assert seen
    assert max(seen) <= limit
    assert HEADER_BYTES < limit < 100_000


def decode_error(identity: str) -> list[Any]:
    return [NodeInfo.FromString(b"garbage")]


def key_error(identity: str) -> list[Any]:
    raise KeyError("CustomDataClass")


def no_message(identity: str) -> list[Any]:
    return [ConfigRecord({"frame": b"x"})]


def reply_to_another(identity: str) -> list[Any]:
    other = Message(RecordDict(), dst_node_id=NODE, message_type="query")
    other.metadata.__dict__["_message_id"] = "other"
    return [Message(RecordDict(), reply_to=other)]


@pytest.mark.parametrize("comes", [decode_error, key_error, no_message, reply_to_another])
def test_what_flower_cannot_read_is_the_senders_refusal_and_takes_nobody_along(
    comes: Callable[[str], list[Any]], tmp_path: Path, without: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = small_federation(tmp_path)
    pull = InProcessGrid.pull_messages

    def pull_messages(grid: InProcessGrid, message_ids: Iterable[str]) -> list[Any]:
        """Hand out each reply once, readable or not, as a SuperLink does."""
        replies = pull(grid, message_ids)
        for reply in replies:
            asked = next(one for one in grid.asked if one.metadata.message_id == reply.metadata.reply_to_message_id)
            if asked.metadata.dst_node_id != NODE + BAD or kind_of(asked) is not Kind.TRAIN:
                continue
            if peek(frame_of(asked)).round_number == ROUND:
                return [*(one for one in replies if one is not reply), *comes(asked.metadata.message_id)]
        return replies

    monkeypatch.setattr(InProcessGrid, "pull_messages", pull_messages)
    coordinator = federation.play()
    assert same_tensors(coordinator.server.state, without)
    reason = "its reply cannot be read"
    assert federation.records()[ROUND - 1]["refused"] == {str(BAD): f"client {BAD}, round {ROUND}: {reason}"}
    told = [event for event in federation.events("refused") if event.get("round") == ROUND]
    assert [(event["client"], event["reason"]) for event in told] == [(BAD, reason)]


def test_a_hello_that_flower_cannot_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = small_federation(tmp_path)
    pull = InProcessGrid.pull_messages

    def pull_messages(grid: InProcessGrid, message_ids: Iterable[str]) -> list[Message]:
        for reply in (replies := pull(grid, message_ids)):
            asked = next(one for one in grid.asked if one.metadata.message_id == reply.metadata.reply_to_message_id)
            if asked.metadata.dst_node_id == NODE + BAD:
                NodeInfo.FromString(b"garbage")
        return replies

    monkeypatch.setattr(InProcessGrid, "pull_messages", pull_messages)
    federation.play()
    assert BAD not in federation.records()[0]["participants"]
    assert federation.events("refused")[0]["reason"] == "its reply cannot be read"


def test_a_way_that_is_blocked_for_a_moment_is_tried_again(tmp_path: Path) -> None:
    federation = small_federation(tmp_path)
    blocked: list[Exception] = [httpx.ConnectError("refused"), TimeoutError()]

    def before_pull() -> None:
        if (federation.run_folder / "rounds.jsonl").exists() and blocked:
            raise blocked.pop()

    federation.grid.before_pull = before_pull
    federation.play()
    assert not blocked
    assert [record["refused"] for record in federation.records()] == [{}] * len(federation.records())


def test_the_guard_of_a_federation_sets_an_inflated_upload_aside_and_says_so(tmp_path: Path) -> None:
    federation = small_federation(tmp_path, {**small_values("fedproto", clients=4), "models": ["small_cnn_a"]})
    coordinator = federation.coordinator()
    expected = expectation_of(coordinator)

    def inflated(asked: Message, reply: Message) -> Iterable[tuple[float, Message]]:
        decoded = open_frame(frame_of(reply), expected, BAD, ROUND, (Kind.UPDATE,))
        assert decoded.message.rows is not None
        rows = decoded.message.rows._replace(values=1e3 * decoded.message.rows.values)
        frame = encode(decoded.header, replace(decoded.message, rows=rows))
        return [(0.0, framed(asked, {"frame": frame}))]

    federation.grid.changes[NODE + BAD] = in_round(ROUND, inflated)
    coordinator.run()
    aside = federation.records()[ROUND - 1]["distrusted"]
    assert aside[str(BAD)] == CLASSES
    assert federation.events("concluded")[ROUND - 1]["distrusted"] == aside
