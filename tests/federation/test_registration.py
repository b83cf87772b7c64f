"""Registration of keys at the SuperLink, after an interrupted start and after keys were removed."""

from __future__ import annotations

import http.server
import ssl
import threading
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.proto.node_pb2 import NodeInfo

from support_federation import free_port
from tinyproto.errors import FederationError
from tinyproto.federation.flower.processes import SuperLink
from tinyproto.federation.key_making import make_keys
from tinyproto.federation.keys import ServerKeys

pytestmark = pytest.mark.flower
CLIENTS = 6


class Pretended(SuperLink):
    """Flower's registry of keys, as it behaves at its Control interface, without the processes."""

    def __init__(self, keys: ServerKeys) -> None:
        self.keys = keys
        self.registry: dict[int, NodeInfo] = {}
        self.fails_at = -1

    def _control(self, call: str, request: Any, response: Any) -> Any:
        if call == "list-nodes":
            return response(nodes_info=list(self.registry.values()))
        if call == "unregister-node":
            self.registry[request.node_id].status = "unregistered"
            return response()
        assert call == "register-node"
        if any(request.public_key == known.public_key for known in self.registry.values()):
            raise FederationError("register-node failed: Public key already in use.")
        node = len(self.registry) + 1
        self.registry[node] = NodeInfo(node_id=node, public_key=request.public_key, status="registered")
        if node - 1 == self.fails_at:  # registered, but we do not hear of it
            raise FederationError("it did not answer")
        return response(node_id=node)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> ServerKeys:
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder, CLIENTS, [])
    return ServerKeys.open(folder)


def assert_registered(link: Pretended, nodes: dict[int, int]) -> None:
    assert {client: link.registry[node].public_key.hex() for client, node in nodes.items()} == link.keys.public_keys()
    there = [node for node, info in link.registry.items() if info.status != "unregistered"]
    assert sorted(there) == sorted(nodes.values())


@pytest.mark.parametrize("fails_at", range(CLIENTS))
def test_a_registration_that_was_interrupted_is_gone_on_with(fails_at: int, keys: ServerKeys) -> None:
    link = Pretended(keys)
    link.fails_at = fails_at
    with pytest.raises(FederationError, match="did not answer"):
        link.register()
    link.fails_at = -1
    assert_registered(link, link.register())


def test_a_key_that_is_gone_is_taken_back_and_the_others_keep_their_nodes(keys: ServerKeys) -> None:
    link = Pretended(keys)
    first = link.register()
    link.keys = keys.only([client for client in keys.clients if client != 2])
    again = link.register()
    assert again == {client: node for client, node in first.items() if client != 2}
    assert_registered(link, again)
    link.keys = keys
    with pytest.raises(FederationError, match=r"2\.pub .*key for client 2"):
        link.register()


class Answering(http.server.BaseHTTPRequestHandler):
    """A SuperLink that refuses."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(409)
        self.end_headers()
        self.wfile.write(b'{"message": "key  in use"}')

    def log_message(self, *_: object) -> None:
        pass


class Unreachable(SuperLink):
    """A SuperLink at this port, without its process."""

    def __init__(self, keys: ServerKeys, port: int) -> None:
        self.keys, self.address = keys, f"127.0.0.1:{port}"


def test_an_answer_that_refuses_is_quoted(keys: ServerKeys) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.certificate, keys.key)
    with http.server.HTTPServer(("127.0.0.1", 0), Answering) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.handle_request, daemon=True).start()
        with pytest.raises(FederationError, match=r"list-nodes.*key in use"):
            Unreachable(keys, server.server_port).register()


def test_a_superlink_that_is_gone_is_an_error(keys: ServerKeys) -> None:
    with pytest.raises(FederationError, match=r"list-nodes.*refused"):
        Unreachable(keys, free_port()).register()
