"""Faults of real processes beside kill, silence and restart; nothing is left running in the end."""

from __future__ import annotations

import contextlib
import json
import resource
import shutil
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from support_federation import Federation, Running, eventually
from support_join import make_session, only_waiting_takes_time
from tinyproto.cli import join as join_verb
from tinyproto.cli.client_events import CLOSING_SECONDS
from tinyproto.cli.client_folder import locked_folder
from tinyproto.errors import FederationError
from tinyproto.federation.flower.connection import BLIP_SECONDS, AwayError, TurnedAwayError
from tinyproto.federation.flower.processes import SuperNode, why_it_ended
from tinyproto.federation.journal import Journal
from tinyproto.federation.key_making import make_keys
from tinyproto.federation.keys import ClientKeys

pytestmark = pytest.mark.flower
slow = pytest.mark.flower_slow


class CountingProxy:
    """Passes connections on to a port, and counts; another way of counting than ours."""

    def __init__(self, port: int) -> None:
        self.counts = {"up": 0, "down": 0}
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                with near, contextlib.suppress(OSError):
                    near.settimeout(1)
                    self.counts["up"] += len(near.recv(65536))
                continue
            for source, sink, way in ((near, far, "up"), (far, near, "down")):
                threading.Thread(target=self._pass_on, args=(source, sink, way), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.counts[way] += len(data)
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listening.close()


def no_more_than(size: int) -> Callable[[], None]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path, rounds=3, quorum=0.3, deadline=25)
    yield made
    made.clean_up()


@slow
def test_a_federation_goes_on_without_those_who_fail_and_against_those_who_do_not_belong(
    federation: Federation,
) -> None:
    folder = federation.folder
    make_keys(folder / "others", 1, [])
    shutil.copytree(folder / "keys" / "client-0", folder / "unregistered")
    shutil.copy(folder / "others" / "client-0" / "client.key", folder / "unregistered" / "client.key")

    serve = federation.serve()
    federation.wait_for("waiting", 60)
    proxy = CountingProxy(federation.port)
    counted = federation.join(0, server=f"localhost:{proxy.port}")
    full = federation.join(1, prepare=no_more_than(30_000))
    silent = federation.join(2)
    unregistered = federation.join(0, "--keys", "unregistered", "--folder", "clients/unregistered")
    foreign = federation.join(0, "--keys", "others/client-0", "--folder", "clients/foreign")

    assert foreign.wait(60) == 2
    assert foreign.said.count("\n") == 1
    assert "its certificate is not from the authority in" in foreign.said

    federation.wait_for("concluded", 120, round=1)
    eventually(lambda: "it is not registered there" in unregistered.said, 30, unregistered.said)
    silent.signal_all(signal.SIGSTOP)
    assert serve.wait(240) == 0, federation.tail()
    silent.signal_all(signal.SIGCONT)
    assert counted.wait(90) == 0, counted.said
    proxy.close()

    assert "no disk space" in serve.said
    assert "Traceback" not in "".join(running.said for running in federation.started)
    records = {record["round"]: record for record in federation.records() if not record["closing"]}
    assert set(records) == {1, 2, 3}
    for record in records.values():
        assert "1" in record["refused"]
        assert "no disk space" in record["refused"]["1"]
    assert "no answer within 25 s" in records[3]["refused"]["2"] or "offline" in records[3]["refused"]["2"]
    assert federation.events("answered", client=0, round=3)
    joined = {event["client"] for event in federation.events("joined")}
    assert joined == {0, 1, 2}
    assert not any(part.suffix == ".partial" for part in federation.client_folder(1).rglob("*"))

    told = json.loads((federation.client_folder(0) / "socket.json").read_text())
    for way, count in proxy.counts.items():  # what a client says to a coordinator that has just left may get lost
        assert count > 40_000
        assert abs(count - told[way]) < 600
    used = federation.result()["socket_bytes_per_round"]["clients"]["0"]
    assert 0 < used["up"] * 3 < told["up"]
    for running in (full, unregistered, silent):
        running.process.send_signal(signal.SIGTERM)
        assert running.wait(40) == 130
    for running in federation.started:
        running.assert_nothing_left()


def test_a_port_in_use_ends_serve_with_a_sentence_and_leaves_nothing(federation: Federation) -> None:
    with socket.create_server(("127.0.0.1", federation.port)):
        serve = federation.serve()
        assert serve.wait(60) == 2
    assert "cannot listen on 127.0.0.1:" in serve.said
    assert "--listen HOST:PORT" in serve.said
    assert "Traceback" not in serve.said
    serve.assert_nothing_left(5)


@slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_nothing_is_left_running_however_serve_and_join_end(number: signal.Signals, federation: Federation) -> None:
    serve, join = federation.serve(), federation.join(0)
    eventually(lambda: "is connected" in join.said, 90, federation.tail())
    eventually(lambda: join.has("flwr-clientapp"), 60, federation.tail())
    assert serve.has("flwr-serverapp")
    for running in (join, serve):
        running.process.send_signal(number)
        assert running.wait(40) == (-signal.SIGKILL if number is signal.SIGKILL else 130)
        running.assert_nothing_left()
    if number is not signal.SIGKILL:
        assert "interrupted; resume with: tinyproto serve" in serve.said
        assert "run the same command to continue" in join.said


@slow
def test_a_second_client_in_the_same_folder_is_refused(federation: Federation) -> None:
    first = federation.join(0)
    eventually(lambda: "waiting for" in first.said, 30, first.said)
    second = federation.join(0)
    assert second.wait(30) == 2
    assert "another process is the client in clients/client-0" in second.said


def test_who_is_turned_away_gives_up_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    client, reason = make_session(tmp_path), TurnedAwayError("the coordinator does not take this key")
    for seconds in (1.0, 60.0, join_verb.PATIENCE_SECONDS):
        now[0] = seconds
        client._turned_away(reason)
    now[0] = 2.0 + join_verb.PATIENCE_SECONDS
    with pytest.raises(FederationError, match="h:1: the coordinator does not take this key"):
        client._turned_away(reason)


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Nobody answers, and time passes in waiting only: the moments at which somebody looked."""
    now, looked = [0.0], list[float]()

    def nobody(*_: object) -> None:
        looked.append(now[0])
        if now[0] > 100_000:
            raise AssertionError("it waits for ever")
        raise AwayError("Connection refused")

    def wait(_: join_verb.ClientSession, seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(join_verb, "reach", nobody)
    monkeypatch.setattr(join_verb.ClientSession, "_wait", wait)
    return looked


def test_a_client_waits_for_ever(tmp_path: Path, away: list[float]) -> None:
    with pytest.raises(AssertionError, match="it waits for ever"):
        make_session(tmp_path).run()
    assert away[-1] > 100_000


def answered(client: join_verb.ClientSession, round_number: int, kind: str = "update") -> None:
    Journal(client.events.journal.file).tell("answered", round=round_number, rounds=3, kind=kind, bytes=7)
    client.events.show()


def test_after_its_last_round_a_client_does_not_wait_for_ever(tmp_path: Path, away: list[float]) -> None:
    client = make_session(tmp_path)
    answered(client, 3)
    assert client.run() == 3
    assert client.missed_the_end
    assert CLOSING_SECONDS <= away[-1] <= CLOSING_SECONDS + join_verb.LONGEST_PAUSE


@pytest.mark.parametrize(("round_number", "kind"), [(2, "update"), (3, "evaluation"), (0, "hello")])
def test_before_its_last_round_is_done_it_does(round_number: int, kind: str, tmp_path: Path, away: list[float]) -> None:
    client = make_session(tmp_path)
    answered(client, round_number, kind)
    with pytest.raises(AssertionError, match="it waits for ever"):
        client.run()
    assert not client.missed_the_end
    assert away[-1] > 100_000


def test_nor_when_it_is_started_again_after_it(tmp_path: Path, away: list[float]) -> None:
    answered(make_session(tmp_path), 3)
    again = make_session(tmp_path)
    assert again.run() == 3
    assert again.missed_the_end
    assert CLOSING_SECONDS <= away[-1] <= CLOSING_SECONDS + join_verb.LONGEST_PAUSE


def test_who_has_seen_the_end_waits_for_another_federation_and_says_so(
    tmp_path: Path, away: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    client = make_session(tmp_path)
    answered(client, 3)
    Journal(client.events.journal.file).tell("finished", rounds=3)
    with pytest.raises(AssertionError, match="it waits for ever"):
        make_session(tmp_path, quiet=False).run()
    said = capsys.readouterr().out
    assert "the federation of client 0 is over after 3 rounds; waiting for another one at h:1" in said


def nobody_there(*_: object) -> None:
    raise AwayError("Connection refused")


class CutOff:
    """A SuperNode that was connected, and tries in vain to be so again."""

    is_connected = True

    def wait(self, seconds: float) -> bool:
        time.sleep(seconds)
        return False

    def stop(self) -> None:
        pass


def test_a_supernode_that_tries_for_ever_does_not_keep_a_client_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = only_waiting_takes_time(monkeypatch)
    monkeypatch.setattr(join_verb, "SuperNode", lambda *_: CutOff())
    monkeypatch.setattr(join_verb, "reach", nobody_there)
    client = make_session(tmp_path)
    client.relay.unanswered_since = now[0]
    answered(client, 3)
    client._run_node()
    assert client.missed_the_end
    assert CLOSING_SECONDS + BLIP_SECONDS <= now[0] <= CLOSING_SECONDS + BLIP_SECONDS + 5


@pytest.mark.parametrize(
    ("said", "connected", "answered"),
    [
        ("SuperNode ID: 1\nReceiving: train\nSent successfully", True, True),
        ("SuperNode ID: 1\nSent successfully\nReceiving: train", True, False),
        ("Connection attempt failed, retrying in 1 s", False, False),
        ("", False, False),
    ],
)
def test_the_log_says_whether_a_supernode_is_connected_and_has_answered(
    said: str, connected: bool, answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SuperNode, "said", lambda _: said)
    node = SuperNode.__new__(SuperNode)
    assert (node.is_connected, node.has_answered) == (connected, answered)


def test_a_client_s_folder_is_its_owner_s_alone(tmp_path: Path) -> None:
    for folder in (tmp_path / "new" / "client", tmp_path / "old"):
        if folder.name == "old":
            folder.mkdir(mode=0o755)
        with locked_folder(folder):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("status", "said", "kind"),
    [
        (1, "Exit Code: 305\nFailed to initialize the connection\n[code: 2004] Failed to activate", TurnedAwayError),
        (0, "SuperNode terminated gracefully.", TurnedAwayError),
        (1, "Exit Code: 305\nFailed to initialize the connection\nServer disconnected", AwayError),
        (1, "RuntimeError: SuperNode Runtime HTTP API failed to start.", AwayError),
        (137, "", AwayError),
    ],
)
def test_why_a_supernode_ended_is_known_from_its_status_and_its_log(
    status: int, said: str, kind: type[Exception]
) -> None:
    assert type(why_it_ended(status, said, Path("log"))) is kind


@pytest.mark.parametrize("content", [b"", b"garbage"])
def test_a_damaged_client_key_is_named_before_anything_is_started(content: bytes, tmp_path: Path) -> None:
    make_keys(tmp_path, 1, [])
    (tmp_path / "client-0" / "client.key").write_bytes(content)
    with pytest.raises(FederationError, match=r"client\.key is not a valid private key; .*ask the coordinator"):
        ClientKeys.open(tmp_path / "client-0")


def test_everything_that_is_started_carries_the_mark(tmp_path: Path) -> None:
    """Else the tests above would find nothing left where something is."""
    running = Running(tmp_path, "doctor", "doctor")
    assert running.process.pid in running.all()
    assert running.wait(60) == 0
