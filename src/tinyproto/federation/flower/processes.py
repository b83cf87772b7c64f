"""Flower's real processes: started on a leash, with logs of their own, and ended with all that came of them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib.util
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinyproto.errors import FederationError
from tinyproto.federation.certificates import ClientKeys, ServerKeys
from tinyproto.federation.files import writing
from tinyproto.federation.flower import leash

if TYPE_CHECKING:
    from flwr.proto.node_pb2 import NodeInfo


START_SECONDS = 60.0
"""For a SuperLink to answer; it takes 3 on an idle machine."""

COMMAND_SECONDS = 60.0
REGISTER_AT_ONCE = 4
UNREGISTERED = "unregistered"
LAST_WORDS = 300
LOOK_SECONDS = 0.2
CONNECTION = "tinyproto"
"""What the SuperLink is called in Flower's own configuration."""

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",  # of 1.0: a message waits that much less for its process
}
PROXIES = {f"{kind}_proxy" for kind in ("http", "https", "all", "no")}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
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
    """One of Flower's commands, from the environment that this Python is of."""
    found = shutil.which(name, path=_search_path())
    if found is None:
        raise not_installed(f"{name} is not installed beside {sys.executable}")
    return found


def environment(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """For Flower's processes: its files in a folder of ours, nothing sent elsewhere, no proxy on the way."""
    kept = {name: value for name, value in os.environ.items() if name.lower() not in PROXIES}
    return kept | QUIET | {"FLWR_HOME": str(home), "PATH": _search_path()} | dict(more or {})


def _search_path() -> str:
    return os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)))


def free_port() -> int:
    """One on the loopback that nobody uses now."""
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            return port
    except OSError as error:
        raise FederationError(f"cannot listen on this machine's loopback: {error.strerror or error}") from error


def split_address(text: str, option: str) -> tuple[str, int]:
    """HOST:PORT taken apart; an IPv6 address is in brackets."""
    found = re.fullmatch(r"\[([0-9a-fA-F:.]+)\]:(\d+)|([^:/\s\[\]]+):(\d+)", text)
    port = int(found[2] or found[4]) if found else 0
    if found is None or not 1 <= port <= 65535:
        raise FederationError(f"{option}: HOST:PORT is needed, such as 192.168.1.20:8443, not {text!r}")
    return found[1] or found[3], port


def _end_of(text: str) -> str:
    """In one line."""
    return " ".join(text.split())[-LAST_WORDS:]


class Kept:
    """A command on a leash, and its log."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.log = log
        try:
            with log.open("ab") as stream:
                self._from = stream.tell()
                self._process = subprocess.Popen(
                    [sys.executable, "-I", str(leash.__file__), *command], stdin=subprocess.PIPE, stdout=stream,
                    stderr=subprocess.STDOUT, env=dict(env), start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            raise FederationError(f"cannot start {command[0]}: {error.strerror or error}") from error

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self._process.poll() is not None

    def wait(self, seconds: float) -> bool:
        """Whether it was over within so many seconds."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        """Let go of the leash, and wait until nothing of it runs."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if not self.wait(4 * leash.GRACE_SECONDS):
            self._process.kill()
            self._process.wait()

    def said(self) -> str:
        """What it wrote since it was started, without colours."""
        with self.log.open("rb") as stream:
            stream.seek(self._from)
            return _COLOUR.sub("", stream.read().decode("utf-8", errors="replace"))

    def last_words(self) -> str:
        """The end of what it wrote, in one line; for when its log does not stay."""
        return _end_of(self.said()) or "none"


class SuperLink:
    """The coordinator's end of Flower, on the loopback of its machine, in a folder of its own."""

    def __init__(self, folder: Path, keys: ServerKeys, look: Callable[[], None] = lambda: None) -> None:
        self.folder = folder = folder.resolve()
        self.keys = keys
        self.look = look  # is called several times a second while something is waited for, and raises to end that
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.env = environment(folder)
        with writing(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # its database holds a token and clients' replies
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
        self.process = Kept(command, self.env, folder / "superlink.log")

    def wait_until_up(self) -> None:
        """Until it answers."""
        opener = self._opener()
        give_up = time.monotonic() + START_SECONDS
        while time.monotonic() < give_up and not self.process.ended:
            self.look()
            try:
                with opener.open(f"https://{self.address}/health", timeout=2):
                    return
            except OSError:  # of which urllib's errors are some
                time.sleep(0.1)
        reason = "it ended" if self.process.ended else f"it does not answer within {START_SECONDS:g} s"
        raise FederationError(
            f"Flower's SuperLink did not start: {reason}; its last words: {self.process.last_words()}"
        )

    def register(self, clients: Mapping[int, Path]) -> dict[int, int]:
        """Make these public keys, by client, the ones that may take part; the nodes' numbers, by client.

        The SuperLink itself says which it knows, so that a start that was interrupted leaves nothing to put right. Keys
        that are gone from the folder are taken back, for good: Flower does not register a key a second time.
        """
        public = {bytes.fromhex(told): client for client, told in self.keys.public_keys().items() if client in clients}
        nodes: dict[int, int] = {}
        for node in self._nodes():
            client = public.get(node.public_key)
            if client is None and node.status != UNREGISTERED:
                self._flwr("supernode", "unregister", str(node.node_id))
            elif client is not None and node.status == UNREGISTERED:
                raise FederationError(
                    f"{clients[client]} was taken back in this federation, and Flower does not take a key again; "
                    f"client {client} needs a new one"
                )
            elif client is not None:
                nodes[client] = node.node_id
        new = [client for client in clients if client not in nodes]
        with concurrent.futures.ThreadPoolExecutor(REGISTER_AT_ONCE) as pool:
            made = pool.map(lambda client: self._register(client, clients[client]), new)
            nodes |= dict(zip(new, made, strict=True))
        return dict(sorted(nodes.items()))

    def _nodes(self) -> Sequence[NodeInfo]:
        """All that are or were registered, with their keys, which `flwr supernode list` does not tell."""
        from flwr.proto.control_pb2 import ListNodesRequest, ListNodesResponse

        request = urllib.request.Request(
            f"https://{self.address}/v1/control/list-nodes", ListNodesRequest().SerializeToString(),
            {"Content-Type": "application/protobuf", "Accept": "application/protobuf"},
        )  # fmt: skip
        try:
            with self._opener().open(request, timeout=COMMAND_SECONDS) as answer:
                nodes: Sequence[NodeInfo] = ListNodesResponse.FromString(answer.read()).nodes_info
                return nodes
        except OSError as error:
            raise FederationError(f"Flower's SuperLink does not say who is registered: {error}") from error

    def _opener(self) -> urllib.request.OpenerDirector:
        """For requests to it: under its certificate, and past every proxy."""
        context = ssl.create_default_context(cafile=str(self.keys.authority))
        return urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )

    def _register(self, client: int, key: Path) -> int:
        return int(self._flwr("supernode", "register", str(key), "--name", f"client {client}")["node-id"])

    def submit(self, run_folder: Path) -> Kept:
        """Start a run of our ServerApp on a folder; it is over when the run is."""
        app = self.folder / "app"
        with writing(app):
            app.mkdir(exist_ok=True)
            said = APP.format(folder=json.dumps(str(run_folder.resolve())))
            (app / "pyproject.toml").write_text(said, encoding="utf-8")
        command = [program("flwr"), "run", str(app), CONNECTION, "--stream"]
        return Kept(command, self.env, self.folder / "run.log")

    def _flwr(self, verb: str, *arguments: str) -> dict[str, Any]:
        """One of Flower's own commands at this SuperLink, and what it says."""
        command = [program("flwr"), verb, arguments[0], *arguments[1:], CONNECTION, "--format", "json"]
        heard = self._hear(command)
        try:
            said: dict[str, Any] = json.loads(heard)
        except ValueError:
            said = {}
        if not said.get("success"):
            reason = said.get("error-message") or heard or f"it did not answer within {COMMAND_SECONDS:g} s"
            raise FederationError(f"`flwr {verb} {arguments[0]}` failed: {_end_of(str(reason))}")
        return said

    def _hear(self, command: Sequence[str]) -> str:
        """What a command writes, nothing where it takes too long; a Ctrl-C at the terminal does not reach it."""
        self.look()
        with subprocess.Popen(
            command, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            encoding="utf-8", errors="replace", start_new_session=True,
        ) as process:  # fmt: skip
            give_up = time.monotonic() + COMMAND_SECONDS
            try:
                while time.monotonic() < give_up:
                    self.look()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        written, complained = process.communicate(timeout=LOOK_SECONDS)
                        return written or complained
            finally:
                process.kill()
        return ""

    def stop(self) -> None:
        """End it, with the ServerApp."""
        self.process.stop()


class SuperNode:
    """A client's end of Flower."""

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
        self.process = Kept(command, env, home / "supernode.log")

    @property
    def is_connected(self) -> bool:
        """Whether the coordinator took it in."""
        return "SuperNode ID:" in self.process.said()

    @property
    def has_answered(self) -> bool:
        """Whether the last message that came was answered, and the answer sent."""
        said = self.process.said()
        return said.rfind("Sent successfully") > said.rfind("Receiving: ")

    @property
    def is_cut_off(self) -> bool:
        """Whether the coordinator no longer answers since its last answer was sent."""
        return "Connection attempt failed" in self.process.said().rpartition("Sent successfully")[2]

    def stop(self) -> None:
        """End it, with the ClientApp; the coordinator is told goodbye."""
        self.process.stop()


def require_flower() -> None:
    """An error, in words, where `serve` and `join` cannot work."""
    if os.name != "posix":
        raise FederationError("serve and join need Linux or macOS")
    if importlib.util.find_spec("flwr") is None:
        raise not_installed("serve and join need Flower")


def not_installed(lack: str) -> FederationError:
    """What is missing, and where it comes from: the clone, since the name on the public index is another's."""
    return FederationError(
        f"{lack}; in an environment of its own, in the folder of the clone: "
        'pip install --constraint constraints.txt --editable ".[flower]"'
    )
