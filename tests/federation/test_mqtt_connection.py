"""A connection to a broker when packets, sessions or the network are not what they were; no socket is opened."""

from __future__ import annotations

import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("paho")

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from tinyproto.errors import FederationError
from tinyproto.federation.mqtt.connection import Connection
from tinyproto.federation.mqtt.tls import Broker, other_broker


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

    subscribed(connection)
    monkeypatch.setattr(connection._client, "loop_read", fail)
    connection._read()
    assert not connection.is_open
    assert connection._client.socket() is None
    assert "invalid packet" in str(connection._happened[-1].lost)


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
