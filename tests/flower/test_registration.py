"""Which keys the SuperLink takes, after a start that was interrupted, and after keys were taken away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.proto.node_pb2 import NodeInfo

from tinyproto.errors import FederationError
from tinyproto.flower.certificates import ServerKeys, make_keys
from tinyproto.flower.processes import SuperLink

pytestmark = pytest.mark.flower
CLIENTS = 6


class Pretended(SuperLink):
    """Flower's registry of keys, as it behaves at its command line, without the processes."""

    def __init__(self, keys: ServerKeys) -> None:
        self.keys = keys
        self.registry: dict[int, NodeInfo] = {}
        self.fails_at = -1

    def _nodes(self) -> list[NodeInfo]:
        return list(self.registry.values())

    def _flwr(self, verb: str, *arguments: str) -> dict[str, Any]:
        assert verb == "supernode"
        if arguments[0] == "unregister":
            self.registry[int(arguments[1])].status = "unregistered"
            return {}
        told = bytes.fromhex(self.keys.public_keys()[int(Path(arguments[1]).stem)])
        if any(told == known.public_key for known in self.registry.values()):
            raise FederationError("`flwr supernode register` failed: Public key already in use.")
        node = len(self.registry)
        self.registry[node] = NodeInfo(node_id=node, public_key=told, status="registered")
        if node == self.fails_at:  # registered, but we do not hear of it
            raise FederationError("it did not answer")
        return {"node-id": node}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> ServerKeys:
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder, CLIENTS, [])
    return ServerKeys.open(folder)


def assert_registered(link: Pretended, clients: dict[int, Path], nodes: dict[int, int]) -> None:
    public = link.keys.public_keys()
    assert {client: link.registry[node].public_key.hex() for client, node in nodes.items()} == {
        client: public[client] for client in clients
    }
    there = [node for node, info in link.registry.items() if info.status != "unregistered"]
    assert sorted(there) == sorted(nodes.values())


@pytest.mark.parametrize("fails_at", range(CLIENTS))
def test_a_registration_that_was_interrupted_is_gone_on_with(fails_at: int, keys: ServerKeys) -> None:
    link = Pretended(keys)
    link.fails_at = fails_at
    with pytest.raises(FederationError, match="did not answer"):
        link.register(keys.clients)
    link.fails_at = -1
    assert_registered(link, keys.clients, link.register(keys.clients))


def test_a_key_that_is_gone_is_taken_back_and_the_others_keep_their_nodes(keys: ServerKeys) -> None:
    link = Pretended(keys)
    first = link.register(keys.clients)
    left = {client: file for client, file in keys.clients.items() if client != 2}
    again = link.register(left)
    assert again == {client: node for client, node in first.items() if client != 2}
    assert_registered(link, left, again)
    with pytest.raises(FederationError, match=r"2\.pub was taken back in this federation.*client 2 needs a new one"):
        link.register(keys.clients)
