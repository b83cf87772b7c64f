"""`tinyproto join`: a client of a federation on this device, until the last round or Ctrl-C."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyproto.cli.interrupt import StopOnInterrupt
from tinyproto.cli.terminal import Output
from tinyproto.config import load_config
from tinyproto.errors import ConfigError, FederationError, Interrupted
from tinyproto.flower.arrival import AwayError, TurnedAwayError, is_cut_off, reach, why_it_ended
from tinyproto.flower.certificates import ClientKeys
from tinyproto.flower.files import locked, writing
from tinyproto.flower.follower import Follower
from tinyproto.flower.member import JoinFile
from tinyproto.flower.processes import SuperNode, split_address
from tinyproto.flower.socket_bytes import Relay
from tinyproto.report.words import counted, size

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0
STEADY_SECONDS = 60.0
"""A connection that lasted so long was a good one: pauses begin anew."""

LAST_ANSWER_SECONDS = 60.0
"""How long a client stays, at most, after its last answer."""

CLOSING_SECONDS = 600.0
"""How long a coordinator that is away is waited for after the last round; what is left then is a last evaluation."""

PATIENCE_SECONDS = 150.0
"""How long a client that is turned away tries again; after a kill -9 its key is free again within about a minute."""


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


def join_federation(server: str, own: Own, output: Output) -> None:
    """Be a client of the federation at this address, whether it is there already or comes later."""
    host, port = split_address(server, "--server")
    keys = ClientKeys.open(own.keys)
    with _alone(own.folder):
        _write_join_file(own)
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
    output.say(f"{over}; the client's state is in {own.folder}")
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
                self.relay.add(reach(self.address, self.keys.authority))
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

    def _be_there(self) -> None:
        """One SuperNode from start to end; why it ended is raised, unless nothing is left to do."""
        node = SuperNode(self.own.folder, self.server, self.keys, self.own.client, self.relay.proxy)
        connected = False
        try:
            while not node.process.wait(0.5):
                if self.stop.wanted:
                    return
                if not connected and node.is_connected:
                    connected, self._turned_away_since, self._away_since = True, None, None
                    self._say_once(f"client {self.own.client} is connected to {self.server}")
                self._show()
                if self._rounds is not None:
                    self._see_off(node)
                    return
                if connected and self._patience is not None:
                    self._look_for_the_coordinator(node)
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
    def _patience(self) -> float | None:
        """For how many seconds a coordinator that is away is waited for; None: for ever."""
        asked = None if self.own.give_up is None else 60.0 * self.own.give_up
        closing = None if self._last_round is None else CLOSING_SECONDS
        return min((limit for limit in (asked, closing) if limit is not None), default=None)

    def _look_for_the_coordinator(self, node: SuperNode) -> None:
        """A SuperNode that is connected tries for ever to be so again."""
        if is_cut_off(node.process.said()):
            self._away("the connection broke")
        else:
            self._away_since = None

    def _away(self, reason: str) -> None:
        """Wait, or not any longer: after the last round that is an end like another, before it an error."""
        now = time.monotonic()
        self._away_since = now if self._away_since is None else self._away_since
        limit = self._patience
        if limit is None or now - self._away_since < limit:
            self._say_once(f"waiting for {self.server}: {reason}")
        elif self._last_round is not None:
            self._rounds, self.missed_the_end = self._last_round, True
        else:
            raise FederationError(
                f"{self.server} has been away for {counted(int(limit // 60), 'minute')} ({reason}); --give-up says how "
                f"long to wait, and the same command goes on from {self.own.folder}"
            )

    def _turned_away(self, reason: TurnedAwayError) -> None:
        now = time.monotonic()
        self._away_since = None
        self._turned_away_since = self._turned_away_since or now
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
            self.output.say(_words(event))

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

    def _say_once(self, words: str) -> None:
        if words != self._said:
            self.output.say(words)
            self._said = words


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
        case "refused":
            return f"refused: {event['reason']}"
    return f"failed: {str(event.get('reason', event)).strip().splitlines()[-1]}"


def _write_join_file(own: Own) -> None:
    if (own.data is None) == (own.share is None):
        raise ConfigError(
            "either --data says where this client's samples are, or --share a config that splits a dataset"
        )
    data: dict[str, Any]
    if own.share is not None:
        model = load_config(own.share, []).model
        share = {"data": model.data.model_dump(mode="json"), "partition": model.partition.model_dump(mode="json")}
        data = {"share": share}
    else:
        assert own.data is not None
        if not own.data.exists():
            raise ConfigError(f"--data: there is nothing at {own.data}")
        data = {"path": str(own.data.resolve()), "image_size": own.image_size}
    text = json.dumps({"data": data, "model": own.model, "device": own.device}, indent=1)
    try:
        (own.folder / "join.json").write_text(text, encoding="utf-8")
    except OSError as error:
        raise FederationError(f"cannot write {own.folder / 'join.json'}: {error.strerror or error}") from error
    JoinFile.read(own.folder)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """The folder is this process's and its user's; a second client in it would spoil the first one's state."""
    with writing(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(PermissionError):  # another user's, who decides
            folder.chmod(0o700)
        with locked(folder / ".lock", f"another process is the client in {folder}; --folder goes elsewhere"):
            yield
