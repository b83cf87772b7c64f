"""`tinyproto join`: a client of a federation on this device, until that is over or somebody ends it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyproto.builder import resolve_device
from tinyproto.cli.interrupt import StopOnInterrupt
from tinyproto.cli.progress import LoadingBar
from tinyproto.cli.terminal import Output
from tinyproto.config import load_config
from tinyproto.errors import ConfigError, DataError, FederationError, Interrupted, TinyProtoError
from tinyproto.federation.certificates import ClientKeys
from tinyproto.federation.client_data import OwnDataSection, ShareSection, read_samples
from tinyproto.federation.files import writing
from tinyproto.federation.flower.connection import AwayError, Line, TurnedAwayError, reach, why_it_ended
from tinyproto.federation.flower.processes import SuperNode, split_address
from tinyproto.federation.flower.socket_bytes import Relay
from tinyproto.federation.journal import Follower
from tinyproto.federation.member import JoinFile
from tinyproto.federation.refusal import ADVICE, NEEDS_A_RESTART, REMEDIES
from tinyproto.models import find_model
from tinyproto.report.words import counted, size
from tinyproto.tracking.lock import locked

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0
STEADY_SECONDS = 60.0
"""A connection that lasted so long was a good one: pauses begin anew."""

LAST_ANSWER_SECONDS = 60.0
"""How long a client stays, at most, after its last answer."""

CLOSING_SECONDS = 600.0
"""How long a coordinator that is away is waited for after the last round; what is left then is a last evaluation."""

HEARD_SECONDS = 5.0
"""How long a client that ends stays after its refusal was sent; of who leaves at once, Flower keeps no answer."""

PATIENCE_SECONDS = 150.0
"""How long a client that is turned away tries again; after a kill -9 its key is free again within about a minute."""


def join_federation(server: str, own: Own, output: Output) -> None:
    """Be a client of the federation at this address, whether it is there already or comes later."""
    host, port = split_address(server, "--server")
    with _named(own.client):
        keys = ClientKeys.open(own.keys)
        join = join_file(own)
        check(own, join, output)
    with _named(own.client), _alone(own.folder):
        write(own.folder / "join.json", join)
        with StopOnInterrupt(signal.SIGTERM, signal.SIGHUP) as stop:
            relay = Relay((host, port), own.folder / "socket.json")
            stay = Stay(own, (host, port), server, keys, relay, stop, output)
            try:
                rounds = stay.last()
            finally:
                relay.close()
    if rounds is None:
        raise Interrupted(f"the state of client {own.client} is in {own.folder}; the same command goes on")
    over = f"the federation is over after {counted(rounds, 'round')}"
    if stay.missed_the_end:
        over = (
            f"{counted(rounds, 'round')} are done, and {server} is away: taken for the end, without a last evaluation"
        )
    output.say(f"client {own.client}: {over}; its state is in {own.folder}")
    output.result({
        "client": own.client, "folder": str(own.folder), "rounds": rounds, "missed_the_end": stay.missed_the_end,
        "socket_bytes": relay.counts,
    })  # fmt: skip


class Stay:
    """One client's stay: its SuperNode is started again until somebody wants it to stop."""

    def __init__(
        self, own: Own, address: tuple[str, int], server: str, keys: ClientKeys, relay: Relay, stop: StopOnInterrupt,
        output: Output,
    ) -> None:  # fmt: skip
        self.own = own
        self.address = address
        self.server = server
        self.keys = keys
        self.relay = relay
        self.stop = stop
        self.output = output
        self.journal = Follower(own.folder / "progress.jsonl")
        self._said = ""
        self._refused: tuple[str, str] | None = None  # code and reason, until it takes part
        self._turned_away_since: float | None = None
        self._away_since: float | None = None
        self._last_round: int | None = None  # once it is done
        self._rounds: int | None = None
        self.missed_the_end = False

    def last(self) -> int | None:
        """Until the federation is over: its rounds. None where a stop was wanted before."""
        self._look_back()
        pause = FIRST_PAUSE
        while not self.stop.wanted and self._rounds is None:
            began = time.monotonic()
            try:
                self._knock()
                self._be_there()
            except AwayError as reason:
                self._away(str(reason))
            except TurnedAwayError as reason:
                self._turned_away(reason)
            pause = FIRST_PAUSE if time.monotonic() - began > STEADY_SECONDS else pause
            if self._rounds is None:
                self._wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        return self._rounds

    def _knock(self) -> None:
        """Whether the coordinator is there; what that sends counts, too."""
        self.relay.add(reach(self.address, self.keys.authority))

    def _be_there(self) -> None:
        """One SuperNode from start to end; why it ended is raised, unless nothing is left to do."""
        node = SuperNode(self.own.folder, self.server, self.keys, self.own.client, self.relay.proxy)
        line = Line(node.process.said, self._knock)
        connected = False
        try:
            while not node.process.wait(0.5):
                if self.stop.wanted:
                    return
                if not connected and node.is_connected:
                    connected, self._turned_away_since, self._away_since = True, None, None
                    self._say_connected()
                self._show()
                if self._rounds is not None:
                    self._see_off(node)
                    return
                self._end_if_refused(node)
                if connected:
                    self._look_for_the_coordinator(line)
                    if self.missed_the_end:
                        return
        finally:
            node.stop()
        raise why_it_ended(node.process.said(), node.process.log)

    def _see_off(self, node: SuperNode) -> None:
        """The last answer is made: stay until the coordinator, too, is done; of who leaves, Flower keeps no answer."""
        until = time.monotonic() + LAST_ANSWER_SECONDS
        while time.monotonic() < until and not self.stop.wanted and not node.process.wait(0.5):
            if node.has_answered and node.is_cut_off:
                return

    @property
    def _needs_a_restart(self) -> bool:
        return self._refused is not None and self._refused[0] in NEEDS_A_RESTART

    def _end_if_refused(self, node: SuperNode) -> None:
        """An error where only another command line helps, once the coordinator has heard of it."""
        if self._refused is None or not self._needs_a_restart:
            return
        until = time.monotonic() + LAST_ANSWER_SECONDS
        while time.monotonic() < until and not self.stop.wanted and not node.process.wait(0.5):
            if node.has_answered:
                self._wait(HEARD_SECONDS)
                break
        code, reason = self._refused
        raise FederationError(f"{reason}; {REMEDIES[code]}")

    @property
    def _patience(self) -> float | None:
        """For how many seconds a coordinator that is away is waited for; None: for ever."""
        asked = None if self.own.give_up is None else 60.0 * self.own.give_up
        closing = None if self._last_round is None else CLOSING_SECONDS
        return min((limit for limit in (asked, closing) if limit is not None), default=None)

    def _look_for_the_coordinator(self, line: Line) -> None:
        """Whether it is there still, or is there again."""
        reason = line.why_dead(time.monotonic())
        if reason is not None:
            self._away(reason)
        elif self._away_since is not None:
            self._away_since = None
            self._say_connected()

    def _away(self, reason: str) -> None:
        """Wait, or not any longer: after the last round that is an end like another, before it an error."""
        now = time.monotonic()
        self._turned_away_since = None
        if self._away_since is None:
            self._away_since = now
            self._say(f"waiting for {self.server}: {reason}")
        limit = self._patience
        if limit is None or now - self._away_since < limit:
            return
        if self._last_round is not None:
            self._rounds, self.missed_the_end = self._last_round, True
        else:
            raise FederationError(
                f"{self.server} has been away for {counted(int(limit // 60), 'minute')} ({reason}); --give-up says how "
                f"long to wait, and the same command goes on from {self.own.folder}"
            )

    def _turned_away(self, reason: TurnedAwayError) -> None:
        now = time.monotonic()
        self._away_since = None
        self._turned_away_since = now if self._turned_away_since is None else self._turned_away_since
        if now - self._turned_away_since > PATIENCE_SECONDS:
            raise FederationError(f"{self.server}: {reason}")
        self._say_once(f"{reason}; trying again for {PATIENCE_SECONDS:.0f} s")

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.stop.wanted:
            time.sleep(0.1)

    def _show(self) -> None:
        for event in self.journal.new():
            if event["event"] == "finished":
                self._rounds = int(event["rounds"])
                continue
            self._last_round = _last_round(event, self._last_round)
            before, self._refused = self._refused, _refused(event)
            if self._refused is None or (self._refused != before and not self._needs_a_restart):
                self._say(_words(event))

    def _look_back(self) -> None:
        """A client that is started again may have done its last round, or have seen the end already."""
        for event in (past := self.journal.past()):
            self._last_round = _last_round(event, self._last_round)
        if past and past[-1]["event"] == "finished":
            rounds = counted(int(past[-1]["rounds"]), "round")
            self.output.say(
                f"the federation that client {self.own.client} took part in is over after {rounds}; this waits for "
                f"another at {self.server}, and Ctrl-C ends it"
            )

    def _say(self, words: str) -> None:
        """Who speaks is said too: several clients may share a terminal."""
        self._said = words
        self.output.say(f"client {self.own.client}: {words}")

    def _say_once(self, words: str) -> None:
        if words != self._said:
            self._say(words)

    def _say_connected(self) -> None:
        self._said = ""
        self.output.say(f"client {self.own.client} is connected to {self.server}")


def _refused(event: dict[str, Any]) -> tuple[str, str] | None:
    """The code and the sentence of a refusal."""
    return (str(event.get("code")), str(event["reason"])) if event["event"] == "refused" else None


def _last_round(event: dict[str, Any], before: int | None) -> int | None:
    """The federation's rounds, where this event says that the client has done the last, or it had already."""
    match event:
        case {"event": "finished"}:
            return None
        case {"event": "answered", "kind": "update", "round": done, "rounds": rounds}:
            return int(rounds) if done == rounds else None
    return before


def _words(event: dict[str, Any]) -> str:
    """What this client's own journal tells."""
    match event.get("event"):
        case "joined":
            return f"takes part in federation {event['federation'][:8]}"
        case "answered":
            return f"round {event['round']}: answered with {size(event['bytes'])} ({event['kind']})"
        case "refused" if event.get("code") in ADVICE:
            when = f"round {event['round']}: " if "round" in event else ""
            return f"{when}{str(event['reason']).rstrip('.')}. What to do: {ADVICE[event['code']]}"
        case "refused":
            remedy = REMEDIES.get(str(event.get("code")))
            return f"refused: {event['reason']}{f'; {remedy}' if remedy else ''}"
    return f"failed: {str(event.get('reason', event)).strip().splitlines()[-1]}"


@contextmanager
def _named(client: int) -> Iterator[None]:
    """What goes wrong is said of this client."""
    try:
        yield
    except Interrupted:
        raise
    except TinyProtoError as error:
        raise FederationError(f"client {client}: {error}") from error


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """The folder is this process's and its user's; a second client in it would spoil the first one's state."""
    with writing(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(PermissionError):  # another user's, who decides
            folder.chmod(0o700)
    words = (
        f"another process is the client in {folder}; end that first, or join as another client, with --client-id, "
        "--keys and --folder of its own"
    )
    with locked(folder / ".lock", FederationError(words)):
        yield


@dataclass(frozen=True)
class Own:
    """What is the client's own: its number, keys, samples, network and folder."""

    client: int
    keys: Path
    data: Path | None
    share: Path | None
    image_size: int | None
    model: str
    device: str
    folder: Path
    give_up: int | None = None  # minutes that a coordinator may be away


def join_file(own: Own) -> JoinFile:
    """What the command line says, as the client's own processes will read it."""
    if (own.data is None) == (own.share is None):
        raise ConfigError(
            "either --data says where this client's samples are, or --share a config that splits a dataset"
        )
    if own.share is not None:
        if own.image_size is not None:
            raise ConfigError(f"--image-size goes with --data; with --share {own.share} says it, as data.image_size")
        model = load_config(own.share, []).model
        data = OwnDataSection(share=ShareSection(data=model.data, partition=model.partition))
    else:
        assert own.data is not None
        if not own.data.exists():
            raise ConfigError(f"--data: there is nothing at {own.data}")
        if own.image_size is not None and not own.data.is_dir():
            raise ConfigError(f"--image-size is for a folder of images, and {own.data} is a file")
        data = OwnDataSection(path=str(own.data.resolve()), image_size=own.image_size)
    return JoinFile(data=data, model=own.model, device=own.device)


def check(own: Own, join: JoinFile, output: Output) -> None:
    """What can be seen before anybody is waited for; whether it fits shows once the terms are known."""
    resolve_device(own.device, "--device")
    find_model(own.model)
    with LoadingBar(output.console) as bar:
        try:
            read_samples(join.data, own.client, bar)
        except DataError as error:
            said = str(error) if own.share else str(error).replace("set data.image_size", "give --image-size")
            raise DataError(f"{'--share' if own.share else '--data'}: {said}") from error


def write(file: Path, join: JoinFile) -> None:
    """Where the client's processes look for it."""
    try:
        file.write_text(join.model_dump_json(indent=1), encoding="utf-8")
    except OSError as error:
        raise FederationError(f"cannot write {file}: {error.strerror or error}") from error
