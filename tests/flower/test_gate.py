"""The network reaches what clients need of the SuperLink, and nothing else."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import httpx

from support_federation import free_port
from tinyproto.errors import FederationError
from tinyproto.flower.certificates import ServerKeys, make_keys
from tinyproto.flower.gate import OVERHEAD, PATHS, Gate, OpenGate

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
        """Every other method, so that one that got through would be noted."""
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
        self.gate = OpenGate(gate, "127.0.0.1", self.port, self.keys)
        self.client = httpx.Client(
            base_url=f"https://localhost:{self.port}",
            verify=ssl.create_default_context(cafile=str(self.keys.authority)), trust_env=False,
        )  # fmt: skip

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
    with pytest.raises(FederationError, match="in use; is another federation there"):
        OpenGate(Gate("127.0.0.1:1", site.keys, 1), "127.0.0.1", site.port, site.keys)


def test_the_calls_are_those_that_flower_has() -> None:
    from flwr.superlink.routers.fleet.router import router

    served = {route.path for route in router.routes}
    assert served >= PATHS
    assert served - PATHS == {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}
