"""A connection to a broker when packets, sessions or the network are not what they were; no socket is opened."""

from __future__ import annotations

import ssl
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("paho")

from tinyproto.errors import FederationError
from tinyproto.federation.mqtt.connection import Broker, Connection


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
