"""A listener that wakes: how long it waits for a round, and which of several rounds it trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("paho")

from support_members import TOKEN
from support_mqtt import FakeBroker, FakeLink
from tinyproto.cli import join_mqtt
from tinyproto.cli.client_folder import JoinOptions
from tinyproto.cli.interrupt import StopOnInterrupt
from tinyproto.cli.join_mqtt import MqttOptions, MqttSession, TrainingProcess
from tinyproto.cli.terminal import Output
from tinyproto.errors import FederationError
from tinyproto.federation.device_keys import DeviceKeys
from tinyproto.federation.mqtt.listener import SETTLE_SECONDS, Agreement, Listener
from tinyproto.federation.mqtt.messages import Happened, HasFileno, Topics, from_json, to_json
from tinyproto.wire.frame import Header, Kind, pack, peek

DIGEST = b"digest"


class ClosableLink(FakeLink):
    """A fake link with what `join` needs besides."""

    is_confirmed = True
    kept: bool | None = None

    def close(self, *, keep_session: bool) -> None:
        self.kept = keep_session


@dataclass
class NeverDone:
    """A training process that is still at work."""

    asked: list[int] = field(default_factory=list)

    def ask(self, values: Mapping[str, Any]) -> None:
        self.asked.append(peek(values["frame"]).round_number)

    def answer(self) -> dict[str, Any] | None:
        return None

    def waits_for(self) -> Sequence[HasFileno]:
        return ()

    def close(self) -> None:
        pass


def session(folder: Path, monkeypatch: pytest.MonkeyPatch, link: FakeLink) -> MqttSession:
    """`join --once` of client 0 at a broker in this process."""
    monkeypatch.setattr(join_mqtt, "Connection", lambda *_, **__: link)
    monkeypatch.setattr(join_mqtt, "ONCE_SECONDS", 0.2)
    nowhere = Path("nowhere")
    options = JoinOptions(0, folder, None, None, None, "m", "cpu", folder)
    keys = DeviceKeys(nowhere, nowhere, nowhere, bytes(32))
    worker: Any = NeverDone()
    first: TrainingProcess = worker
    return MqttSession(MqttOptions("h:1", once=True), options, keys, first, StopOnInterrupt(), Output(quiet=True))


def test_with_nothing_to_do_it_says_that_it_sleeps_and_keeps_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = FakeBroker()
    link = ClosableLink(broker, ["d0", "a"])
    made = session(tmp_path, monkeypatch, link)
    assert made.run() is None
    assert made.sleeps
    assert link.kept
    here, asleep = (from_json(payload) for topic, payload, _ in broker.published if topic == "u0")
    assert here["here"] == asleep["asleep"]


def test_a_client_that_is_told_the_end_leaves_though_it_missed_the_last_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = ClosableLink(FakeBroker(), ["d0", "a"])
    made = session(tmp_path, monkeypatch, link)
    made.listener.agreed = Agreement(TOKEN, DIGEST, 9)
    link.waiting.append(Happened("a", to_json(over=TOKEN)))
    assert made.run() == 9
    assert not made.sleeps
    assert not made.missed_the_end
    assert not link.kept


def test_the_end_of_a_federation_does_not_hide_the_terms_of_the_next_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = ClosableLink(FakeBroker(), ["d0", "a"], [Happened(resumed=True), Happened("d0", to_json(over=TOKEN))])
    made = session(tmp_path, monkeypatch, link)
    made.listener.agreed = Agreement(TOKEN, DIGEST, 9)
    made.listener.step(0.0)
    assert made.listener.is_over
    assert not made._is_over()
    link.waiting.append(Happened("d0", to_json(terms="of the next")))
    made.listener.step(0.0)
    assert not made._is_over()
    assert not made.listener.is_over


def test_a_broker_that_is_not_reached_is_an_error_and_no_sleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = ClosableLink(FakeBroker(), ["d0", "a"], is_open=False)
    made = session(tmp_path, monkeypatch, link)
    with pytest.raises(FederationError, match=r"h:1 was not reached within 0\.2 s: it does not answer as"):
        made.run()
    assert not made.sleeps
    assert not link.kept


def train(round_number: int) -> Happened:
    return Happened("d0", pack(Header(Kind.TRAIN, round_number, 0, DIGEST), b"body"))


@pytest.mark.parametrize(
    "steps",
    [
        [[2, 3, 4]],
        [[2], [3], [4]],
        [[4], [2], [3]],
        [[2, 3, 4], [2, 3, 4]],
    ],
    ids=["together", "one after another", "in another order", "sent again"],
)
def test_of_all_rounds_that_waited_only_the_newest_is_trained(steps: list[list[int]], tmp_path: Path) -> None:
    now = [0.0]
    link = FakeLink(FakeBroker(), ["d0"], [Happened(resumed=True)])
    worker = NeverDone()
    listener = Listener(
        0, tmp_path, link, lambda: worker, Topics(), "connection", worker=worker, clock=lambda: now[0]
    )  # fmt: skip
    listener.agreed = Agreement(TOKEN, DIGEST, 9)
    for rounds in [[], *steps, []]:
        link.waiting += [train(number) for number in rounds]
        listener.step(0.0)
        now[0] += SETTLE_SECONDS / 8
    now[0] += SETTLE_SECONDS
    for rounds in [[], *steps[-1:]]:
        link.waiting += [train(number) for number in rounds]
        listener.step(0.0)
    assert worker.asked == [4]
    assert not listener._jobs


def test_what_arrives_before_the_connection_counts_as_open_waits_for_the_rest(tmp_path: Path) -> None:
    now, worker = [0.0], NeverDone()
    link = FakeLink(FakeBroker(), ["d0"], [train(2), train(3)])
    listener = Listener(
        0, tmp_path, link, lambda: worker, Topics(), "connection", worker=worker, clock=lambda: now[0]
    )  # fmt: skip
    listener.agreed = Agreement(TOKEN, DIGEST, 9)
    for arrives in ([train(4)], [Happened(resumed=True)], [train(5)]):
        listener.step(0.0)
        link.waiting += arrives
    listener.step(0.0)
    assert worker.asked == []
    now[0] += SETTLE_SECONDS
    listener.step(0.0)
    assert worker.asked == [5]


@dataclass
class SlowWorker(NeverDone):
    """A training process that answers when it is told to."""

    is_done: bool = False

    def answer(self) -> dict[str, Any] | None:
        if not self.is_done or not self.asked:
            return None
        return {"frame": pack(Header(Kind.UPDATE, self.asked[-1], 0, DIGEST), b"body")}


@pytest.mark.parametrize("once", [True, False])
def test_a_round_that_comes_while_another_is_trained_is_left_for_the_next_start(once: bool, tmp_path: Path) -> None:
    worker, link = SlowWorker(), FakeLink(FakeBroker(), ["d0"], [Happened(resumed=False), train(2)])
    listener = Listener(
        0, tmp_path, link, lambda: worker, Topics(), "connection", once=once, worker=worker, clock=lambda: 0.0
    )  # fmt: skip
    listener.agreed = Agreement(TOKEN, DIGEST, 9)
    listener.step(0.0)
    link.waiting = [train(3)]
    listener.step(0.0)
    assert not listener.is_idle
    worker.is_done = True
    listener.step(0.0)
    assert worker.asked == ([2] if once else [2, 3])
    assert listener.is_idle is once
    assert listener.trained == 1


def test_a_session_that_is_new_begins_at_once(tmp_path: Path) -> None:
    worker = NeverDone()
    link = FakeLink(FakeBroker(), ["d0"], [Happened(resumed=False), train(1)])
    listener = Listener(0, tmp_path, link, lambda: worker, Topics(), "connection", clock=lambda: 0.0)
    listener.agreed = Agreement(TOKEN, DIGEST, 9)
    listener.step(0.0)
    assert worker.asked == [1]
