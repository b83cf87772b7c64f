"""A device's listener: what it answers, starts and forgets, whatever a coordinator, a broker or its worker does."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import support_mqtt
from support_mqtt import FakeBroker, MqttFederation, small_mqtt_federation
from tinyproto.errors import WireError
from tinyproto.federation.channel import Outgoing
from tinyproto.federation.member import respond
from tinyproto.federation.mqtt import listener as listener_module
from tinyproto.federation.mqtt.listener import LINGER_SECONDS, SETTLE_SECONDS, Listener, Memory, will
from tinyproto.federation.mqtt.messages import Happened, HasFileno, Seal, Topics, from_json, is_json, to_json
from tinyproto.federation.mqtt.transport import MqttTransport
from tinyproto.federation.refusals import WORDS
from tinyproto.wire.frame import EVERYONE, Header, Kind, pack, peek

TOKEN, DIGEST = "0123456789abcdef" * 2, b"digest of 16 byt"
OTHER_TOKEN, OTHER_DIGEST = "f" * 32, b"another digest.."
ROUNDS = 5


def frame(number: int = 1, kind: Kind = Kind.TRAIN, client: int = 3, digest: bytes = DIGEST) -> bytes:
    return pack(Header(kind, number, client, digest), b"body")


def accept(folder: Path, token: str = TOKEN, digest: bytes = DIGEST) -> None:
    """Write what a member writes when it accepts terms."""
    place = folder / "state" / token
    place.mkdir(parents=True, exist_ok=True)
    terms = {"federation": token, "digest": digest.hex(), "train": {"rounds": ROUNDS}}
    (place / "terms.json").write_text(json.dumps(terms))


@dataclass
class FakeWorker:
    """Accepts any terms that name a federation, and answers frames at once; `dies` and `is_slow` are as they say."""

    folder: Path
    client: int
    asked: list[Mapping[str, Any]] = field(default_factory=list)
    dies: bool = False
    is_slow: bool = False
    is_closed: bool = False

    def ask(self, values: Mapping[str, Any]) -> None:
        self.asked.append(values)

    def answer(self) -> dict[str, Any] | None:
        if self.is_slow:
            return None
        if self.dies:
            return {"error": "failed", "died": True, "reason": "killed by signal 9"}
        values = self.asked[-1]
        if "frame" in values:
            asked = peek(values["frame"])
            return {"frame": pack(Header(asked.kind.answer, asked.round_number, self.client, DIGEST), b"answer")}
        if values["terms"] not in (TOKEN, OTHER_TOKEN):
            return {"error": "terms", "client-id": self.client}
        accept(self.folder, values["terms"], DIGEST if values["terms"] == TOKEN else OTHER_DIGEST)
        return {"client-id": self.client, "federation": values["terms"]}

    def waits_for(self) -> Sequence[HasFileno]:
        return ()

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Device:
    """Client 3 at a broker, with a clock; it knows the federation unless `is_new`."""

    folder: Path
    sealed: bool = False
    is_new: bool = False
    resident: bool = False
    now: float = 1000.0
    broker: FakeBroker = field(default_factory=FakeBroker)
    workers: list[FakeWorker] = field(default_factory=list)
    change: Callable[[FakeWorker], None] = lambda worker: None

    def __post_init__(self) -> None:
        if not self.is_new:
            accept(self.folder)
            (self.folder / "mqtt.json").write_text(json.dumps({"nonce": "n", "federation": TOKEN}))
        self.link = self.broker.link([])
        self.seal = Seal(b"k" * 32, 3) if self.sealed else None
        self.listener = Listener(
            3, self.folder, self.link, self._start, Topics(), "connection", self.seal, self.resident,
            clock=lambda: self.now,
        )  # fmt: skip

    def _start(self) -> FakeWorker:
        self.workers.append(FakeWorker(self.folder, 3))
        self.change(self.workers[-1])
        return self.workers[-1]

    def connect(self) -> None:
        """Let it connect, and forget what it has said."""
        self.steps(1)
        self.broker.published.clear()

    def hear(self, content: bytes, context: bytes = b"", topic: str = "d3") -> None:
        payload = content if self.seal is None else self.seal.close("d", content, context)
        self.link.waiting.append(Happened(topic, payload))

    def steps(self, count: int = 6) -> None:
        for _ in range(count):
            self.listener.step(0.0)

    def said(self) -> list[dict[str, Any]]:
        contents = [payload for topic, payload, _ in self.broker.published if topic == "u3"]
        assert len(contents) == len(self.broker.published)
        opened = contents if self.seal is None else [content[:-16] for content in contents]
        return [from_json(content) for content in opened if is_json(content)]

    def answered(self) -> list[tuple[int, Kind]]:
        frames = [payload for _, payload, _ in self.broker.published if not is_json(payload)]
        return [(peek(payload).round_number, peek(payload).kind) for payload in frames]

    def told(self) -> list[dict[str, Any]]:
        file = self.folder / "progress.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def asked(self) -> list[tuple[int, Kind]]:
        frames = [values["frame"] for worker in self.workers for values in worker.asked if "frame" in values]
        return [(peek(asked).round_number, peek(asked).kind) for asked in frames]


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


def test_a_listener_says_that_it_is_there_and_whether_it_may_have_lost_messages(device: Device) -> None:
    device.link.waiting = [Happened(resumed=True), Happened(lost="broken"), Happened(resumed=True)]
    device.steps(1)
    device.link.waiting = [Happened(lost="broken"), Happened(resumed=False)]
    device.steps(1)
    assert [said.get("fresh") for said in device.said()] == [None, None, 1]
    assert {said["here"] for said in device.said()} == {"connection"}


@pytest.mark.parametrize("waiting", [frame(), to_json(terms=TOKEN), None])
def test_a_new_process_asks_again_unless_its_session_has_a_frame_for_it(waiting: bytes | None, device: Device) -> None:
    device.link.waiting = [Happened(resumed=True), *([] if waiting is None else [Happened("d3", waiting)])]
    device.steps(1)
    device.now += SETTLE_SECONDS
    device.steps()
    fresh = [said.get("fresh") for said in device.said() if "here" in said]
    assert fresh == ([None] if waiting == frame() else [None, 1])  # an earlier process may have died with it
    assert device.asked() == ([(1, Kind.TRAIN)] if waiting == frame() else [])


def test_a_question_who_is_there_is_answered_as_fresh(device: Device) -> None:
    device.connect()
    device.hear(to_json(who=1), topic="a")
    device.steps(1)
    assert device.said() == [{"here": "connection", "nonce": "n", "fresh": 1}]
    assert device.workers == []


def test_a_round_is_trained_once_and_answered_as_often_as_it_is_asked(device: Device) -> None:
    for _ in range(3):
        device.hear(frame())
        device.hear(frame(client=EVERYONE), topic="a")
        device.steps()
    assert device.asked() == [(1, Kind.TRAIN)]
    assert set(device.answered()) == {(1, Kind.UPDATE)}
    assert len(device.answered()) == 5  # the second came before there was a reply
    assert device.listener.trained == 1


def test_only_the_newest_round_is_trained(device: Device) -> None:
    for number in (1, 2, 3):
        device.hear(frame(number))
    device.hear(frame(3, Kind.EVALUATE))
    device.steps()
    assert device.asked() == [(3, Kind.TRAIN), (3, Kind.EVALUATE)]


def test_a_hello_that_is_repeated_a_thousand_times_waits_once(device: Device) -> None:
    device.change = lambda worker: setattr(worker, "is_slow", True)
    for _ in range(1000):
        device.hear(frame(0, Kind.HELLO))
    device.hear(frame(1))
    device.steps()
    assert [job.asked.kind for job in device.listener._jobs if job.asked] == [Kind.TRAIN]
    assert len(device.asked()) == 1
    for _ in range(1000):
        device.hear(frame(0, Kind.HELLO))
    device.steps()
    assert len(device.listener._jobs) == 2


def test_a_client_that_does_not_know_the_federation_says_so(tmp_path: Path) -> None:
    device = Device(tmp_path, is_new=True)
    device.connect()
    device.hear(frame(4))
    device.hear(frame(4, client=EVERYONE), topic="a")
    device.steps()
    assert device.said() == 2 * [{"error": "unknown", "client-id": 3, "round": 4, "kind": "train"}]
    assert device.workers == []


def test_a_damaged_frame_is_refused_with_its_round_and_starts_no_process(device: Device) -> None:
    device.connect()
    device.hear(frame(2)[:-1] + b"?")
    device.hear(frame(2, client=EVERYONE)[:-1] + b"?", topic="a")
    device.hear(frame(2, digest=OTHER_DIGEST))
    device.steps()
    assert device.said() == 2 * [{"error": "frame", "client-id": 3, "round": 2, "kind": "train"}]
    assert device.workers == []


def test_a_process_that_died_is_replaced_and_its_frame_refused(device: Device) -> None:
    device.change = lambda worker: setattr(worker, "dies", len(device.workers) == 1)
    device.connect()
    device.hear(frame(2))
    device.steps()
    assert device.said() == [{"error": "failed", "client-id": 3, "round": 2, "kind": "train"}]
    assert [event["event"] for event in device.told()] == ["failed"]
    device.hear(frame(2))
    device.steps()
    assert device.answered() == [(2, Kind.UPDATE)]
    assert [worker.is_closed for worker in device.workers] == [True, False]


@pytest.mark.parametrize("resident", [False, True])
def test_a_process_without_work_is_let_go_unless_it_is_to_stay(resident: bool, tmp_path: Path) -> None:
    device = Device(tmp_path, resident=resident)
    device.hear(frame())
    device.steps()
    device.now += LINGER_SECONDS - 1
    device.hear(frame(2))  # work keeps it
    device.steps()
    device.now += LINGER_SECONDS - 1
    device.hear(b"nonsense")  # other things do not
    device.steps()
    assert not device.workers[0].is_closed
    device.now += 1
    device.steps()
    assert device.workers[0].is_closed is not resident
    assert len(device.workers) == 1


def test_a_process_at_work_is_never_let_go(device: Device) -> None:
    device.change = lambda worker: setattr(worker, "is_slow", True)
    device.hear(frame())
    device.steps()
    device.now += 100 * LINGER_SECONDS
    device.steps()
    assert not device.workers[0].is_closed


def test_frames_of_the_federation_before_are_not_trained(device: Device) -> None:
    device.connect()
    device.hear(to_json(terms=OTHER_TOKEN))
    device.hear(frame(2))
    device.steps()
    assert device.asked() == device.answered() == []
    assert device.listener.agreed is not None
    assert device.listener.agreed.token == OTHER_TOKEN
    assert [said["federation"] for said in device.said()] == [OTHER_TOKEN]


def test_accepting_terms_replaces_the_nonce_and_outlives_the_process(tmp_path: Path) -> None:
    device = Device(tmp_path, sealed=True, is_new=True)
    nonce = device.listener.memory.nonce
    device.hear(to_json(terms=TOKEN), nonce.encode())
    device.steps()
    newer = device.listener.memory.nonce
    assert newer != nonce
    assert (tmp_path / "mqtt.json").stat().st_mode & 0o777 == 0o600
    for context in (nonce.encode(), b"", DIGEST[:-1], TOKEN.encode()):
        if context:
            device.hear(to_json(terms=OTHER_TOKEN), context)  # recorded earlier, or for another purpose
    device.steps()
    assert len(device.workers[0].asked) == 1
    again = Device(tmp_path, sealed=True, is_new=True)
    assert again.listener.memory.nonce == newer
    assert again.listener.agreed is not None
    assert again.listener.agreed.digest == DIGEST


def test_a_broker_chooses_no_context_for_the_refusal_of_a_client_that_knows_no_federation(tmp_path: Path) -> None:
    device = Device(tmp_path, sealed=True, is_new=True)
    device.connect()
    assert device.seal is not None
    for context in (DIGEST, b"", TOKEN.encode()):
        device.link.waiting = [Happened("d3", frame(4) + context)]
        device.steps()
        with pytest.raises(WireError):
            device.seal.open("u", device.broker.published[-1][1], DIGEST, TOKEN.encode(), b"")
    assert device.said() == 3 * [{"error": "unknown", "client-id": 3, "round": 4, "kind": "train"}]


def test_terms_that_a_full_disk_does_not_take_are_refused_and_the_listener_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(tmp_path, is_new=True)
    device.connect()
    nonce = device.listener.memory.nonce

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(listener_module, "write_atomic", full)
        device.hear(to_json(terms=TOKEN))
        device.steps()
    assert device.said() == [{"error": "no-space", "client-id": 3}]
    assert "No space left on device" in device.told()[-1]["reason"]
    assert (device.listener.memory.nonce, device.listener.agreed) == (nonce, None)
    device.hear(to_json(terms=TOKEN))
    device.steps()
    assert device.said()[-1]["federation"] == TOKEN


def test_the_will_names_its_connection_and_has_a_code() -> None:
    seal = Seal(b"k" * 32, 3)
    assert will("x", None) == to_json(gone="x")
    assert seal.open("u", will("x", seal), b"") == to_json(gone="x")


def test_the_end_of_another_federation_is_not_ours(device: Device) -> None:
    others: list[Any] = [OTHER_TOKEN, None, 7, [TOKEN], {}]
    for over in others:
        device.hear(to_json(over=over), topic="a")
    device.steps()
    assert not device.listener.is_over
    device.hear(to_json(over=TOKEN), topic="a")
    device.steps()
    assert device.listener.is_over
    device.hear(to_json(terms=OTHER_TOKEN))
    device.steps()
    assert not device.listener.is_over


def test_nonsense_all_the_time_fills_no_journal_and_hides_no_notice(device: Device) -> None:
    for number in range(500):
        device.hear(b"{" + str(number).encode())
        device.hear(frame(1)[:-1])
    device.hear(to_json(code="taken", words="another node has its id"))
    device.steps()
    assert len(device.told()) == 21
    assert device.told()[-1]["code"] == "taken"
    for _ in range(500):
        device.hear(to_json(code="taken", words="another node has its id"))
    device.steps()
    assert len(device.told()) == 40


scalars = (
    st.none() | st.booleans() | st.integers() | st.just(10**3000) | st.floats() | st.text(max_size=20)
    | st.sampled_from([TOKEN, "update", "diverged", "taken"])
)  # fmt: skip
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
objects = st.dictionaries(
    st.sampled_from(["who", "over", "terms", "code", "words", "kind", "round", "federation", "frame"]), anything,
    max_size=5,
)  # fmt: skip
headers = st.builds(
    lambda code, number, client, rest: bytes([2, code]) + number.to_bytes(4, "little") + client + rest,
    st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(min_size=4, max_size=4), st.binary(max_size=12),
)  # fmt: skip
valid = st.builds(frame, st.integers(0, 9), st.sampled_from(list(Kind)), st.sampled_from([3, 4, EVERYONE]))
payloads = st.one_of(
    objects.map(lambda values: json.dumps(values).encode()), headers, valid, st.binary(max_size=40),
    st.binary(max_size=40).map(lambda rest: b"{" + rest),
)  # fmt: skip


@given(st.lists(st.tuples(payloads, st.sampled_from(["d3", "a", "u3", "", "d4"])), max_size=6))
def test_a_listener_survives_whatever_arrives(messages: list[tuple[bytes, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        device = Device(Path(folder))
        for payload, topic in messages:
            device.hear(payload, topic=topic)
            device.steps(2)
        device.steps(2 * len(messages))
        assert device.listener.is_idle
        assert device.listener.memory.token == TOKEN
        device.hear(frame(20))
        device.steps()
        assert device.answered()[-1] == (20, Kind.UPDATE)


@given(st.lists(payloads, max_size=6))
def test_what_a_broker_sends_without_a_code_is_not_even_answered(messages: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        device = Device(Path(folder), sealed=True)
        device.link.waiting = [Happened("d3", payload) for payload in messages]
        device.steps()
        assert device.broker.published == []
        assert device.workers == []


# ── With a coordinator ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("sealed", [False, True])
def test_messages_grow_with_the_number_of_clients_and_no_faster(sealed: bool, tmp_path: Path) -> None:
    clients, rounds, broker = range(200), 3, FakeBroker()
    secrets = {client: bytes(31) + bytes([client]) for client in clients} if sealed else {}
    seals = {client: Seal(secret, client) for client, secret in secrets.items()}
    link = broker.link([f"u{client}" for client in clients])
    transport = MqttTransport(link, TOKEN, DIGEST, dict.fromkeys(clients, b""), seals=seals)
    listeners = []
    for client in clients:
        folder = tmp_path / str(client)
        accept(folder)
        (folder / "mqtt.json").write_text(json.dumps({"nonce": "n", "federation": TOKEN}))
        own = broker.link([f"d{client}", *([] if sealed else ["a"])])
        start = (lambda place, number: lambda: FakeWorker(place, number))(folder, client)
        listeners.append(Listener(client, folder, own, start, Topics(), "c", seals.get(client)))

    def let_pass() -> None:
        for listener in listeners:
            for _ in range(3):
                listener.step(0.0)
        transport.wait(0.0)

    let_pass()
    let_pass()
    assert len(transport.nodes()) == 200
    for number in range(1, rounds + 1):
        before = len(broker.published)
        transport.send([Outgoing(client, {"frame": frame(number, client=client)}) for client in clients], 60.0)
        let_pass()
        assert len(transport.replies([])) == 200
        assert len(broker.published) - before == 200 + (200 if sealed else 1)


SECRETS = {client: bytes([client]) * 32 for client in range(2)}


@dataclass
class Hostile:
    """A broker that repeats what it knows of an earlier federation and of this one, backwards, and forges the rest."""

    federation: MqttFederation
    recorded: list[tuple[str, bytes, float | None]]
    steps: int = 0

    def __call__(self) -> None:
        self.steps += 1
        known = [*self.recorded, *self.federation.broker.published]
        chosen = [known[(7 * self.steps + place) % len(known)] for place in range(12)]
        for link in self.federation.broker.links:
            for topic, payload, _ in reversed(chosen):
                if topic in link.topics:
                    link.waiting += [Happened(topic, payload), Happened(topic, payload[:-1]), Happened("u9", payload)]


def results(federation: MqttFederation) -> list[Any]:
    return [(record["round"], record["participants"], record["accuracy"]) for record in federation.records()]


def test_a_broker_that_replays_and_forges_changes_no_record(tmp_path: Path) -> None:
    honest = small_mqtt_federation(tmp_path / "honest", secrets=SECRETS, token="fedcba9876543210" * 2)
    honest.play()
    hostile = small_mqtt_federation(tmp_path / "hostile", secrets=SECRETS)
    hostile.before_step = Hostile(hostile, list(honest.broker.published))
    hostile.play()
    assert results(hostile) == results(honest)


def test_a_federation_completes_though_all_sessions_are_lost_in_the_middle_of_a_round(tmp_path: Path) -> None:
    federation = small_mqtt_federation(tmp_path)
    lost: list[int] = []

    def lose_everything() -> None:
        asked = [peek(payload) for _, payload, _ in federation.broker.published if not is_json(payload)]
        if lost or not any(header.round_number == 2 for header in asked):
            return
        lost.append(len(asked))
        for link in federation.broker.links:  # with whatever was on its way
            link.waiting = [Happened(lost="the broker died"), Happened(resumed=False)]

    federation.before_step = lose_everything
    federation.play()
    assert lost
    assert [record["participants"] for record in federation.records()][:2] == [[0, 1], [0, 1]]
    assert federation.events("again") == []


def test_a_reply_that_reached_nobody_is_sent_again_from_memory(tmp_path: Path) -> None:
    federation = small_mqtt_federation(tmp_path)
    swallowed: list[bytes] = []

    def swallow(topic: str, payload: bytes) -> bytes | None:
        if not swallowed and topic == "u1" and not is_json(payload) and peek(payload).round_number == 1:
            swallowed.append(payload)
            federation.transport.link.waiting.append(Happened(resumed=False))  # type: ignore[attr-defined]
            return None
        return payload

    federation.broker.change = swallow
    federation.play()
    assert federation.records()[0]["participants"] == [0, 1]
    sent = [payload for topic, payload, _ in federation.broker.published if topic == "u1" and payload in swallowed]
    assert len(sent) == 2
    frames = [asked["frame"] for worker in federation.workers[1] for asked in worker.asked if "frame" in asked]
    trained = [peek(asked).round_number for asked in frames if peek(asked).kind is Kind.TRAIN]
    assert trained == [1, 2]


def test_a_refusal_of_terms_reaches_the_coordinator_of_a_broker_that_is_not_ours(tmp_path: Path) -> None:
    federation = small_mqtt_federation(tmp_path, secrets=SECRETS)
    for client in (0, 1):  # client 0 is new, client 1 knows another federation
        (federation.folders[client] / "data.npz").unlink()
    accept(federation.folders[1], OTHER_TOKEN, OTHER_DIGEST)
    (federation.folders[1] / "mqtt.json").write_text(json.dumps({"nonce": "n", "federation": OTHER_TOKEN}))
    for client in (0, 1):
        federation.listener(client)
    channel = federation.coordinator().channel
    for _ in range(3):
        channel.look_around()
        channel.wait()
    assert [(event["client"], event["reason"]) for event in federation.events("refused")] == [
        (client, WORDS["data"]) for client in (0, 1)
    ]


@pytest.mark.parametrize("secrets", [{}, SECRETS])
def test_a_client_that_does_not_know_the_federation_any_more_is_greeted_again(
    secrets: Mapping[int, bytes], tmp_path: Path
) -> None:
    federation = small_mqtt_federation(tmp_path, quorum=1.0, secrets=secrets)
    forgotten: list[int] = []

    def forget() -> None:
        listener = federation.listeners[1]
        if not forgotten and listener.trained == 1:
            forgotten.append(1)
            (listener.folder / "mqtt.json").unlink()
            listener.memory, listener.agreed = Memory(listener.folder), None  # as if its folder were new
            listener._hear(Happened(resumed=False))

    federation.before_step = forget
    federation.play()
    refused = [event for event in federation.events("refused") if event.get("client") == 1]
    assert refused[0]["reason"] == "it does not know this federation"
    assert [event["client"] for event in federation.events("joined")].count(1) == 2
    assert federation.records()[-1]["closing"]


def test_a_coordinator_goes_on_without_a_client_whose_process_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = small_mqtt_federation(tmp_path)

    def respond_or_die(folder: Path, client: int, values: Mapping[str, Any]) -> Mapping[str, Any]:
        asked = values.get("frame")
        if client == 1 and isinstance(asked, bytes) and peek(asked).round_number == 1:
            return {"error": "failed", "died": True, "reason": "killed by signal 9"}
        return respond(folder, client, values)

    monkeypatch.setattr(support_mqtt, "respond", respond_or_die)
    federation.play()
    (refused,) = federation.events("refused")
    assert (refused["client"], refused["round"], refused["reason"]) == (1, 1, WORDS["failed"])
    assert [record["round"] for record in federation.records()] == [1, 2, 3]
    assert [worker.is_closed for worker in federation.workers[1]] == [True, False]
