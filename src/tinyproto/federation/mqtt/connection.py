"""A connection to a broker that comes back by itself, in one thread: `step` lets time pass and returns what happened.

MQTT 5 over TLS, QoS 1: a message that was published is delivered at least once, also over a broken connection, as long
as this process lives. The receiver has to bear repeats.
"""

from __future__ import annotations

import math
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from paho.mqtt import client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tinyproto.errors import FederationError, one_line
from tinyproto.federation.mqtt.messages import SESSION_SECONDS, Happened, HasFileno
from tinyproto.federation.mqtt.tls import OTHER, Broker, CountingSocket, tls_context
from tinyproto.federation.unreachable import why_unreachable

KEEP_ALIVE_SECONDS = 20 * 60
"""A ping this often if nothing else is sent: 48 bytes with TLS, both ways together."""

COORDINATOR_KEEP_ALIVE_SECONDS = 60
"""The same for a coordinator at another broker, where routers between the two may forget idle connections."""

LEAVING_SECONDS = 5
"""The broker waits this long for a broken connection to come back before it tells of the client's leaving."""

CONNECT_SECONDS = 10.0
"""Longest time for each answer to an attempt to connect: of the network, of TLS, of the broker, on subscriptions."""

UNANSWERED_SECONDS = 60
"""A connection is lost if nothing that was sent is received for this long, where the system can notice that."""

LISTEN_SECONDS = 3.0
"""Longest time to listen for the reason why the broker closed a connection."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
STEADY_SECONDS, MOST_SHORT = 30.0, 3
"""Pauses between attempts to connect; after a connection of this length they start again from the first.

Two processes with the same keys end each other's connections; this is told after so many shorter ones.
"""

FAREWELL_SECONDS = 5.0
"""Longest time for the last messages to be confirmed at the end."""

MOST_READ = 100
"""Packets that are read at once: others wait, so that one client's flood does not stop the time for all."""

_ALERTS = {
    "CERTIFICATE_EXPIRED": "this client's certificate has expired; the coordinator renews it with `tinyproto serve "
    "--init`; copy client.crt from there",
    "UNKNOWN_CA": "the broker does not know the authority of this client's certificate; use keys that belong together, "
    "or with --broker let it trust ca.crt",
    "CERTIFICATE_REQUIRED": "the broker wants a client's certificate",
    "BAD_CERTIFICATE": "the broker does not accept this client's certificate",
    "CERTIFICATE_REVOKED": "this client's certificate was revoked",
}
"""The broker's objections to our certificate, by the name of the TLS alert."""

_REFUSED = {134, 135, 138, 144}  # user name or password, not authorised, banned, topic name
_TOO_LARGE = 149
_MOST_UNCONFIRMED = 65535  # unless the broker wants fewer


class Connection:
    """One end of a broker, with a session there."""

    def __init__(
        self, broker: Broker, identity: str, topics: Sequence[str], *, will: tuple[str, bytes] | None = None,
        begin_anew: bool = False, keep_alive: int | None = None,
    ) -> None:  # fmt: skip
        self.broker = broker
        self.topics = list(topics)
        self.is_open = False
        self._happened: list[Happened] = []
        self._to_send: deque[tuple[str, bytes, float | None]] = deque()  # topic, payload, expiry
        self._unconfirmed: set[int] = set()
        self._most_unconfirmed = _MOST_UNCONFIRMED
        self._refused: str | None = None
        self._is_closing = False
        self._keep_alive = KEEP_ALIVE_SECONDS if keep_alive is None else keep_alive
        self._pause, self._next_try, self._give_up_at = FIRST_PAUSE, 0.0, math.inf
        self._connected_at, self._short = math.nan, 0  # connections in a row that ended soon
        self._before = {"up": 0, "down": 0}  # bytes of earlier connections
        self._socket: CountingSocket | None = None
        self._client = self._make_client(identity, will)
        self._begin_anew = begin_anew
        self._largest: int | None = None
        self._has_been_open = False
        self._is_subscribed = False  # confirmed, in this process
        self._has_session = False
        self._prepare()

    def _prepare(self) -> None:
        """Set what the next attempts to connect say; an open connection is dropped."""
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = SESSION_SECONDS
        if self._largest is not None:
            properties.MaximumPacketSize = self._largest
        self._client.connect_async(
            self.broker.host, self.broker.port, self._keep_alive, properties=properties,
            clean_start=paho.MQTT_CLEAN_START_FIRST_ONLY if self._begin_anew else False,
        )  # fmt: skip

    def limit(self, largest: int) -> None:
        """Receive no packet with more bytes than this; the broker keeps it back. Call it before the first `step`."""
        self._largest = largest
        self._prepare()

    def _make_client(self, identity: str, will: tuple[str, bytes] | None) -> paho.Client:
        broker = self.broker
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=identity, protocol=paho.MQTTv5)
        client.connect_timeout = CONNECT_SECONDS
        client.max_inflight_messages_set(0)  # `_send` keeps to the broker's limit, also after a lost connection
        client.tls_set_context(tls_context(broker))
        if broker.username is not None:
            client.username_pw_set(broker.username, broker.password)
        if will is not None:
            properties = Properties(PacketTypes.WILLMESSAGE)
            properties.WillDelayInterval = LEAVING_SECONDS
            client.will_set(*will, qos=1, properties=properties)
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_message = lambda _, __, message: self._happened.append(Happened(message.topic, message.payload))
        client.on_publish = self._on_publish
        client.on_disconnect = self._on_disconnect
        return client

    def publish(self, topic: str, payload: bytes, expiry: float | None = None) -> None:
        """Send a message now, or once the connection is open; the broker forgets it after `expiry` seconds."""
        self._to_send.append((topic, payload, expiry))
        self._send()

    def _send(self) -> None:
        """Send what waits, as far as the broker accepts messages that it has not confirmed yet."""
        while self.is_open and self._to_send and len(self._unconfirmed) < self._most_unconfirmed:
            topic, payload, expiry = self._to_send.popleft()
            properties = None
            if expiry is not None:
                properties = Properties(PacketTypes.PUBLISH)
                properties.MessageExpiryInterval = max(int(expiry), 1)
            self._unconfirmed.add(self._client.publish(topic, payload, qos=1, properties=properties).mid)

    @property
    def is_confirmed(self) -> bool:
        """Return True if the broker has everything that was published."""
        return not self._unconfirmed and not self._to_send

    def step(self, seconds: float, others: Sequence[HasFileno] = ()) -> list[Happened]:
        """Wait until something happens here, or at one of `others`, but at most so long; return what happened.

        Raise FederationError for what waiting does not change, such as another certificate.
        """
        if self._client.socket() is None:
            seconds = self._try_again(seconds)
        if self._is_opening:
            seconds = min(seconds, max(self._give_up_at - time.monotonic(), 0.0))
        self._wait(seconds, others)
        for _ in range(MOST_READ):
            if self._client.socket() is None or not self._is_readable():
                break
            self._read()
        if self._is_opening and time.monotonic() >= self._give_up_at:
            self._prepare()
            self._lose("it does not answer as an MQTT broker")
        if self._client.socket() is not None:
            self._client.loop_misc()
            self._send()
            if self._client.want_write():
                self._client.loop_write()
        if self._refused is not None:
            raise FederationError(self._refused)
        happened, self._happened = self._happened, []
        return happened

    @property
    def _is_opening(self) -> bool:
        return self._client.socket() is not None and not self.is_open

    def _read(self) -> None:
        try:
            self._client.loop_read()
        except Exception as error:  # paho raises whatever a malformed packet leads to
            self._prepare()
            self._lose(f"the broker sent an invalid packet ({one_line(error)})")

    def _wait(self, seconds: float, others: Sequence[HasFileno]) -> None:
        opened = self._client.socket()
        waiting = select.poll()  # unlike select, for any number of files
        for other in others:
            waiting.register(other, select.POLLIN)
        if opened is not None:
            waiting.register(opened, select.POLLIN | (select.POLLOUT if self._client.want_write() else 0))
        ready = self._happened or (isinstance(opened, ssl.SSLSocket) and opened.pending())
        waiting.poll(0 if ready else max(seconds, 0) * 1000)

    def _is_readable(self) -> bool:
        opened = self._client.socket()
        if isinstance(opened, ssl.SSLSocket) and opened.pending():
            return True
        waiting = select.poll()
        waiting.register(opened, select.POLLIN)
        return bool(waiting.poll(0))

    def _try_again(self, seconds: float) -> float:
        """Connect if it is time for it; return the seconds that are left to wait."""
        now = time.monotonic()
        if now < self._next_try:
            return min(seconds, self._next_try - now)
        self._count()
        try:
            self._client.reconnect()
        except (OSError, ValueError) as error:
            self._socket = None
            self._lose(self._why_unreachable(error))
        else:
            self._give_up_at = time.monotonic() + CONNECT_SECONDS
            opened = self._client.socket()
            self._socket = opened if isinstance(opened, CountingSocket) else None
            if self._socket is not None:
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._largest is not None:  # the broker confirms subscriptions with a byte for each
                    self._socket.most = max(self._largest, len(self.topics) + 16)
                if hasattr(socket, "TCP_USER_TIMEOUT"):
                    self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * UNANSWERED_SECONDS)
        return 0.0 if self._happened else seconds

    def _why_unreachable(self, error: Exception) -> str:
        """Return why; raise FederationError for what waiting does not change, unless the broker has been reached.

        Then it is the network that has changed: another one may answer in the broker's place.
        """
        try:
            at = self.broker
            return why_unreachable(error, (at.host, at.port), at.authority, at.option)
        except FederationError as objection:
            if not self._has_been_open:
                raise
            return str(objection)

    def _on_connect(self, _: object, __: object, flags: Any, reason: Any, properties: object) -> None:
        if reason.is_failure:
            words = f"the broker {self.broker.words} refuses the connection: {str(reason).lower()}"
            if self.broker.option == OTHER:
                words += "; check TINYPROTO_MQTT_USERNAME and TINYPROTO_MQTT_PASSWORD"
            if reason.value in _REFUSED:
                self._refused = words
            if self._socket is not None:
                self._socket.failure = words
            self._lose(words)
            return
        self._connected_at = time.monotonic()
        self._give_up_at = self._connected_at + CONNECT_SECONDS
        self._most_unconfirmed = getattr(properties, "ReceiveMaximum", _MOST_UNCONFIRMED)
        self._has_session = bool(flags.session_present)
        if self._has_session and self._is_subscribed:
            self._open()
        else:  # a session that began with a connection that broke may have no subscriptions
            self._client.subscribe([(topic, paho.SubscribeOptions(qos=1)) for topic in self.topics])

    def _on_subscribe(self, _: object, __: object, ___: object, reasons: Any, ____: object) -> None:
        denied = [topic for topic, reason in zip(self.topics, reasons, strict=False) if reason.is_failure]
        if denied:
            self._deny(f"read {denied[0]!r}")
        else:
            self._is_subscribed = True
            self._open()

    def _on_publish(self, _: object, __: object, number: int, reason: Any, ___: object) -> None:
        self._unconfirmed.discard(number)
        if reason.value in _REFUSED:  # Mosquitto lets everybody subscribe, so this is how it denies something
            self._deny("send messages for this client")
        elif reason.is_failure:
            self._happened.append(Happened(warned=f"the broker did not take a message: {str(reason).lower()}"))

    def _deny(self, what: str) -> None:
        keys = "use the keys of this client, and on the coordinator's machine check that they are still in its folder"
        rights = "check --topic, and the rights at the broker: docs/how-to/transports.md lists them"
        who = "certificate" if self.broker.username is None else "user"
        remedy = rights if self.broker.option == OTHER else keys
        self._refused = f"the broker {self.broker.words} does not let this {who} {what}; {remedy}"

    def _open(self) -> None:
        self.is_open = self._has_been_open = True
        self._happened.append(Happened(resumed=self._has_session))

    def _on_disconnect(self, _: object, __: object, ___: object, reason: Any, ____: object) -> None:
        failure = self._socket.failure if self._socket is not None else None
        if failure is None and not self._has_been_open and not self._is_closing:
            failure = self._last_words()
        alert = next((words for name, words in _ALERTS.items() if failure and name in failure), None)
        if alert is not None:
            self._refused = alert
        elif reason.value == _TOO_LARGE:  # it would be sent again and again
            self._refused = f"the broker {self.broker.words} takes no packet as large as a message; raise its limit"
        said = str(reason).lower()
        said = failure or ("the connection was lost" if said == "unspecified error" else said)
        lasted, self._connected_at = time.monotonic() - self._connected_at, math.nan  # NaN: it was none
        if lasted >= STEADY_SECONDS:
            self._pause, self._short = FIRST_PAUSE, 0
        self._short += lasted < STEADY_SECONDS
        again = f"{said}; this repeats: another process may have the same keys"
        self._lose(again if self._short >= MOST_SHORT else said)

    def _last_words(self) -> str | None:
        """Return why the broker ends connections of ours at once, or None.

        With TLS 1.3 it objects to our certificate after we have sent something, and then the system may drop what it
        said. So this connects without sending anything, and listens.
        """
        try:
            with (
                socket.create_connection((self.broker.host, self.broker.port), CONNECT_SECONDS) as plain,
                tls_context(self.broker).wrap_socket(plain, server_hostname=self.broker.host) as silent,
            ):
                silent.settimeout(LISTEN_SECONDS)
                silent.recv(1)
        except ssl.SSLError as error:
            return error.reason
        except OSError:
            pass
        return None

    def _lose(self, reason: str) -> None:
        self.is_open = False
        self._happened.append(Happened(lost=reason))
        self._next_try = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def counts(self) -> dict[str, int] | None:
        """Return the bytes sent and received at the socket, TLS included; None where the system does not count."""
        now = self._counted()
        return None if now is None else {way: now[way] + self._before[way] for way in self._before}

    def _counted(self) -> dict[str, int] | None:
        if not hasattr(socket, "TCP_INFO"):
            return None
        return {"up": 0, "down": 0} if self._socket is None else self._socket.counted()

    def _count(self) -> None:
        """Add the bytes of the last connection, before there is another one."""
        last = self._counted() or {"up": 0, "down": 0}
        self._before = {way: self._before[way] + last[way] for way in last}
        self._socket = None

    def close(self, *, keep_session: bool) -> None:
        """Confirm what was published, and end the connection; a kept session still collects messages."""
        self._is_closing = True
        give_up = time.monotonic() + FAREWELL_SECONDS
        while self.is_open and not self.is_confirmed and time.monotonic() < give_up:
            self.step(0.1)
        properties = Properties(PacketTypes.DISCONNECT)
        properties.SessionExpiryInterval = SESSION_SECONDS if keep_session else 0
        if self._client.socket() is not None:
            self._client.disconnect(properties=properties)
            while self._client.want_write() and time.monotonic() < give_up:
                self._client.loop_write()
        self._count()
