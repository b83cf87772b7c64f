"""The relay counts what goes through it, and leads to one address only."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tinyproto.errors import FederationError
from tinyproto.federation.flower.connection import Relay


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that gives back twice what it gets, connection by connection."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                opened, _ = listening.accept()
            except OSError:
                return
            with opened:
                while data := opened.recv(65536):
                    opened.sendall(2 * data)

    threading.Thread(target=serve, daemon=True).start()
    yield listening.getsockname()[1]
    listening.close()


def tunnel(relay: Relay, port: int) -> tuple[socket.socket, bytes]:
    opened = socket.create_connection(("127.0.0.1", relay.port), timeout=10)
    opened.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    return opened, opened.recv(200)


def through(relay: Relay, port: int, data: bytes) -> None:
    opened, answer = tunnel(relay, port)
    with opened:
        assert answer.startswith(b"HTTP/1.1 200 ")
        opened.sendall(data)
        left = 2 * len(data)
        while left:
            left -= len(opened.recv(65536))


def in_file(file: Path, wanted: dict[str, int]) -> bool:
    give_up = time.monotonic() + 5
    while json.loads(file.read_text()) != wanted and time.monotonic() < give_up:
        time.sleep(0.02)
    return bool(json.loads(file.read_text()) == wanted)


def test_both_ways_are_counted_over_connections_and_restarts(echo: int, tmp_path: Path) -> None:
    file = tmp_path / "socket.json"
    relay = Relay(("127.0.0.1", echo), file)
    assert json.loads(file.read_text()) == {"up": 0, "down": 0}
    through(relay, echo, b"x" * 300_000)
    through(relay, echo, b"y" * 7)
    assert in_file(file, {"up": 300_007, "down": 600_014})
    relay.close()
    again = Relay(("127.0.0.1", echo), file)
    through(again, echo, b"z")
    again.close()
    assert json.loads(file.read_text()) == {"up": 300_008, "down": 600_016}


def test_it_leads_nowhere_else(echo: int, tmp_path: Path) -> None:
    relay = Relay(("127.0.0.1", echo + 1), tmp_path / "socket.json")
    opened, answer = tunnel(relay, echo)
    opened.close()
    relay.close()
    assert answer.startswith(b"HTTP/1.1 403 ")


def test_a_server_that_is_not_there_is_a_connection_cut_off(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        relay = Relay(("127.0.0.1", port), tmp_path / "socket.json")
        opened, answer = tunnel(relay, port)
    opened.close()
    relay.close()
    assert answer == b""


@pytest.mark.parametrize("content", ["{", "[]", '{"up": 1}'])
def test_after_a_damaged_file_bytes_are_counted_from_0(content: str, echo: int, tmp_path: Path) -> None:
    (tmp_path / "socket.json").write_text(content)
    relay = Relay(("127.0.0.1", echo), tmp_path / "socket.json")
    relay.close()
    assert json.loads((tmp_path / "socket.json").read_text()) == {"up": 0, "down": 0}


def test_a_relay_that_cannot_listen_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "create_server", full)
    with pytest.raises(FederationError, match="Too many open files"):
        Relay(("127.0.0.1", 1), tmp_path / "socket.json")


def test_a_disk_that_is_full_in_the_end_does_not_hide_how_it_went(echo: int, tmp_path: Path) -> None:
    folder = tmp_path / "client"
    folder.mkdir()
    relay = Relay(("127.0.0.1", echo), folder / "socket.json")
    through(relay, echo, b"x")
    shutil.rmtree(folder)
    relay.close()
    assert relay.counts == {"up": 1, "down": 2}
