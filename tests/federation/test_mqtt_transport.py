"""The coordinator's end of MQTT: who is there, what waits for a reply, and what hostile clients and brokers send."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support_mqtt import FakeBroker, FakeLink
from tinyproto.errors import WireError
from tinyproto.federation.channel import UNREADABLE, Incoming, Outgoing, SocketCounts
from tinyproto.federation.mqtt.messages import (
    SESSION_SECONDS,
    Allowance,
    Happened,
    Seal,
    Topics,
    is_json,
    to_json,
    with_counts,
)
from tinyproto.federation.mqtt.transport import LONGEST_JSON, MOST_RESENT, SHARED_SECONDS, WHO_SECONDS, MqttTransport
from tinyproto.wire.frame import EVERYONE, Header, Kind, pack, peek

TOKEN, DIGEST = "0123456789abcdef" * 2, b"digest of 16 byt"
SECRETS = {client: bytes([client]) * 32 for client in range(3)}
LIFETIME = 180.0


def frame(client: int, number: int = 1, kind: Kind = Kind.TRAIN, body: bytes = b"body") -> bytes:
    return pack(Header(kind, number, client, DIGEST), body)


@dataclass
class Desk:
    """A transport for clients 0 to 2, what it told, and a clock."""

    sealed: bool = False
    now: float = 1000.0
    broker: FakeBroker = field(default_factory=FakeBroker)
    told: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.link: FakeLink = self.broker.link([])
        self.link.waiting = []  # tests say when it opens
        self.seals = {client: Seal(secret, client) for client, secret in SECRETS.items()} if self.sealed else {}
        self.transport = MqttTransport(
            self.link, TOKEN, DIGEST, dict.fromkeys(range(3), b"key"), Topics(), self.seals,
            lambda event, **facts: self.told.append((event, facts)), lambda: self.now,
        )  # fmt: skip

    def hear(self, client: int, content: bytes, context: bytes = b"") -> None:
        payload = self.seals[client].close("u", content, context) if self.sealed else content
        self.hear_raw(f"u{client}", payload)

    def hear_raw(self, topic: str, payload: bytes) -> None:
        self.transport._hear(Happened(topic, payload))

    def happen(self, **what: Any) -> None:
        self.transport._hear(Happened(**what))

    def here(self, *clients: int, connection: str = "one", **more: Any) -> None:
        for client in clients:
            self.hear(client, to_json(here=connection, nonce=f"nonce-{client}", **more))

    def ask(self, *clients: int, number: int = 1, kind: Kind = Kind.TRAIN) -> list[str | None]:
        messages = [Outgoing(client, {"federation": TOKEN, "frame": frame(client, number, kind)}) for client in clients]
        return self.transport.send(messages, LIFETIME)

    def replies(self) -> list[tuple[str, Incoming]]:
        return self.transport.replies([])

    def sent(self, topic: str) -> list[bytes]:
        return [payload for name, payload, _ in self.broker.published if name == topic]

    def state(self) -> tuple[set[int], dict[int, list[str]]]:
        waiting = {client: sorted(messages) for client, messages in self.transport._open.items() if messages}
        return set(self.transport.nodes()), waiting


def answer(client: int, number: int = 1, kind: Kind = Kind.UPDATE) -> bytes:
    return with_counts(frame(client, number, kind), {"up": 10, "down": 20})


def test_a_reply_has_the_identity_of_its_message_and_the_bytes_at_the_socket() -> None:
    desk = Desk()
    desk.here(0, 1)
    first, second = desk.ask(0, 1)
    desk.hear(1, answer(1))
    ((identity, reply),) = desk.replies()
    assert identity == second != first
    assert reply.values == {"frame": frame(1, kind=Kind.UPDATE), "socket-up": 10, "socket-down": 20}


def test_waiting_ends_with_the_first_reply_or_in_time() -> None:
    desk = Desk()
    desk.here(0)
    desk.ask(0)
    desk.link.waiting = [Happened("u1", to_json(here="x", nonce="n")), Happened("u0", answer(0))]
    desk.transport.wait(3600.0)
    assert [identity for identity, _ in desk.replies()] == ["0 1 TRAIN"]
    assert desk.transport.nodes().keys() == {0, 1}
    desk.transport.wait(0.0)


def test_replies_that_nobody_waits_for_are_passed_on_to_be_counted_but_not_without_end() -> None:
    desk = Desk()
    desk.here(0)
    desk.ask(0)
    for _ in range(100):
        desk.hear(0, answer(0))
        desk.hear(0, answer(0, number=7))
        desk.hear(0, to_json(error="failed", round=9, kind="train"))
        desk.hear(0, to_json(**{"client-id": 0, "federation": TOKEN}))
    passed = [identity for identity, _ in desk.replies()]
    assert passed[:3] == ["0 1 TRAIN", "0 7 TRAIN", "0 9 TRAIN"]
    assert len(passed) == 1 + Allowance().most
    assert desk.told == []


@pytest.mark.parametrize(
    "topic", ["u3", "u-1", "u", "u01", "u٣", "d0", "a", "", "ux", "tinyproto/u0", "u99999999999999999999"]
)
@pytest.mark.parametrize("sealed", [False, True])
def test_topics_that_no_client_writes_are_not_heard(topic: str, sealed: bool) -> None:
    desk = Desk(sealed)
    for payload in (to_json(here="x", nonce="y"), answer(0), b"", b"{"):
        desk.hear_raw(topic, payload)
    assert desk.transport.nodes() == {}
    assert desk.replies() == []
    assert desk.told == []


@pytest.mark.parametrize(
    "values",
    [
        {"nonce": "\ud800"}, {"nonce": "é"}, {"nonce": 7}, {"nonce": None}, {}, {"nonce": "n" * 65},
        {"here": ["a"], "nonce": "n"}, {"here": {}, "nonce": "n"}, {"here": "\udfff", "nonce": "n"},
    ],
)  # fmt: skip
def test_a_client_whose_name_or_nonce_is_no_short_text_is_not_there(values: dict[str, Any]) -> None:
    desk = Desk()
    desk.hear(0, to_json(**{"here": "x", **values}))
    assert desk.transport.nodes() == {}
    assert [event for event, _ in desk.told] == ["refused"]


def test_a_deeply_nested_name_is_refused() -> None:
    desk = Desk()
    for depth in range(100, 1000, 50):
        desk.hear_raw("u0", b'{"nonce":"n","here":' + depth * b"[" + depth * b"]" + b"}")
    assert desk.transport.nodes() == {}


def test_json_that_is_too_long_is_refused_before_it_is_read() -> None:
    desk = Desk()
    desk.hear(0, to_json(here="x", nonce="n", more="x" * LONGEST_JSON))
    assert desk.transport.nodes() == {}
    assert "bytes of JSON" in desk.told[0][1]["reason"]


scalars = (
    st.none() | st.booleans() | st.integers() | st.just(10**3000) | st.floats() | st.text(max_size=70)
    | st.sampled_from([TOKEN, "train", "hello", "one", "other", "failed", "unknown", "terms"])
)  # fmt: skip
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
FIELDS = ("here", "gone", "asleep", "nonce", "fresh", "federation", "round", "kind", "error", "client-id", "frame",
          "socket-up", "socket-down", "terms", "who", "over", "code", "words")  # fmt: skip
objects = st.dictionaries(st.sampled_from(FIELDS), anything, max_size=6)


@given(st.lists(objects | st.binary(max_size=40) | st.binary(max_size=40).map(lambda rest: b"{" + rest), max_size=4))
def test_whatever_a_client_sends_changes_nothing_about_the_others(messages: list[Mapping[str, Any] | bytes]) -> None:
    desk = Desk()
    desk.here(0, 1, 2)
    desk.ask(0, 1, 2)
    before = desk.state()
    for message in messages:
        content = message if isinstance(message, bytes) else json.dumps(message).encode()
        desk.hear(0, content)
        assert all(identity.startswith("0 ") for identity, _ in desk.replies())
    nodes, waiting = desk.state()
    assert {1, 2} <= nodes
    assert {1: waiting[1], 2: waiting[2]} == {1: before[1][1], 2: before[1][2]}
    desk.here(0)
    desk.transport.send([Outgoing(client, {"terms": "t"}) for client in range(3)], LIFETIME)  # it still works


@given(st.lists(st.binary(max_size=200) | objects.map(lambda values: json.dumps(values).encode()), max_size=4))
def test_whatever_a_broker_sends_without_a_code_changes_nothing(payloads: list[bytes]) -> None:
    desk = Desk(sealed=True)
    desk.here(0, 1)
    desk.ask(0, 1)
    before = desk.state()
    for payload in payloads:
        for topic in ("u0", "u1", "u2", "u3", "u"):
            desk.hear_raw(topic, payload)
    assert desk.state() == before
    assert desk.replies() == []


def test_messages_of_another_client_direction_or_federation_are_refused() -> None:
    desk = Desk(sealed=True)
    desk.here(0, 1)
    desk.ask(0, 1)
    for payload in (
        desk.seals[1].close("u", answer(0), DIGEST), desk.seals[0].close("d", answer(0), DIGEST),
        desk.seals[0].close("u", answer(0), b"another digest  "),
        desk.seals[0].close("u", to_json(error="failed", round=1, kind="train"), b"another token"),
        desk.seals[0].close("u", to_json(error="failed", round=1, kind="train"), b"nonce-0"),
    ):  # fmt: skip
        desk.hear_raw("u0", payload)
    assert desk.replies() == []
    assert {facts["client"] for _, facts in desk.told} == {0}
    desk.hear(0, answer(0), DIGEST)
    assert [identity for identity, _ in desk.replies()] == ["0 1 TRAIN"]


def test_a_reply_that_names_another_federation_is_ignored() -> None:
    desk = Desk()
    desk.here(0)
    desk.transport.send([Outgoing(0, {"terms": "t"})], LIFETIME)
    desk.hear(0, to_json(**{"client-id": 0, "federation": "f" * 32, "nonce": "rolled back"}))
    assert desk.replies() == []
    assert desk.transport._present[0].nonce == "nonce-0"


def test_a_client_that_sends_nonsense_all_the_time_fills_no_journal() -> None:
    desk = Desk()
    for number in range(1000):
        desk.hear(0, b"{" + str(number).encode())
    assert len(desk.told) == 20
    desk.hear(1, b"{")
    assert desk.told[-1][1]["client"] == 1


def test_a_client_that_says_here_all_the_time_gets_its_message_a_few_times_only() -> None:
    desk = Desk()
    desk.here(0)
    desk.ask(0)
    for _ in range(1000):
        desk.here(0, fresh=1)
    assert len(desk.sent("d0")) == 1 + MOST_RESENT
    assert desk.transport.nodes() == {0: b"key"}


def test_only_a_fresh_client_gets_its_messages_again() -> None:
    desk = Desk()
    desk.here(0)
    desk.ask(0)
    desk.here(0, connection="two")
    assert len(desk.sent("d0")) == 1
    desk.here(0, connection="two", fresh=1)
    assert len(desk.sent("d0")) == 2
    desk.now += LIFETIME
    desk.here(0, fresh=1)
    assert len(desk.sent("d0")) == 2  # nobody waits for it any more


def test_a_client_that_comes_back_after_the_broker_forgot_the_shared_frame_gets_it_once() -> None:
    desk = Desk()
    desk.here(0, 1)
    desk.ask(0, 1)
    desk.now += SHARED_SECONDS - 1
    desk.here(0)
    assert desk.sent("d0") == []  # its session has it
    desk.now += 1
    for _ in range(3):
        desk.here(0)
        desk.here(1)
    assert desk.sent("d0") == [frame(0)]
    assert desk.sent("d1") == [frame(1)]


def test_the_end_of_an_earlier_connection_is_ignored() -> None:
    desk = Desk()
    desk.here(0, connection="one")
    desk.here(0, connection="two")
    desk.ask(0)
    desk.hear(0, to_json(gone="one"))
    desk.hear(0, to_json(asleep="one"))
    assert desk.transport.nodes() == {0: b"key"}
    assert not desk.transport._present[0].asleep
    desk.hear(0, to_json(gone="two"))
    assert desk.transport.nodes() == {}
    ((identity, reply),) = desk.replies()
    assert (identity, reply.is_away) == ("0 1 TRAIN", True)


def test_a_client_that_comes_and_goes_all_the_time_is_told_a_few_times_only() -> None:
    desk = Desk()
    desk.here(0)
    desk.ask(0)
    for _ in range(1000):
        desk.hear(0, to_json(gone="one"))
        desk.here(0)
    assert len(desk.replies()) == Allowance().most
    assert desk.transport.nodes() == {0: b"key"}
    desk.now += Allowance().seconds
    desk.hear(0, to_json(gone="one"))
    assert desk.transport.nodes() == {}


def test_a_message_to_a_client_that_has_left_is_not_taken() -> None:
    desk = Desk()
    desk.here(0)
    assert desk.ask(0, 1) == ["0 1 TRAIN", None]
    assert desk.sent("d1") == []


def test_a_sleeping_client_is_present_and_its_messages_expire() -> None:
    desk = Desk()
    desk.here(0, 1)
    desk.hear(0, to_json(asleep="one"))
    assert desk.transport.nodes().keys() == {0, 1}
    desk.ask(0, 1)
    assert [(topic, expiry) for topic, _, expiry in desk.broker.published] == [("d0", LIFETIME), ("d1", None)]
    desk.here(0, connection="two")
    desk.ask(0, number=2)
    assert desk.broker.published[-1][2] is None


def test_an_equal_frame_for_all_who_are_there_goes_once() -> None:
    desk = Desk()
    desk.here(0, 1)
    desk.ask(0, 1)
    ((topic, payload, _),) = desk.broker.published
    assert topic == "a"
    assert peek(payload).client == EVERYONE
    desk.hear(0, answer(0))
    desk.here(1, fresh=1)  # what it missed is sent to it alone
    assert desk.sent("d1") == [frame(1)]


@pytest.mark.parametrize("why", ["one is not asked", "one sleeps", "codes", "bodies differ", "one client"])
def test_nothing_is_shared_if_it_would_reach_others_or_differ(why: str) -> None:
    desk = Desk(sealed=why == "codes")
    asked = (0,) if why == "one client" else (0, 1)
    desk.here(*asked)
    if why == "one is not asked":
        desk.here(2)
    if why == "one sleeps":
        desk.hear(1, to_json(asleep="one"))
    if why == "bodies differ":
        desk.transport.send(
            [Outgoing(client, {"frame": frame(client, body=bytes([client]))}) for client in asked], LIFETIME
        )
    else:
        desk.ask(*asked)
    assert [topic for topic, _, _ in desk.broker.published] == [f"d{client}" for client in asked]


def test_an_unreadable_answer_answers_all_that_the_client_was_asked() -> None:
    desk = Desk()
    desk.here(0, 1)
    desk.ask(0, 1)
    desk.hear(0, b"\x07 not a frame of this version, nor long")
    assert desk.replies() == [("0 1 TRAIN", UNREADABLE)]
    desk.hear(0, b"\x07 again, but nothing is open any more")
    assert desk.replies() == []


def test_a_coordinator_without_a_session_asks_who_is_there_and_forgets_the_silent() -> None:
    desk = Desk()
    desk.here(0, 1, 2)
    desk.hear(2, to_json(asleep="one"))
    desk.ask(0, 1)
    desk.happen(lost="broken")
    desk.happen(lost="still")
    desk.happen(resumed=False)
    assert desk.sent("a")[-1] == to_json(who=1)
    desk.here(0, fresh=1)
    desk.now += WHO_SECONDS - 1
    assert desk.replies() == []
    assert desk.transport.nodes().keys() == {0, 1, 2}
    desk.now += 1
    assert [(identity, reply.is_away) for identity, reply in desk.replies()] == [("1 1 TRAIN", True)]
    assert desk.transport.nodes().keys() == {0, 2}  # who sleeps cannot answer
    assert [facts["reason"] for _, facts in desk.told] == ["waiting for the broker: broken", "the broker is back"]


def test_a_session_that_outlived_our_own_broker_may_have_lost_messages() -> None:
    for sealed, fresh in ((False, 1), (True, 0)):
        desk = Desk(sealed)
        desk.happen(resumed=True)
        asked = desk.broker.published[-1][1]
        assert asked.startswith(to_json(who=fresh))


@pytest.mark.parametrize("sealed", [False, True])
def test_nothing_is_collected_for_a_broker_that_is_away_and_then_all_is_sent_once(sealed: bool) -> None:
    desk = Desk(sealed)
    desk.here(0, 1)
    desk.happen(lost="broken")
    for _ in range(720):
        desk.ask(0, 1)
        desk.now += 60
        desk.replies()
    assert desk.broker.published == []
    desk.ask(0, 1)
    desk.happen(resumed=True)
    more: dict[str, Any] = {} if sealed else {"fresh": 1}  # as a client answers who is there
    desk.here(0, 1, **more)
    for _ in range(3):
        desk.here(0, 1)
    for client in (0, 1):
        assert len([payload for payload in desk.sent(f"d{client}") if not is_json(payload)]) == 1
    desk.hear(0, answer(0), DIGEST)
    assert [identity for identity, _ in desk.replies()] == ["0 1 TRAIN"]


def test_a_broker_that_comes_and_goes_fills_no_journal() -> None:
    desk = Desk()
    for _ in range(1000):
        desk.happen(lost="broken")
        desk.happen(resumed=True)
        desk.happen(warned="quota exceeded")
    assert len(desk.told) == Allowance().most


def test_devices_that_are_away_are_told_the_end_by_another_broker() -> None:
    for sealed in (False, True):
        desk = Desk(sealed)
        desk.transport.finish()
        expected = [(f"d{client}", SESSION_SECONDS) for client in range(3)] if sealed else [("a", SESSION_SECONDS)]
        assert [(topic, expiry) for topic, _, expiry in desk.broker.published] == expected


def test_nobody_is_forgotten_while_the_broker_is_away() -> None:
    desk = Desk()
    desk.here(0)
    desk.happen(resumed=False)
    desk.happen(lost="broken")
    desk.now += 10 * WHO_SECONDS
    desk.replies()
    desk.happen(resumed=True)
    desk.replies()
    assert desk.transport.nodes().keys() == {0}
    desk.hear(0, to_json(error="failed"))  # any message says that it is there
    desk.now += WHO_SECONDS
    desk.replies()
    assert desk.transport.nodes().keys() == {0}


def test_terms_are_sealed_with_the_newest_nonce() -> None:
    desk = Desk(sealed=True)
    desk.here(0)
    desk.transport.send([Outgoing(0, {"terms": "t"})], LIFETIME)
    desk.hear(0, to_json(**{"client-id": 0, "federation": TOKEN, "nonce": "newer"}), TOKEN.encode())
    desk.transport.send([Outgoing(0, {"terms": "t"})], LIFETIME)
    first, second = desk.sent("d0")
    assert desk.seals[0].open("d", first, b"nonce-0") == to_json(terms="t")
    assert desk.seals[0].open("d", second, b"newer") == to_json(terms="t")
    with pytest.raises(WireError):
        desk.seals[0].open("d", second, b"nonce-0")


def test_a_count_that_is_no_number_of_bytes_is_not_counted() -> None:
    counts = SocketCounts()
    for value in (10**4000, 2**63, -1, 1.5, "7", None, [1]):
        counts.note(0, {"socket-up": value, "socket-down": 1})
    assert counts.take() is None
