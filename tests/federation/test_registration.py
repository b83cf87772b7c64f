"""Which keys the SuperLink takes, after a start that was interrupted, and after keys were taken away."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.proto.node_pb2 import NodeInfo

from tinyproto.errors import FederationError, Interrupted
from tinyproto.federation.flower import processes
from tinyproto.federation.flower.processes import SuperLink
from tinyproto.federation.keys import ServerKeys, make_keys

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


class Slow(SuperLink):
    """A SuperLink at which Flower's own command takes its time."""

    def __init__(self, keys: ServerKeys, folder: Path, script: str, look: Callable[[], None]) -> None:
        self.keys, self.look = keys, look
        command = folder / "flwr"
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(0o755)
        self.env = {"PATH": f"{folder}:/usr/bin:/bin"}

    def _nodes(self) -> list[NodeInfo]:
        return []


@pytest.fixture
def own_flwr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(processes, "program", lambda name: str(tmp_path / name))
    return tmp_path


def test_a_wish_to_stop_ends_a_registration_at_once(keys: ServerKeys, own_flwr: Path) -> None:
    def look() -> None:
        if len(list(own_flwr.glob("pid-*"))) >= processes.REGISTER_AT_ONCE:
            raise Interrupted("go on with: …")

    link = Slow(keys, own_flwr, f"echo > {own_flwr}/pid-$$; exec sleep 50", look)
    start = time.monotonic()
    with pytest.raises(Interrupted):
        link.register(keys.clients)
    assert time.monotonic() - start < 10
    begun = [int(file.name.partition("-")[2]) for file in own_flwr.glob("pid-*")]
    assert len(begun) == processes.REGISTER_AT_ONCE < CLIENTS
    assert not [process for process in begun if Path(f"/proc/{process}").exists()]


def test_a_ctrl_c_at_the_terminal_does_not_reach_the_commands(keys: ServerKeys, own_flwr: Path) -> None:
    script = """set -- $(cat /proc/$$/stat); echo "{\\"success\\": true, \\"node-id\\": $5}" """
    nodes = Slow(keys, own_flwr, script, lambda: None).register(keys.clients)
    assert os.getpgrp() not in nodes.values()
    assert len(set(nodes.values())) == CLIENTS


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo no such option >&2; exit 2", "failed: no such option"),
        ("""echo '{"success": false, "error-message": "key  in use"}'""", "failed: key in use"),
        ("sleep 30", "failed: it did not answer within 0.5 s"),
    ],
)
def test_a_command_that_fails_is_quoted(
    script: str, words: str, keys: ServerKeys, own_flwr: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "COMMAND_SECONDS", 0.5)
    with pytest.raises(FederationError, match=f"`flwr supernode register` {words}"):
        Slow(keys, own_flwr, script, lambda: None).register(keys.only([0]).clients)
