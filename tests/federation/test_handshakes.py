"""Connections that do not complete TLS cost little, end soon, and keep no honest client out."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from tinyproto.federation.flower import handshakes
from tinyproto.federation.flower.gate import Gate, OpenGate
from tinyproto.federation.flower.handshakes import Crowd, Pending, network_of
from tinyproto.federation.key_making import make_keys
from tinyproto.federation.keys import ServerKeys
from tinyproto.federation.processes import listening

pytestmark = pytest.mark.flower

REQUEST = b"GET /nothing HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
IDLE = 4000


class Site:
    """A gate with nothing behind it."""

    def __init__(self, folder: Path, listener: socket.socket) -> None:
        make_keys(folder, 1, [])
        keys = ServerKeys.open(folder)
        self.port = listener.getsockname()[1]
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.context = ssl.create_default_context(cafile=str(keys.authority))
        gate = Gate("127.0.0.1:1", keys, 1000)
        self.gate = OpenGate(gate, keys, listener, self._tell)

    def _tell(self, event: str, **facts: Any) -> None:
        self.told.append((event, facts))

    def connect(self, first: bytes = b"") -> socket.socket:
        """A connection that sends this and no more."""
        opened = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        opened.sendall(first)
        return opened

    def ask(self) -> bytes:
        """Return the answer to an honest client on a new connection."""
        with self.connect() as opened, self.context.wrap_socket(opened, server_hostname="localhost") as secured:
            secured.sendall(REQUEST)
            return secured.recv(12)

    def client_hello(self) -> bytes:
        """Return the first bytes of a TLS handshake."""
        received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            self.context.wrap_bio(received, to_send, server_hostname="localhost").do_handshake()
        return to_send.read()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, listening("127.0.0.1", 0))
    yield made
    made.gate.close()


def seconds_until_cut_off(opened: socket.socket) -> float:
    began = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while opened.recv(10_000):
            pass
    return time.monotonic() - began


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of all connections are in this process."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = IDLE + 1000
    if most != resource.RLIM_INFINITY and most < needed:
        pytest.skip(f"{needed} open files are not allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before, needed), most))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read as Linux tells it")
@pytest.mark.parametrize("speaks", [False, True], ids=["silent", "all begin TLS"])
def test_thousands_of_idle_connections_cost_little_and_keep_nobody_out(
    speaks: bool, site: Site, many_files: None
) -> None:
    assert site.ask() == b"HTTP/1.1 404"
    before = resident_bytes()
    first = site.client_hello() if speaks else b""
    with contextlib.ExitStack() as stack:
        for _ in range(IDLE):
            stack.enter_context(contextlib.closing(site.connect(first)))
        began = time.monotonic()
        assert site.ask() == b"HTTP/1.1 404"
        assert time.monotonic() - began < 5
        assert resident_bytes() - before < 50e6


def test_an_honest_client_comes_through_while_others_connect_again_and_again(site: Site) -> None:
    over = threading.Event()

    def crowd() -> None:
        held: list[socket.socket] = []
        while not over.is_set():
            with contextlib.suppress(OSError):
                held.append(site.connect())
            if len(held) > 300:
                held.pop(0).close()
        for opened in held:
            opened.close()

    thread = threading.Thread(target=crowd)
    thread.start()
    try:
        time.sleep(1.0)
        began = time.monotonic()
        assert [site.ask() for _ in range(5)] == 5 * [b"HTTP/1.1 404"]
        assert time.monotonic() - began < 10
    finally:
        over.set()
        thread.join()


def test_a_silent_connection_is_cut_off(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "FIRST_BYTE_SECONDS", 0.5)
    with site.connect() as opened:
        assert seconds_until_cut_off(opened) < 5


@pytest.mark.parametrize("whole", [False, True], ids=["one byte", "a whole first message"])
def test_a_handshake_that_stops_is_cut_off(whole: bool, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKE_SECONDS", 0.5)
    with site.connect(site.client_hello() if whole else handshakes.BEGINS_TLS) as opened:
        assert seconds_until_cut_off(opened) < 5


def test_what_is_no_tls_is_cut_off_at_once(site: Site) -> None:
    with site.connect(REQUEST) as opened:
        assert seconds_until_cut_off(opened) < handshakes.FIRST_BYTE_SECONDS / 2


def test_dropped_connections_are_told_of_once_in_a_while(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "FIRST_BYTE_SECONDS", 0.1)
    for _ in range(2):
        few = [site.connect() for _ in range(5)]
        for opened in few:
            seconds_until_cut_off(opened)
            opened.close()
    ((event, facts),) = site.told
    assert (event, facts["last_from"]) == ("dropped", "127.0.0.1")
    assert 1 <= facts["connections"] <= 5


class Exhausted(socket.socket):
    """A listener of a process that has no file descriptor left, when that is wanted, for one call."""

    wanted = False

    def accept(self) -> tuple[socket.socket, Any]:
        if self.wanted:
            self.wanted = False
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


def test_without_file_descriptors_the_oldest_connection_makes_room(tmp_path: Path) -> None:
    plain = listening("127.0.0.1", 0)
    listener = Exhausted(plain.family, plain.type, plain.proto, plain.detach())
    site = Site(tmp_path, listener)
    with site.connect() as idle:
        time.sleep(0.5)
        listener.wanted = True
        assert site.ask() == b"HTTP/1.1 404"
        assert seconds_until_cut_off(idle) < handshakes.FIRST_BYTE_SECONDS / 2
    assert not listener.wanted
    site.gate.close()


def pending(address: str) -> Pending:
    return Pending(socket.socket(), network_of(address), 0.0)


def test_the_oldest_of_the_address_with_the_most_goes_first() -> None:
    crowd = Crowd(4, 3)
    one, *others = [pending("192.0.2.1"), *(pending("192.0.2.2") for _ in range(3))]
    assert [crowd.add(each) for each in (one, *others)] == [None] * 4
    assert crowd.add(pending("192.0.2.3")) is others[0]
    del crowd[others[0]]
    assert len(crowd) == 4
    del crowd[one]
    assert crowd.add(new := pending("192.0.2.2")) is None
    assert crowd.add(pending("192.0.2.2")) is others[1]  # of one address there are too many
    assert new in crowd


def test_the_loopback_may_have_all_but_no_more() -> None:
    crowd = Crowd(4, 2)
    few = [pending("127.0.0.1") for _ in range(5)]
    assert [crowd.add(each) for each in few] == [None] * 4 + [few[0]]


def test_what_counts_as_one_address() -> None:
    one = network_of
    assert one("192.0.2.7") == one("::ffff:192.0.2.7") != one("192.0.2.8")
    assert one("2001:db8::1") == one("2001:db8::2%eth0") != one("2001:db8:0:1::1")
    assert all(one(here).is_loopback for here in ("127.0.0.1", "127.9.9.9", "::1"))
