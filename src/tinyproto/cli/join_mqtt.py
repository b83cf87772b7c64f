"""`tinyproto join --transport mqtt`: a client's listener, until the federation is over or the user stops it."""

from __future__ import annotations

import secrets
import select
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tinyproto.cli.client_events import CLOSING_SECONDS, ClientEvents, over_words
from tinyproto.cli.client_folder import JoinOptions, check_keys_folder, locked_folder, naming
from tinyproto.cli.interrupt import StopOnInterrupt
from tinyproto.cli.terminal import Output
from tinyproto.errors import FederationError, Interrupted
from tinyproto.federation.device_keys import DeviceKeys
from tinyproto.federation.mqtt.connection import Connection
from tinyproto.federation.mqtt.listener import ONCE_SECONDS, Listener, will
from tinyproto.federation.mqtt.messages import Seal, Topics
from tinyproto.federation.mqtt.tls import Broker, other_broker
from tinyproto.federation.processes import split_address
from tinyproto.report.words import counted
from tinyproto.subprocesses import ChildProcess, Parcel

BLIP_SECONDS = 5.0
"""A connection that is lost for less is not reported."""

LAST_ANSWER_SECONDS = 60.0
"""Longest time for the last reply to be confirmed."""


@dataclass(frozen=True)
class MqttOptions:
    """How a client reaches the coordinator over MQTT."""

    address: str  # HOST:PORT of the coordinator's own broker, or of another one
    foreign: bool = False  # the broker is not the coordinator's own
    authority: str | None = None  # for another broker: a file, or `system`
    prefix: str = ""
    once: bool = False
    resident: bool = False

    def broker(self, keys: DeviceKeys) -> Broker:
        """Return the broker, and how this client proves to it who it is."""
        host, port = split_address(self.address, "--broker" if self.foreign else "--server")
        if not self.foreign:
            return Broker(host, port, keys.authority, keys.certificate, keys.key)
        return other_broker(host, port, self.authority, keys.authority, keys.certificate, keys.key)


def join_over_mqtt(reached: MqttOptions, options: JoinOptions, output: Output) -> None:
    """Run a client of the federation at this broker, which may start later than the client."""
    with naming(options.client), locked_folder(options.folder):
        check_keys_folder(options)
        keys = DeviceKeys.open(options.keys, options.client)
        first = TrainingProcess(options)
        first.prepare(quiet=output.console.quiet)
        with StopOnInterrupt(signal.SIGTERM, signal.SIGHUP) as stop:
            session = MqttSession(reached, options, keys, first, stop, output)
            rounds = session.run()
    if session.sleeps:
        trained = session.listener.trained
        done = f"answered {counted(trained, 'round')}" if trained else "no round was waiting"
        output.say(f"client {options.client}: {done}; messages wait at {reached.address} until the next `join`")
    elif rounds is None:
        raise Interrupted(
            f"the state of client {options.client} is in {options.folder}; run the same command to continue"
        )
    else:
        output.say(over_words(options, reached.address, rounds, missed_the_end=session.missed_the_end))
    output.result({
        "client": options.client, "folder": str(options.folder), "rounds": rounds,
        "missed_the_end": session.missed_the_end, "asleep": session.sleeps, "socket_bytes": session.link.counts(),
    })  # fmt: skip


class MqttSession:
    """One client's time at a broker."""

    def __init__(
        self, reached: MqttOptions, options: JoinOptions, keys: DeviceKeys, first: TrainingProcess,
        stop: StopOnInterrupt, output: Output,
    ) -> None:  # fmt: skip
        self.options = options
        self.once = reached.once
        self.stop = stop
        self.sleeps = self.missed_the_end = False
        self.events = ClientEvents(options.folder, options.client, reached.address, output)
        seal = Seal(keys.mac, options.client) if reached.foreign else None
        topics, connection = Topics(reached.prefix), secrets.token_hex(4)
        self.link = Connection(
            reached.broker(keys), f"{reached.prefix}client-{options.client}",
            [topics.down(options.client), *([] if reached.foreign else [topics.everyone])],
            will=(topics.up(options.client), will(connection, seal)), begin_anew=not reached.once,
        )  # fmt: skip
        self.listener = Listener(
            options.client, options.folder, self.link, lambda: TrainingProcess(options), topics, connection, seal,
            reached.resident, reached.once, worker=first,
        )  # fmt: skip
        self._lost_since: float | None = time.monotonic()
        self._is_told = False

    def run(self) -> int | None:
        """Stay until the federation is over and return its rounds; None if the client sleeps or the user stops it."""
        self.events.read_past()
        try:
            while not self.stop.wanted:
                self.listener.step()
                self._tell_connection()
                self.events.show()
                if self._is_over():
                    break
                if self.once and self._may_sleep():
                    self.sleeps = True
                    break
                self._check_refusal()
        finally:
            self.listener.let_go()
            if self.events.rounds is None and self.link.is_open:
                self.listener.leave(asleep=self.sleeps)
            self.link.close(keep_session=self.sleeps)
        self.events.show()
        return self.events.rounds

    def _tell_connection(self) -> None:
        """Say when the broker is reached and when it is away."""
        now, lost = time.monotonic(), self.listener.lost
        if lost is None:
            if self._lost_since is not None and (self._is_told or not self.events.was_connected):
                self.events.say_connected()
            self._lost_since, self._is_told = None, False
            return
        self._lost_since = now if self._lost_since is None else self._lost_since
        patience = BLIP_SECONDS if self.events.was_connected else 1.0
        if not self._is_told and now - self._lost_since > patience:
            self._is_told = True
            self.events.say(f"waiting for {self.events.server}: {lost}")

    def _is_over(self) -> bool:
        """Return True once the federation is over, by the coordinator's word or after the last reply, and all is sent.

        Also if only a last evaluation is missing for too long.
        """
        listener, since = self.listener, self._lost_since
        if self.events.rounds is None and listener.is_idle:
            away = since is not None and time.monotonic() - since >= CLOSING_SECONDS
            if listener.is_over and listener.is_settled and listener.agreed is not None:
                self.events.rounds = listener.agreed.rounds
            elif self.events.last_round is not None and away:
                self.events.rounds, self.missed_the_end = self.events.last_round, True
        if self.events.rounds is None:
            return False
        give_up = time.monotonic() + (0.0 if self.missed_the_end else LAST_ANSWER_SECONDS)
        while not (self.stop.wanted or (listener.is_idle and self.link.is_confirmed)) and time.monotonic() < give_up:
            listener.step(0.1)
        return True

    def _may_sleep(self) -> bool:
        """Return True for `--once` if a round has been answered, or nothing has come for a while.

        What came meanwhile is sent again at the next start. Raise FederationError if the broker was not reached in that
        time.
        """
        listener = self.listener
        if not listener.is_idle or not self.link.is_confirmed:
            return False
        is_long = time.monotonic() - listener.heard_at > ONCE_SECONDS
        if is_long and not self.events.was_connected:
            raise FederationError(f"{self.events.server} was not reached within {ONCE_SECONDS:g} s: {listener.lost}")
        return listener.trained > 0 or is_long

    def _check_refusal(self) -> None:
        """Raise FederationError for a refusal that only another command line resolves, once the coordinator knows."""
        if self.listener.is_idle and self.events.final_refusal is not None:
            raise FederationError(self.events.final_refusal)


class TrainingProcess:
    """`cli/member_process.py` of one client."""

    def __init__(self, options: JoinOptions) -> None:
        self._options = options
        self._child = ChildProcess("tinyproto.cli.member_process")

    def prepare(self, *, quiet: bool) -> None:
        """Check data, network and device, and write join.json; raise FederationError if something is wrong."""
        said = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(self._options).items()}
        self._child.ask(Parcel({"prepare": said, "quiet": quiet}))
        answer = self._child.answer()
        problem = self._last_words() if answer is None else answer.head.get("error")
        if problem is not None:
            self.close()
            raise FederationError(problem)

    def ask(self, values: Mapping[str, Any]) -> None:
        """Give it a message to respond to."""
        frame = values.get("frame")
        plain = {key: value for key, value in values.items() if key != "frame"}
        head = {"folder": str(self._options.folder), "client": self._options.client, "values": plain}
        self._child.ask(Parcel(head, [] if frame is None else [frame]))

    def answer(self) -> dict[str, Any] | None:
        """Return its response once it has arrived; None before. A process that died says so."""
        waiting = select.poll()
        waiting.register(self._child, select.POLLIN)
        if not waiting.poll(0):
            return None
        answer = self._child.answer()
        if answer is None:
            return {"error": "failed", "died": True, "reason": self._last_words()}
        return {**answer.head["values"], **({"frame": answer.blobs[0]} if answer.blobs else {})}

    def waits_for(self) -> Sequence[ChildProcess]:
        """Return where the response arrives."""
        return (self._child,)

    def close(self) -> None:
        """End it."""
        self._child.close()

    def _last_words(self) -> str:
        end = self._child.end()
        return f"the training process {end.words}{end.last_words}"
