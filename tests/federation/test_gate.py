"""The network reaches what clients need of the SuperLink, and nothing else."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import httpx

from support_federation import free_port
from tinyproto.errors import FederationError
from tinyproto.federation.flower import gate as gate_module
from tinyproto.federation.flower.gate import OVERHEAD, PATHS, Gate, OpenGate
from tinyproto.federation.flower.handshakes import network_of
from tinyproto.federation.key_making import make_keys
from tinyproto.federation.keys import ServerKeys
from tinyproto.federation.processes import listening

pytestmark = pytest.mark.flower

LARGEST = 1000


class Behind(BaseHTTPRequestHandler):
    """Stands for the SuperLink: notes what reaches it."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str | None, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.seen.append((self.path, self.headers["x-signature"], body))
        self.send_response(401 if body == b"unknown" else 200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[::-1])

    def __getattr__(self, name: str) -> Callable[[], None]:
        """Handle every other method, so that one that gets through is noted."""
        if name.startswith("do_"):
            return self.do_POST
        raise AttributeError(name)

    def log_message(self, *_: object) -> None:
        pass


class Site:
    """A gate, what is behind it, and a client of it."""

    def __init__(self, folder: Path) -> None:
        make_keys(folder, 1, [])
        self.keys = ServerKeys.open(folder)
        self.seen: list[tuple[str, str | None, bytes]] = []
        handler = type("Noting", (Behind,), {"seen": self.seen})
        self.behind = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.keys.certificate, self.keys.key)
        self.behind.socket = context.wrap_socket(self.behind.socket, server_side=True)
        threading.Thread(target=self.behind.serve_forever, daemon=True).start()
        self.port = free_port()
        gate = Gate(f"127.0.0.1:{self.behind.server_address[1]}", self.keys, LARGEST)
        self.gate = OpenGate(gate, self.keys, listening("127.0.0.1", self.port))
        self.client = httpx.Client(
            base_url=f"https://localhost:{self.port}",
            verify=ssl.create_default_context(cafile=str(self.keys.authority)), trust_env=False,
        )  # fmt: skip

    def connect(self) -> ssl.SSLSocket:
        """A connection on which a test writes what it likes."""
        context = ssl.create_default_context(cafile=str(self.keys.authority))
        opened = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        return context.wrap_socket(opened, server_hostname="localhost")

    def close(self) -> None:
        self.client.close()
        self.gate.close()
        self.behind.shutdown()
        self.behind.server_close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def test_what_a_client_calls_is_passed_on_with_its_signature_and_answered(site: Site) -> None:
    answer = site.client.post("/v1/fleet/pull-messages", content=b"abc", headers={"x-signature": "s"})
    assert (answer.status_code, answer.content) == (200, b"cba")
    assert answer.headers["content-type"] == "application/x-protobuf"
    assert site.client.post("/v1/fleet/push-object", content=b"unknown").status_code == 401
    assert site.seen == [("/v1/fleet/pull-messages", "s", b"abc"), ("/v1/fleet/push-object", None, b"unknown")]


@pytest.mark.parametrize(
    "path",
    [
        "/", "/health", "/docs", "/openapi.json", "/v1/control/start-run", "/v1/control/register-node",
        "/v1/control/list-nodes", "/v1/runtime/acquire-task", "/v1/runtime/push-logs", "/v1/fleet/register-node",
        "/v1/fleet/unregister-node", "/v1/fleet/", "/v1/fleet/pull-messages/", "/v1/fleet//pull-messages",
        "/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run", "/v1/fleet/..%2fcontrol%2fstart-run",
        "/V1/fleet/pull-messages", "/v1/fleet/pull-messages?x=1", "//v1/control/start-run",
    ],
)  # fmt: skip
def test_nothing_else_is_reached(path: str, site: Site) -> None:
    target = httpx.URL(f"https://localhost:{site.port}").copy_with(raw_path=path.encode())
    assert site.client.post(target, content=b"x").status_code == 404
    assert site.seen == []


def test_only_posts_are_passed_on(site: Site) -> None:
    for method in ("GET", "PUT", "DELETE", "OPTIONS"):
        assert site.client.request(method, "/v1/fleet/get-run").status_code == 405
    assert site.seen == []


def test_more_than_the_largest_frame_is_refused_before_it_is_passed_on(site: Site) -> None:
    largest = bytes(LARGEST + OVERHEAD)
    assert site.client.post("/v1/fleet/push-object", content=largest).status_code == 200
    assert site.client.post("/v1/fleet/push-object", content=largest + b"x").status_code == 413
    assert len(site.seen) == 1


def test_a_superlink_that_is_away_is_a_reason_to_try_again(site: Site) -> None:
    site.behind.shutdown()
    site.behind.server_close()
    assert site.client.post("/v1/fleet/pull-messages", content=b"x").status_code == 503


def test_an_address_in_use_is_an_error_that_says_what_to_do(site: Site) -> None:
    with pytest.raises(FederationError, match=r"in use; .*--listen"):
        listening("127.0.0.1", site.port)


def test_the_calls_are_those_that_flower_has() -> None:
    from flwr.superlink.routers.fleet.router import router

    served = {route.path for route in router.routes}
    assert served >= PATHS
    assert served - PATHS == {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}


HEADER = b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n"


def is_cut_off(opened: ssl.SSLSocket) -> bool:
    """Return whether the connection ends, after any last bytes, instead of staying open."""
    try:
        while opened.recv(1000):
            pass
    except (ConnectionError, ssl.SSLError):
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("sent", [b"", HEADER[:30]], ids=["nothing", "half a header"])
def test_a_connection_without_a_header_is_cut_off(sent: bytes, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "HEADER_SECONDS", 0.5)
    with site.connect() as opened:
        opened.sendall(sent)
        assert is_cut_off(opened)
    assert site.seen == []


def test_a_header_that_comes_by_drops_is_cut_off_also_after_a_whole_request(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_module, "HEADER_SECONDS", 1.0)
    with site.connect() as opened:
        opened.sendall(HEADER + b"0123456789")
        assert opened.recv(1000).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - began < 8:
                opened.sendall(b"P")
                time.sleep(0.1)
        assert time.monotonic() - began < 8
    assert len(site.seen) == 1


def test_a_body_that_does_not_come_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "BODY_SECONDS", 1.5)
    monkeypatch.setattr(gate_module, "HEADER_SECONDS", 1.0)  # which is no limit for it
    with site.connect() as opened:
        opened.sendall(HEADER + b"01234")
        assert opened.recv(1000).startswith(b"HTTP/1.1 503")
        assert is_cut_off(opened)
    assert site.seen == []


def test_a_body_that_is_cut_off_is_not_passed_on(site: Site) -> None:
    with site.connect() as opened:
        opened.sendall(HEADER + b"01234")
        time.sleep(0.3)
    assert site.client.post("/v1/fleet/push-object", content=b"whole").status_code == 200
    time.sleep(0.3)
    assert [body for _, _, body in site.seen] == [b"whole"]


def test_one_address_cannot_take_all_connections(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "MOST_PER_ADDRESS", 3)
    few = [site.connect() for _ in range(5)]  # of the loopback, where a proxy may be
    assert site.client.post("/v1/fleet/push-object", content=b"a").status_code == 200
    for opened in few:
        opened.close()
    elsewhere = network_of("192.0.2.7")
    monkeypatch.setattr(gate_module, "network_of", lambda _: elsewhere)
    few = [site.connect() for _ in range(4)]
    assert is_cut_off(few[3])
    few[0].sendall(HEADER + b"0123456789")
    assert few[0].recv(1000).startswith(b"HTTP/1.1 200")
    few[1].close()
    time.sleep(0.3)
    with site.connect() as opened:
        opened.sendall(HEADER + b"0123456789")
        assert opened.recv(1000).startswith(b"HTTP/1.1 200")
    for opened in few:
        opened.close()


def test_all_addresses_together_have_a_limit(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "MOST_AT_ONCE", 3)
    few = [site.connect() for _ in range(4)]
    assert is_cut_off(few[3])
    few[0].sendall(HEADER + b"0123456789")
    assert few[0].recv(1000).startswith(b"HTTP/1.1 200")
    for opened in few:
        opened.close()
