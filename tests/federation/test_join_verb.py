"""Checks of `tinyproto join` before it connects, and its messages while it runs."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("flwr")

from support_cli import in_process
from support_federation import CONFIG, Running, eventually, free_port
from support_join import make_session, only_waiting_takes_time
from support_members import write_arrays
from tinyproto.cli import join as join_verb
from tinyproto.errors import FederationError
from tinyproto.federation import processes
from tinyproto.federation.flower.connection import BLIP_SECONDS, AwayError, Relay, TurnedAwayError, Watch
from tinyproto.federation.flower.processes import SuperNode, program
from tinyproto.federation.journal import Journal
from tinyproto.federation.key_making import make_keys
from tinyproto.federation.member import JoinFile
from tinyproto.federation.refusals import ADVICE, NEEDS_A_RESTART, REMEDIES, WORDS
from tinyproto.tracking.lock import locked

pytestmark = pytest.mark.flower

NETS = "from torch import nn\n\n\ndef flat(proto_dim):\n    return nn.Linear(36, proto_dim)\n\n\nwidth = 7\n"
JOIN = ("join", "--server", "h:1", "--client-id", "0")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keys, data good and bad, and nobody at the address, for whom it is not waited here."""

    def nobody(*_: object) -> None:
        raise FederationError("it would wait here")

    monkeypatch.setattr(join_verb, "reach", nobody)
    make_keys(tmp_path / "keys", 1, [])
    (tmp_path / "trial.yaml").write_text(CONFIG.format(rounds=3, quorum=0.5, deadline=60))
    (tmp_path / "nets.py").write_text(NETS)
    write_arrays(tmp_path / "own.npz", 0)
    (tmp_path / "broken.npz").write_bytes((tmp_path / "own.npz").read_bytes()[:300])
    np.savez(tmp_path / "test.npz", x_test=np.zeros((3, 6, 6), np.uint8), y_test=np.arange(3))
    (tmp_path / "empty").mkdir()
    for part, side in (("train", 6), ("test", 7)):
        (tmp_path / "uneven" / part / "ant").mkdir(parents=True)
        Image.new("L", (side, side)).save(tmp_path / "uneven" / part / "ant" / "1.png")
    return tmp_path


OWN = ("--data", "own.npz")
GOOD = (*OWN, "--model", "small_cnn_a")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*OWN, "--model", "small_cnn_aa"), "unknown model 'small_cnn_aa', did you mean 'small_cnn_a'?"),
        ((*OWN, "--model", "no.such:thing"), "model 'no.such:thing': importing 'no.such' failed"),
        ((*OWN, "--model", "nets:flut"), "'nets' has no 'flut', did you mean 'flat'?"),
        ((*OWN, "--model", "nets:width"), "model 'nets:width' is int, not a factory or a network"),
        ((*GOOD, "--device", "gpu"), "--device: unsupported device 'gpu'; expected auto, cpu, cuda or cuda:N"),
        ((*GOOD, "--device", "cuda:99"), "--device: missing device 'cuda:99'; torch finds "),
        (("--model", "small_cnn_a"), "give either --data"),
        (("--data", "nowhere", "--model", "small_cnn_a"), "--data: nowhere does not exist"),
        (("--data", "empty", "--model", "small_cnn_a"), "empty must hold the folder train"),
        (("--data", "broken.npz", "--model", "small_cnn_a"), "broken.npz is damaged or not an .npz file"),
        (("--data", "test.npz", "--model", "small_cnn_a"), "test.npz must hold the arrays x_train and y_train"),
        (("--data", "uneven", "--model", "small_cnn_a"), "give --image-size"),
        ((*GOOD, "--image-size", "8"), "--image-size is for a folder of images, and own.npz is a file"),
        (("--share", "trial.yaml", "--image-size", "8", "--model", "small_cnn_a"), "--image-size goes with --data"),
    ],
)
def test_what_is_wrong_here_is_said_before_anybody_is_waited_for(
    arguments: tuple[str, ...], words: str, site: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert in_process(monkeypatch, site, *JOIN, *arguments) == 2
    shown, said = capsys.readouterr()
    assert said.startswith("tinyproto: error: client 0: ")
    assert words in said
    assert "train.device" not in said
    assert len(said.splitlines()) == 1
    assert "waiting" not in shown
    assert not (site / "clients").exists()


def test_a_share_that_nobody_has_is_no_share(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_keys(site / "keys", 4, [])
    arguments = ("join", "--server", "h:1", "--client-id", "3", "--share", "trial.yaml", "--model", "small_cnn_a")
    assert in_process(monkeypatch, site, *arguments) == 2
    said = capsys.readouterr().err
    assert said == "tinyproto: error: client 3: --share: the partition has clients 0 … 2, not 3\n"


@pytest.mark.parametrize(
    "arguments",
    [
        GOOD,
        (*OWN, "--model", "nets:flat"),
        ("--share", "trial.yaml", "--model", "small_cnn_a", "--device", "auto"),
        ("--data", "uneven", "--image-size", "8", "--model", "small_cnn_a"),
    ],
)
def test_what_is_right_is_written_down_and_the_coordinator_is_looked_for(
    arguments: tuple[str, ...], site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_process(monkeypatch, site, *JOIN, *arguments) == 2
    assert capsys.readouterr().err == "tinyproto: error: client 0: it would wait here\n"
    join = JoinFile.read(site / "clients" / "client-0")
    assert join.model == arguments[arguments.index("--model") + 1]
    assert (join.data.path is None) == ("--share" in arguments)
    assert join.data.image_size == (8 if "--image-size" in arguments else None)


def test_a_folder_in_use_is_no_reason_to_take_another_folder(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = site / "clients" / "client-0"
    folder.mkdir(parents=True)
    with locked(folder / ".lock", FederationError("not here")):
        assert in_process(monkeypatch, site, *JOIN, *GOOD) == 2
    said = capsys.readouterr().err
    assert "client 0: another process is the client in clients/client-0; stop it first, or join as another" in said
    assert not (folder / "join.json").exists()


def test_what_goes_wrong_later_is_no_fault_of_the_folder(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reset(*_: object) -> None:
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))

    monkeypatch.setattr(join_verb.ClientSession, "run", reset)
    with pytest.raises(ConnectionResetError):
        in_process(monkeypatch, site, *JOIN, *GOOD)


def test_a_machine_without_a_free_port_is_not_told_of_its_disk(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def too_many(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(join_verb, "reach", lambda *_: {"up": 0, "down": 0})
    monkeypatch.setattr(processes, "socket", SimpleNamespace(socket=too_many))
    assert in_process(monkeypatch, site, *JOIN, *GOOD) == 2
    said = capsys.readouterr().err
    assert said == "tinyproto: error: client 0: cannot listen on this machine's loopback: Too many open files\n"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("clients", "cannot write to clients/client-0: "),
        ("clients/client-0", "--folder: clients/client-0 is a file; name a folder"),
        ("clients/client-0/flower", "client-0/flower: File exists"),
    ],
)
def test_a_folder_that_cannot_be_made_is_named(
    name: str, words: str, site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / name).parent.mkdir(parents=True, exist_ok=True)
    (site / name).write_text("a file")
    monkeypatch.setattr(join_verb, "reach", lambda *_: {"up": 0, "down": 0})
    assert in_process(monkeypatch, site, *JOIN, *GOOD) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 1


def test_without_flower_s_commands_the_way_to_them_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(name: str, path: str) -> None:
        return None

    monkeypatch.setattr(shutil, "which", nowhere)
    with pytest.raises(FederationError) as error:
        program("flower-supernode")
    assert str(error.value) == (
        f"flower-supernode is not installed beside {sys.executable}; in an environment of its own, in the folder of "
        'the clone: pip install --constraint constraints.txt --editable ".[flower]"'
    )


def test_with_nohup_a_client_outlives_its_terminal(site: Path) -> None:
    def ignore_hangup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    arguments = ("join", "--server", f"localhost:{free_port()}", "--client-id", "0", *GOOD)
    join = Running(site, "join", *arguments, prepare=ignore_hangup)
    eventually(lambda: "client 0: waiting for localhost:" in join.said, 60, "it waits")
    join.process.send_signal(signal.SIGHUP)
    with pytest.raises(AssertionError, match="it still runs"):
        join.wait(2)
    join.process.send_signal(signal.SIGTERM)
    assert join.wait(30) == 130, join.said


class Coordinator:
    """A coordinator that can be reached, or not, and a relay to it."""

    def __init__(self) -> None:
        self.unanswered_since: float | None = None
        self.there = True
        self.tried = 0
        self.watch = Watch(cast("Relay", self), self._reach)

    def _reach(self) -> None:
        self.tried += 1
        if not self.there:
            raise AwayError("Connection refused")


def test_a_connection_that_breaks_for_a_moment_is_not_reported() -> None:
    coordinator = Coordinator()
    coordinator.unanswered_since = 0.0
    assert coordinator.watch.why_away(0.0) is None
    coordinator.unanswered_since = None
    assert coordinator.watch.why_away(BLIP_SECONDS + 1) is None
    assert coordinator.tried == 0


def test_a_coordinator_is_away_once_nobody_answers_and_back_when_somebody_does_again() -> None:
    coordinator = Coordinator()
    coordinator.unanswered_since, coordinator.there = 0.0, False
    assert coordinator.watch.why_away(0.0) is None
    assert coordinator.watch.why_away(BLIP_SECONDS) == "Connection refused"
    away = [coordinator.watch.why_away(BLIP_SECONDS + seconds) for seconds in (0.5, 3, 60)]
    assert away == 3 * ["Connection refused"]
    assert coordinator.tried == 1
    coordinator.unanswered_since = None
    assert coordinator.watch.why_away(100.0) is None


def test_a_slow_answer_is_no_absence_and_is_looked_into_now_and_then() -> None:
    coordinator = Coordinator()
    coordinator.unanswered_since = 0.0
    assert [coordinator.watch.why_away(seconds) for seconds in (0.0, 6.0, 10.0, 12.0)] == 4 * [None]
    assert coordinator.tried == 2
    coordinator.there = False
    assert [coordinator.watch.why_away(seconds) for seconds in (13.0, 18.0)] == [None, "Connection refused"]


class Node:
    """A SuperNode that is connected; what happens to it comes by itself, one thing every half second."""

    is_connected = True
    has_answered = True
    status = 1
    happens: tuple[Callable[[], object], ...] = ()

    def __init__(self, *_: object) -> None:
        self.log = Path("log")
        self.left = list(self.happens)
        self.text = "SuperNode ID: 1\n"

    def wait(self, seconds: float) -> bool:
        time.sleep(seconds)
        if not self.left:
            return True
        self.left.pop(0)()
        return False

    def said(self) -> str:
        return self.text if self.left else f"{self.text}Exit Code: 305"

    def stop(self) -> None:
        pass


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> join_verb.ClientSession:
    """Client 0; time passes in waiting only."""
    only_waiting_takes_time(monkeypatch, start=1000.0)
    monkeypatch.setattr(join_verb, "SuperNode", Node)
    return make_session(tmp_path, quiet=False)


def told(client: join_verb.ClientSession, event: str, **facts: object) -> Callable[[], None]:
    return lambda: Journal(client.events.journal.file).tell(event, **facts)


def test_a_connected_client_says_once_that_it_waits_and_once_that_it_is_back(
    client: join_verb.ClientSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node()

    def away(*_: object) -> None:
        raise AwayError("Connection refused")

    def unanswered() -> None:
        client.relay.unanswered_since = time.monotonic()

    def answered() -> None:
        client.relay.unanswered_since = None

    def pass_time() -> None:
        time.sleep(10.0)

    once = (unanswered, pass_time, pass_time, pass_time, answered)
    node.left = [*once, pass_time, *once, pass_time]
    monkeypatch.setattr(join_verb, "reach", away)
    monkeypatch.setattr(join_verb, "SuperNode", lambda *_: node)
    with pytest.raises(AwayError, match="the connection broke"):
        client._run_node()
    connected, waiting = "client 0 is connected to h:1", "client 0: waiting for h:1: Connection refused"
    assert capsys.readouterr().out.splitlines() == [connected, waiting, connected, waiting, connected]


@pytest.mark.parametrize("code", sorted(NEEDS_A_RESTART))
def test_what_only_another_command_mends_ends_a_client_once_it_was_heard(
    code: str, client: join_verb.ClientSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = told(client, "refused", code=code, reason="it does not fit")
    monkeypatch.setattr(Node, "happens", (refused, *10 * (told(client, "never mind"),)))
    began = time.monotonic()
    with pytest.raises(FederationError) as error:
        client._run_node()
    assert str(error.value) == f"it does not fit; {REMEDIES[code]}"
    assert "restart it with" in str(error.value)
    assert time.monotonic() - began >= join_verb.HEARD_SECONDS
    assert "does not fit" not in capsys.readouterr().out


@pytest.mark.parametrize("code", sorted(WORDS.keys() - NEEDS_A_RESTART))
def test_of_other_refusals_it_says_once_what_to_do_and_stays(
    code: str, client: join_verb.ClientSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = told(client, "refused", code=code, reason="it does not fit")
    joined = told(client, "joined", federation="0123456789")
    monkeypatch.setattr(Node, "happens", (refused, refused, refused, joined, refused, joined))
    with pytest.raises(AwayError, match="the connection broke"):
        client._run_node()
    remedy = f"; {REMEDIES[code]}" if code in REMEDIES else ""
    no, yes = f"client 0: refused: it does not fit{remedy}", "client 0: joined federation 01234567"
    assert capsys.readouterr().out.splitlines()[1:] == [no, yes, no, yes]


def test_in_each_round_it_says_once_why_the_coordinator_refused_its_update(
    client: join_verb.ClientSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "the coordinator refused this client's update: rows: norm 1e+16 of row 1 is absurd"
    happens = []
    for number in (8, 9):
        refused = told(client, "refused", code="diverged", round=number, reason=reason)
        happens += [refused, told(client, "answered", round=number + 1, rounds=20, kind="update", bytes=7)]
    monkeypatch.setattr(Node, "happens", tuple(happens))
    with pytest.raises(AwayError, match="the connection broke"):
        client._run_node()
    said = [f"client 0: round {number}: {reason}. What to do: {ADVICE['diverged']}" for number in (8, 9)]
    assert [line for line in capsys.readouterr().out.splitlines() if "refused" in line] == said


def test_every_refusal_that_ends_a_client_says_what_to_do() -> None:
    assert NEEDS_A_RESTART <= REMEDIES.keys() <= WORDS.keys()


def test_who_is_turned_away_after_an_absence_tries_again_for_as_long_as_it_says(
    client: join_verb.ClientSession,
) -> None:
    reason = TurnedAwayError("the coordinator does not take this key")
    client._turned_away(reason)
    time.sleep(join_verb.PATIENCE_SECONDS - 10)
    client._away("Connection refused")
    client._turned_away(reason)
    time.sleep(join_verb.PATIENCE_SECONDS - 1)
    client._turned_away(reason)
    time.sleep(2)
    with pytest.raises(FederationError, match="h:1: the coordinator does not take this key"):
        client._turned_away(reason)


def test_a_node_of_these_tests_has_what_is_asked_of_a_supernode() -> None:
    for name in ("is_connected", "has_answered", "stop"):
        assert hasattr(SuperNode, name)
        assert hasattr(Node, name)
