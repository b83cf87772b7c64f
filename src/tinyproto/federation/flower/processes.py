"""Flower's processes, each on a leash: the coordinator's SuperLink and a client's SuperNode."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinyproto.errors import FederationError
from tinyproto.federation import not_installed
from tinyproto.federation.flower.connection import AwayError, TurnedAwayError
from tinyproto.federation.journal import writing
from tinyproto.federation.keys import ClientKeys, ServerKeys
from tinyproto.federation.processes import Leashed, free_port

START_SECONDS = 60.0
"""Time for a SuperLink to answer; it takes 3 s on an idle machine."""

COMMAND_SECONDS = 60.0
UNREGISTERED = "unregistered"
LAST_WORDS = 300
CONNECTION = "tinyproto"
"""Name of the SuperLink in Flower's configuration."""

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",  # instead of 1.0, so that a message waits less for its process
}
PROXIES = {f"{kind}_proxy" for kind in ("http", "https", "all", "no")}
APP = """\
[project]
name = "tinyproto-federation"
version = "1.0.0"
description = "A federation that tinyproto serve started"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "tinyproto"

[tool.flwr.app.components]
serverapp = "tinyproto.federation.flower.server_app:app"
clientapp = "tinyproto.federation.flower.client_app:app"

[tool.flwr.app.config]
folder = {folder}
"""


def program(name: str) -> str:
    """Return the path of one of Flower's commands, from this Python's environment."""
    found = shutil.which(name, path=_search_path())
    if found is None:
        raise not_installed(f"{name} is not installed beside {sys.executable}", "flower")
    return found


def environment(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for Flower's processes: files in `home`, no telemetry, no proxy."""
    kept = {name: value for name, value in os.environ.items() if name.lower() not in PROXIES}
    return kept | QUIET | {"FLWR_HOME": str(home), "PATH": _search_path()} | dict(more or {})


def _search_path() -> str:
    return os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)))


def _end_of(text: str) -> str:
    return " ".join(text.split())[-LAST_WORDS:]


class SuperLink(Leashed):
    """The coordinator's end of Flower, on the loopback of its machine, in its own folder."""

    def __init__(self, folder: Path, keys: ServerKeys) -> None:
        self.folder = folder = folder.resolve()
        self.keys = keys
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.env = environment(folder)
        with writing(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # private: its database holds clients' replies
            (folder / "config.toml").write_text(
                f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{self.address}"\n'
                f"root-certificates = {json.dumps(str(keys.authority))}\n",
                encoding="utf-8",
            )
        command = [
            program("flower-superlink"), "--host", "127.0.0.1", "--port", str(self.port),
            "--database", str(folder / "superlink.db"), "--ssl-ca-certfile", str(keys.authority),
            "--ssl-certfile", str(keys.certificate), "--ssl-keyfile", str(keys.key), "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
        ]  # fmt: skip
        super().__init__(command, self.env, folder / "superlink.log")

    def wait_until_up(self) -> None:
        """Wait until its health endpoint answers; raise FederationError if it ends or stays silent."""
        opener = self._opener()
        give_up = time.monotonic() + START_SECONDS
        while time.monotonic() < give_up and self.status is None:
            try:
                with opener.open(f"https://{self.address}/health", timeout=2):
                    return
            except OSError:  # urllib's errors are among these
                time.sleep(0.1)
        reason = f"no answer within {START_SECONDS:g} s" if self.status is None else "it ended"
        raise FederationError(
            f"Flower's SuperLink did not start: {reason}; the end of its log: {_end_of(self.said()) or 'none'}"
        )

    def register(self) -> dict[int, int]:
        """Register exactly the clients' public keys; return the node ids, by client.

        The SuperLink is asked which keys it knows, so an interrupted start leaves nothing to repair. Keys that are gone
        from the folder are unregistered, for good: Flower does not register a key a second time.
        """
        from flwr.proto import control_pb2 as control

        public = {bytes.fromhex(key): client for client, key in self.keys.public_keys().items()}
        nodes: dict[int, int] = {}
        for node in self._control("list-nodes", control.ListNodesRequest(), control.ListNodesResponse).nodes_info:
            client = public.get(node.public_key)
            if client is None and node.status != UNREGISTERED:
                request = control.UnregisterNodeRequest(node_id=node.node_id)
                self._control("unregister-node", request, control.UnregisterNodeResponse)
            elif client is not None and node.status == UNREGISTERED:
                raise FederationError(
                    f"{self.keys.clients[client]} was removed from this federation before, and Flower does not "
                    f"register a key again; make a new key for client {client}"
                )
            elif client is not None:
                nodes[client] = node.node_id
        for key, client in public.items():
            if client not in nodes:
                request = control.RegisterNodeRequest(public_key=key, name=f"client {client}")
                nodes[client] = self._control("register-node", request, control.RegisterNodeResponse).node_id
        return dict(sorted(nodes.items()))

    def _control(self, call: str, request: Any, response: Any) -> Any:
        """Call Flower's Control interface; raise FederationError if it fails."""
        asked = urllib.request.Request(
            f"https://{self.address}/v1/control/{call}", request.SerializeToString(),
            {"Content-Type": "application/protobuf", "Accept": "application/protobuf"},
        )  # fmt: skip
        try:
            with self._opener().open(asked, timeout=COMMAND_SECONDS) as answer:
                return response.FromString(answer.read())
        except OSError as error:
            reason = error.read().decode(errors="replace") if isinstance(error, urllib.error.HTTPError) else str(error)
            raise FederationError(f"Flower's SuperLink failed at {call}: {_end_of(reason)}") from error

    def _opener(self) -> urllib.request.OpenerDirector:
        """Return an opener for requests to it, with its certificate and no proxy."""
        context = ssl.create_default_context(cafile=str(self.keys.authority))
        return urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )

    def submit(self, run_folder: Path) -> Leashed:
        """Start a run of our ServerApp on a folder; the process ends with the run."""
        app = self.folder / "app"
        with writing(app):
            app.mkdir(exist_ok=True)
            text = APP.format(folder=json.dumps(str(run_folder.resolve())))
            (app / "pyproject.toml").write_text(text, encoding="utf-8")
        command = [program("flwr"), "run", str(app), CONNECTION, "--stream"]
        return Leashed(command, self.env, self.folder / "run.log")


def why_it_ended(status: int | None, said: str, log: Path) -> Exception:
    """Return the reason why a SuperNode ended by itself, from its exit status and its log.

    It interrupts itself, and so ends with status 0, when the coordinator rejects its signature. For other reasons
    Flower 1.41 has no interface but the log.
    """
    if status == 0:
        return TurnedAwayError(
            "the coordinator does not accept this client's signature: its key was removed, or a clock is wrong"
        )
    failed_to_connect = "Exit Code: 305" in said  # ExitCode.SUPERNODE_CONNECTION_ERROR
    if failed_to_connect and "code:" in said:  # of an error in the coordinator's answer
        return TurnedAwayError(
            "the coordinator does not accept this key: it is not registered there, or was in use a moment ago"
        )
    return AwayError("the connection broke" if failed_to_connect else f"Flower's SuperNode ended; see {log}")


class SuperNode(Leashed):
    """A client's end of Flower; stopped, it says goodbye to the coordinator. Only its log tells how far it is."""

    def __init__(self, folder: Path, server: str, keys: ClientKeys, client: int, proxy: str) -> None:
        node_config = f"client-id={client} folder={json.dumps(str(folder.resolve()))}"
        command = [
            program("flower-supernode"), "--superlink", server, "--root-certificates", str(keys.authority),
            "--auth-supernode-private-key", str(keys.key), "--port", str(free_port()), "--node-config", node_config,
        ]  # fmt: skip
        home = folder.resolve() / "flower"
        with writing(home):
            home.mkdir(parents=True, exist_ok=True)
        env = environment(home, {"HTTPS_PROXY": proxy, "https_proxy": proxy})
        super().__init__(command, env, home / "supernode.log")

    @property
    def is_connected(self) -> bool:
        """Return whether the coordinator has admitted it."""
        return "SuperNode ID:" in self.said()

    @property
    def has_answered(self) -> bool:
        """Return whether the reply to the last message has been sent."""
        said = self.said()
        return said.rfind("Sent successfully") > said.rfind("Receiving: ")
