"""A connection to a broker when packets, sessions or the network are not what they were; no socket is opened."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("paho")

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from tinyproto.errors import FederationError
from tinyproto.federation.mqtt import connection as connection_module
from tinyproto.federation.mqtt.connection import Connection
from tinyproto.federation.mqtt.tls import Broker, CountingSocket, other_broker, tls_context


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Connection:
    made = Connection(Broker("127.0.0.1", 1, None), "client-0", ["d0", "a"])
    made.subscribed = []  # type: ignore[attr-defined]
    monkeypatch.setattr(made._client, "subscribe", made.subscribed.append)  # type: ignore[attr-defined]
    return made


def connected(connection: Connection, *, session: bool) -> None:
    connection._on_connect(
        None, None, SimpleNamespace(session_present=session), SimpleNamespace(is_failure=False), None
    )


def with_socket(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """Give it a connected socket whose other end is returned."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    monkeypatch.setattr(connection._client, "_sock", ours)
    return theirs


def subscribed(connection: Connection) -> None:
    connection._on_subscribe(None, None, None, [SimpleNamespace(is_failure=False)] * 2, None)


def test_a_session_whose_subscription_was_never_confirmed_subscribes_again(connection: Connection) -> None:
    connected(connection, session=False)
    connection._lose("before the confirmation")
    connected(connection, session=True)
    assert len(connection.subscribed) == 2  # type: ignore[attr-defined]
    assert not connection.is_open
    subscribed(connection)
    assert connection._happened[-1].resumed is True
    connected(connection, session=True)
    assert len(connection.subscribed) == 2  # type: ignore[attr-defined]
    connected(connection, session=False)
    assert len(connection.subscribed) == 3  # type: ignore[attr-defined]
    subscribed(connection)
    assert connection._happened[-1].resumed is False


@pytest.mark.parametrize("error", [IndexError("x"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), KeyError(7)])
def test_a_malformed_packet_ends_the_connection_and_nothing_else(
    error: Exception, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        raise error

    theirs = with_socket(connection, monkeypatch)
    subscribed(connection)
    monkeypatch.setattr(connection._client, "loop_read", fail)
    connection._read()
    assert theirs.recv(1) == b""
    assert not connection.is_open
    assert connection._client.socket() is None
    assert "invalid packet" in str(connection._happened[-1].lost)


def test_a_broker_that_takes_a_connection_and_never_answers_is_lost_and_tried_again(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    sockets: list[socket.socket] = []
    monkeypatch.setattr(connection._client, "reconnect", lambda: sockets.append(with_socket(connection, monkeypatch)))
    monkeypatch.setattr(connection_module, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(connection_module, "FIRST_PAUSE", 0.0)
    connection._pause = 0.0
    happened = []
    give_up = time.monotonic() + 10
    while len(sockets) < 3 and time.monotonic() < give_up:
        happened += connection.step(60.0)
    assert {event.lost for event in happened} == {"it does not answer as an MQTT broker"}
    assert [end.recv(1) for end in sockets[:2]] == [b"", b""]
    assert not connection.is_open


def sent(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the list of what is handed to paho from now on; a message's number is its place there, from 1."""
    handed: list[bytes] = []

    def publish(_: str, payload: bytes, **__: object) -> SimpleNamespace:
        handed.append(payload)
        return SimpleNamespace(mid=len(handed))

    monkeypatch.setattr(connection._client, "publish", publish)
    return handed


def test_no_more_messages_are_unconfirmed_than_the_broker_wants(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed = sent(connection, monkeypatch)
    for number in range(5):
        connection.publish("u0", bytes([number]))
    assert handed == []  # there is no connection yet
    session = SimpleNamespace(session_present=False)
    connection._on_connect(None, None, session, SimpleNamespace(is_failure=False), SimpleNamespace(ReceiveMaximum=2))
    subscribed(connection)
    connection._send()
    assert handed == [b"\0", b"\1"]
    for number in range(1, 6):
        assert not connection.is_confirmed
        connection._on_publish(None, None, number, SimpleNamespace(value=0, is_failure=False), None)
        connection._send()
        assert len(handed) == min(number + 2, 5)
    assert connection.is_confirmed


def test_what_took_long_to_reach_the_broker_is_not_taken_from_its_time_to_answer(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name with two addresses, of which the first swallows packets, and a slow handshake."""
    ends = []

    def reconnect() -> None:
        time.sleep(0.3)
        ends.append(with_socket(connection, monkeypatch))

    monkeypatch.setattr(connection._client, "reconnect", reconnect)
    monkeypatch.setattr(connection_module, "CONNECT_SECONDS", 0.2)
    assert connection.step(0.0) == []
    connected(connection, session=False)
    time.sleep(0.15)
    assert connection.step(0.0) == []
    subscribed(connection)
    time.sleep(0.25)
    assert [event.resumed for event in connection.step(0.0)] == [False]
    assert len(ends) == 1


def test_a_message_that_the_broker_does_not_take_is_told(connection: Connection) -> None:
    connection._on_publish(None, None, 1, ReasonCode(PacketTypes.PUBACK, identifier=151), None)
    (told,) = connection._happened
    assert told.warned == "the broker did not take a message: quota exceeded"


def test_a_system_that_does_not_count_bytes_closes_a_socket_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "TCP_INFO")
    made = tls_context(Broker("127.0.0.1", 1, None)).wrap_socket(socket.socket(), server_hostname="x")
    assert isinstance(made, CountingSocket)
    made.close()
    assert made.fileno() == -1


def test_a_packet_that_is_announced_as_too_large_is_not_received(monkeypatch: pytest.MonkeyPatch) -> None:
    made = tls_context(Broker("127.0.0.1", 1, None)).wrap_socket(socket.socket(), server_hostname="x")
    assert isinstance(made, CountingSocket)
    made.most = 1000
    with made, pytest.raises(OSError, match="a packet of 1001 bytes was announced, but packets have at most 1000"):
        made.recv(1001)


def test_another_network_that_answers_for_the_broker_ends_only_a_client_that_never_reached_it(
    connection: Connection,
) -> None:
    error = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER]")
    with pytest.raises(FederationError, match="without TLS"):
        connection._why_unreachable(error)
    subscribed(connection)
    assert "without TLS" in connection._why_unreachable(error)


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> Connection:
    monkeypatch.setenv("TINYPROTO_MQTT_USERNAME", "device0")
    nowhere = Path("nowhere")
    return Connection(other_broker("::1", 8883, "system", nowhere, nowhere, nowhere), "site/client-0", ["site/d0"])


def untrusted(code: int, words: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, words)
    error.verify_code, error.verify_message = code, words
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER]"), "::1:8883 answers without TLS; check that --broker has"),
        (untrusted(10, "it has expired"), "the certificate of the broker ::1:8883 is not valid: it has expired"),
        (untrusted(62, "another name"), "the certificate of the broker ::1:8883 is not valid: another name"),
        (untrusted(20, "no issuer"), "is not from an authority that this system knows; name its authority with"),
    ],
)
def test_what_is_wrong_with_another_broker_is_not_mended_with_our_own_keys(
    error: Exception, words: str, foreign: Connection
) -> None:
    with pytest.raises(FederationError) as caught:
        foreign._why_unreachable(error)
    assert words in str(caught.value)
    assert "serve --init" not in str(caught.value)


def test_rights_that_another_broker_does_not_give_are_looked_for_there(foreign: Connection) -> None:
    foreign._on_subscribe(None, None, None, [SimpleNamespace(is_failure=True)], None)
    with pytest.raises(FederationError, match=r"does not let this user read 'site/d0'; check --topic, and the rights"):
        foreign.step(0.0)


def test_a_message_that_the_broker_never_takes_is_an_error_and_not_sent_again_and_again(foreign: Connection) -> None:
    connected(foreign, session=False)
    foreign._on_disconnect(None, None, None, ReasonCode(PacketTypes.DISCONNECT, identifier=149), None)
    with pytest.raises(FederationError, match="takes no packet as large as a message; raise its limit"):
        foreign.step(0.0)


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("x")
    nowhere = Path("nowhere")
    with pytest.raises(FederationError, match=r"ca\.crt is not a valid certificate of an authority"):
        Connection(other_broker("h", 1, str(tmp_path / "ca.crt"), nowhere, nowhere, nowhere), "client-0", ["d0"])
