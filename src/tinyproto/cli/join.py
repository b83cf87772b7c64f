"""`tinyproto join`: a client of a federation on this device, until the federation is over or the user stops it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyproto.cli.device import JoinOptions, naming, prepared
from tinyproto.cli.interrupt import StopOnInterrupt
from tinyproto.cli.terminal import Output
from tinyproto.errors import ConfigError, FederationError, Interrupted
from tinyproto.federation.flower.connection import AwayError, Relay, TurnedAwayError, Watch, reach
from tinyproto.federation.flower.processes import SuperNode, split_address, why_it_ended
from tinyproto.federation.journal import Follower
from tinyproto.federation.keys import ClientKeys
from tinyproto.federation.refusals import ADVICE, NEEDS_A_RESTART, REMEDIES
from tinyproto.report.words import counted, size

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0
STEADY_SECONDS = 60.0
"""After a connection of this length, pauses start again from the first."""

LAST_ANSWER_SECONDS = 60.0
"""Longest stay of a client after its last answer."""

CLOSING_SECONDS = 600.0
"""Longest wait for an unreachable coordinator after the last round."""

HEARD_SECONDS = 5.0
"""Stay after a refusal was sent; Flower discards replies from clients that disconnect immediately."""

PATIENCE_SECONDS = 150.0
"""Longest time of retries while the coordinator rejects the key; after a kill -9 it is free within about a minute."""


def join_federation(server: str, options: JoinOptions, output: Output) -> None:
    """Run a client of the federation at this address, which may start later than the client."""
    address = split_address(server, "--server")
    with naming(options.client):
        keys = _keys(options)
    with prepared(options, output), StopOnInterrupt(signal.SIGTERM, signal.SIGHUP) as stop:
        relay = Relay(address, options.folder / "socket.json")
        session = ClientSession(options, address, server, keys, relay, stop, output)
        try:
            rounds = session.run()
        finally:
            relay.close()
    if rounds is None:
        raise Interrupted(
            f"the state of client {options.client} is in {options.folder}; run the same command to continue"
        )
    end = f"the federation is over after {counted(rounds, 'round')}"
    if session.missed_the_end:
        end = f"{counted(rounds, 'round')} are complete and {server} is unreachable: ending without the last evaluation"
    output.say(f"client {options.client}: {end}; its state is in {options.folder}")
    output.result({
        "client": options.client, "folder": str(options.folder), "rounds": rounds,
        "missed_the_end": session.missed_the_end, "socket_bytes": relay.counts,
    })  # fmt: skip


def _keys(options: JoinOptions) -> ClientKeys:
    """Open the client's keys; if they are missing but lie beside or inside the named folder, suggest that."""
    if not options.keys.joinpath("client.key").exists():
        for other in (options.keys / f"client-{options.client}", Path("keys") / options.keys):
            if other.joinpath("client.key").is_file():
                raise ConfigError(f"{options.keys} holds no client.key; did you mean `--keys {other}`?")
    return ClientKeys.open(options.keys)


@dataclass
class ClientSession:
    """One client's time in a federation: its SuperNode is restarted until the end, or until the user stops it."""

    options: JoinOptions
    address: tuple[str, int]
    server: str
    keys: ClientKeys
    relay: Relay
    stop: StopOnInterrupt
    output: Output
    missed_the_end: bool = False
    _said: str = ""
    _refused: tuple[str, str] | None = None  # code and reason, until it takes part
    _turned_away_since: float | None = None
    _away_since: float | None = None
    _last_round: int | None = None  # the federation's rounds, once the client has completed the last
    _rounds: int | None = None  # the same, once the federation is over

    def __post_init__(self) -> None:
        self.journal = Follower(self.options.folder / "progress.jsonl")

    def run(self) -> int | None:
        """Stay until the federation is over and return its rounds; return None if the user stops the client before."""
        self._read_past()
        pause = FIRST_PAUSE
        while not self.stop.wanted and self._rounds is None:
            started = time.monotonic()
            try:
                self._reach()
                self._run_node()
            except AwayError as reason:
                self._away(str(reason))
            except TurnedAwayError as reason:
                self._turned_away(reason)
            pause = FIRST_PAUSE if time.monotonic() - started > STEADY_SECONDS else pause
            if self._rounds is None:
                self._wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        return self._rounds

    def _reach(self) -> None:
        """Raise AwayError unless the coordinator answers; count the bytes of the attempt."""
        self.relay.add(reach(self.address, self.keys.authority))

    def _run_node(self) -> None:
        """Run one SuperNode to its end; raise the reason, unless the client has nothing left to do."""
        node = SuperNode(self.options.folder, self.server, self.keys, self.options.client, self.relay.proxy)
        watch = Watch(self.relay, self._reach)
        connected = False
        try:
            while not node.wait(0.5):
                if self.stop.wanted:
                    return
                if not connected and node.is_connected:
                    connected, self._turned_away_since, self._away_since = True, None, None
                    self._say_connected()
                self._show_events()
                if self._rounds is not None:
                    self._deliver(node, lambda: watch.why_away(time.monotonic(), patience=1.0) is not None)
                    return
                if self._refused is not None and self._refused[0] in NEEDS_A_RESTART:
                    code, reason = self._refused
                    self._deliver(node, lambda: True)
                    self._wait(HEARD_SECONDS)
                    raise FederationError(f"{reason}; {REMEDIES[code]}")
                if connected:
                    self._check_coordinator(watch)
                    if self.missed_the_end:
                        return
        finally:
            node.stop()
        raise why_it_ended(node.status, node.said(), node.log)

    def _deliver(self, node: SuperNode, until: Callable[[], bool]) -> None:
        """Keep the SuperNode running until its last reply is sent and `until` holds, but at most for a minute."""
        give_up = time.monotonic() + LAST_ANSWER_SECONDS
        while time.monotonic() < give_up and not self.stop.wanted and not node.wait(0.5):
            self._show_events()
            if node.has_answered and until():
                return

    def _check_coordinator(self, watch: Watch) -> None:
        """Note when the coordinator becomes unreachable or comes back."""
        reason = watch.why_away(time.monotonic())
        if reason is not None:
            self._away(reason)
        elif self._away_since is not None:
            self._away_since = None
            self._say_connected()

    def _away(self, reason: str) -> None:
        """Go on waiting, but after the last round only for a while, since only a last evaluation is left then."""
        now = time.monotonic()
        self._turned_away_since = None
        if self._away_since is None:
            self._away_since = now
            self._say(f"waiting for {self.server}: {reason}")
        if self._last_round is not None and now - self._away_since >= CLOSING_SECONDS:
            self._rounds, self.missed_the_end = self._last_round, True

    def _turned_away(self, reason: TurnedAwayError) -> None:
        now = time.monotonic()
        self._away_since = None
        self._turned_away_since = now if self._turned_away_since is None else self._turned_away_since
        if now - self._turned_away_since > PATIENCE_SECONDS:
            raise FederationError(f"{self.server}: {reason}")
        words = f"{reason}; trying again for {PATIENCE_SECONDS:.0f} s"
        if words != self._said:
            self._say(words)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.stop.wanted:
            time.sleep(0.1)

    def _show_events(self) -> None:
        for event in self.journal.new():
            if event["event"] == "finished":
                self._rounds = int(event["rounds"])
                continue
            self._last_round = _last_round(event, self._last_round)
            before, self._refused = self._refused, None
            if event["event"] == "refused":
                self._refused = str(event.get("code")), str(event["reason"])
            if self._refused is None or (self._refused != before and self._refused[0] not in NEEDS_A_RESTART):
                self._say(_words(event))

    def _read_past(self) -> None:
        """Read from the journal whether the client has already completed its last round or seen the end."""
        for event in (past := self.journal.past()):
            self._last_round = _last_round(event, self._last_round)
        if past and past[-1]["event"] == "finished":
            rounds = counted(int(past[-1]["rounds"]), "round")
            self.output.say(
                f"the federation of client {self.options.client} is over after {rounds}; waiting for another one at "
                f"{self.server}, Ctrl-C stops"
            )

    def _say(self, words: str) -> None:
        """Print a line with the client's number, since several clients may share a terminal."""
        self._said = words
        self.output.say(f"client {self.options.client}: {words}")

    def _say_connected(self) -> None:
        self._said = ""
        self.output.say(f"client {self.options.client} is connected to {self.server}")


def _last_round(event: dict[str, Any], before: int | None) -> int | None:
    """Return the federation's rounds if the client has completed the last one by this event."""
    match event:
        case {"event": "finished"}:
            return None
        case {"event": "answered", "kind": "update", "round": completed, "rounds": rounds}:
            return int(rounds) if completed == rounds else None
    return before


def _words(event: dict[str, Any]) -> str:
    """Return the line to print for an event of the client's journal."""
    match event.get("event"):
        case "joined":
            return f"joined federation {event['federation'][:8]}"
        case "answered":
            return f"round {event['round']}: answered with {size(event['bytes'])} ({event['kind']})"
        case "refused" if event.get("code") in ADVICE:
            when = f"round {event['round']}: " if "round" in event else ""
            return f"{when}{str(event['reason']).rstrip('.')}. What to do: {ADVICE[event['code']]}"
        case "refused":
            remedy = REMEDIES.get(str(event.get("code")))
            return f"refused: {event['reason']}{f'; {remedy}' if remedy else ''}"
    return f"failed: {str(event.get('reason', event)).strip().splitlines()[-1]}"
