"""`tinyproto join`: a client of a federation on this device, until the federation is over or the user stops it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from tinyproto.cli.client_events import CLOSING_SECONDS, ClientEvents, over_words
from tinyproto.cli.client_folder import JoinOptions, check_keys_folder, naming
from tinyproto.cli.device import prepared
from tinyproto.cli.interrupt import StopOnInterrupt
from tinyproto.cli.terminal import Output
from tinyproto.errors import FederationError, Interrupted
from tinyproto.federation.flower.connection import AwayError, Relay, TurnedAwayError, Watch, reach
from tinyproto.federation.flower.processes import SuperNode, why_it_ended
from tinyproto.federation.keys import ClientKeys
from tinyproto.federation.processes import split_address

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0
STEADY_SECONDS = 60.0
"""After a connection of this length, pauses start again from the first."""

LAST_ANSWER_SECONDS = 60.0
"""Longest stay of a client after its last answer."""

HEARD_SECONDS = 5.0
"""Stay after a refusal was sent; Flower discards replies from clients that disconnect immediately."""

PATIENCE_SECONDS = 150.0
"""Longest time of retries while the coordinator rejects the key; after a kill -9 it is free within about a minute."""


def join_federation(server: str, options: JoinOptions, output: Output) -> None:
    """Run a client of the federation at this address, which may start later than the client."""
    address = split_address(server, "--server")
    with naming(options.client):
        check_keys_folder(options)
        keys = ClientKeys.open(options.keys)
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
    output.say(over_words(options, server, rounds, missed_the_end=session.missed_the_end))
    output.result({
        "client": options.client, "folder": str(options.folder), "rounds": rounds,
        "missed_the_end": session.missed_the_end, "socket_bytes": relay.counts,
    })  # fmt: skip


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
    _turned_away_since: float | None = None
    _away_since: float | None = None

    def __post_init__(self) -> None:
        self.events = ClientEvents(self.options.folder, self.options.client, self.server, self.output)

    def run(self) -> int | None:
        """Stay until the federation is over and return its rounds; return None if the user stops the client before."""
        self.events.read_past()
        pause = FIRST_PAUSE
        while not self.stop.wanted and self.events.rounds is None:
            started = time.monotonic()
            try:
                self._reach()
                self._run_node()
            except AwayError as reason:
                self._away(str(reason))
            except TurnedAwayError as reason:
                self._turned_away(reason)
            pause = FIRST_PAUSE if time.monotonic() - started > STEADY_SECONDS else pause
            if self.events.rounds is None:
                self._wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        return self.events.rounds

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
                    self.events.say_connected()
                self.events.show()
                if self.events.rounds is not None:
                    self._deliver(node, lambda: watch.why_away(time.monotonic(), patience=1.0) is not None)
                    return
                if (refusal := self.events.final_refusal) is not None:
                    self._deliver(node, lambda: True)
                    self._wait(HEARD_SECONDS)
                    raise FederationError(refusal)
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
            self.events.show()
            if node.has_answered and until():
                return

    def _check_coordinator(self, watch: Watch) -> None:
        """Note when the coordinator becomes unreachable or comes back."""
        reason = watch.why_away(time.monotonic())
        if reason is not None:
            self._away(reason)
        elif self._away_since is not None:
            self._away_since = None
            self.events.say_connected()

    def _away(self, reason: str) -> None:
        """Go on waiting, but after the last round only for a while, since only a last evaluation is left then."""
        now = time.monotonic()
        self._turned_away_since = None
        if self._away_since is None:
            self._away_since = now
            self.events.say(f"waiting for {self.server}: {reason}")
        if self.events.last_round is not None and now - self._away_since >= CLOSING_SECONDS:
            self.events.rounds, self.missed_the_end = self.events.last_round, True

    def _turned_away(self, reason: TurnedAwayError) -> None:
        now = time.monotonic()
        self._away_since = None
        self._turned_away_since = now if self._turned_away_since is None else self._turned_away_since
        if now - self._turned_away_since > PATIENCE_SECONDS:
            raise FederationError(f"{self.server}: {reason}")
        words = f"{reason}; trying again for {PATIENCE_SECONDS:.0f} s"
        if words != self.events.said:
            self.events.say(words)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.stop.wanted:
            time.sleep(0.1)
