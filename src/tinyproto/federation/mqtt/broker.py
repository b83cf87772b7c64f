"""A Mosquitto of our own: started on a leash with its config, watched, and started again if it ends."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tinyproto.errors import FederationError
from tinyproto.federation.journal import writing
from tinyproto.federation.keys import COORDINATOR, ServerKeys
from tinyproto.federation.mqtt.messages import SESSION_SECONDS, Topics
from tinyproto.federation.processes import Leashed, free_port
from tinyproto.storage.atomic import write_atomic

START_SECONDS = 20.0
RESTARTS, RESTART_SECONDS = 5, 60.0
"""`serve` gives up if the broker ends more often than this within this time."""

SAVE_SECONDS = 10
"""The broker writes sessions and waiting messages to its disk this often; a kill loses at most what came since."""

OVERHEAD = 1024
"""Bytes that a packet may have beside a frame: topic, properties, code."""

LARGEST_TERMS = 256 * 1024
"""Bytes of terms: with many names of classes, they are longer than small frames."""

MOST_WAITING, WAITING_PACKETS = 64 * 1024 * 1024, 4
"""Bytes that wait for one receiver, sent and unsent: at least these, and enough for so many packets of each client."""

CONFIG = """\
# Written by `tinyproto serve`; changes are lost.
user root
pid_file {folder}/mosquitto.pid
log_dest stdout
log_type error
log_type warning
log_type notice
persistence true
persistence_location {folder}/
autosave_interval {save}
persistent_client_expiration {expiration}d
retain_available false
allow_anonymous false
per_listener_settings false
acl_file {folder}/access
max_inflight_messages 0
max_inflight_bytes {waiting}
max_queued_messages {queued}
max_queued_bytes {waiting}
max_packet_size {packet}
max_keepalive 65535
set_tcp_nodelay true
sys_interval 0
"""
LISTENER = """
listener {port} {host}
cafile {authority}
certfile {certificate}
keyfile {key}
require_certificate true
use_identity_as_username true
use_username_as_clientid true
tls_version tlsv1.2
"""


def mosquitto() -> str:
    """Return the path of Mosquitto; raise FederationError if it is not installed."""
    search = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin"))
    found = shutil.which("mosquitto", path=search)
    if found is None:
        raise FederationError(
            "--transport mqtt needs a broker: install Mosquitto (`apt-get install mosquitto`, `brew install "
            "mosquitto`), or use another broker with --broker HOST:PORT"
        )
    return found


def access_list(names: Mapping[int, str]) -> str:
    """Return what each certificate may do: client N writes `uN`, reads `dN` and the shared topic, and nothing else."""
    topics = Topics()
    lines = [f"user {COORDINATOR}", f"topic write {topics.everyone}"]
    for client in names:
        lines += [f"topic read {topics.up(client)}", f"topic write {topics.down(client)}"]
    for client, name in names.items():
        lines += ["", f"user {name}", f"topic write {topics.up(client)}"]
        lines += [f"topic read {topic}" for topic in (topics.down(client), topics.everyone)]
    return "\n".join((*lines, ""))


class OwnBroker:
    """Mosquitto, at the address for clients and at one on the loopback for the coordinator."""

    def __init__(self, folder: Path, keys: ServerKeys, address: tuple[str, int], largest_frame: int) -> None:
        self.folder = folder.resolve()
        self._program = mosquitto()
        self._starts: list[float] = []
        host, port = address
        host = (
            "127.0.0.1" if host == "localhost" else host
        )  # Mosquitto wants all addresses of a name, also unusable ones
        inner = port if host in ("0.0.0.0", "127.0.0.1") else free_port()
        self.address = ("127.0.0.1", inner)
        files = {"authority": keys.authority, "certificate": keys.certificate, "key": keys.key}
        places = [(host, port)] if inner == port else [(host, port), self.address]
        packet = max(largest_frame, LARGEST_TERMS) + OVERHEAD
        text = CONFIG.format(
            folder=self.folder, save=SAVE_SECONDS, expiration=SESSION_SECONDS // 86400,
            queued=4 * len(keys.clients) + 1000, packet=packet,
            waiting=max(MOST_WAITING, WAITING_PACKETS * len(keys.clients) * packet),
        )  # fmt: skip
        text += "".join(LISTENER.format(host=place, port=number, **files) for place, number in places)
        with writing(self.folder):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(self.folder / "access", access_list(keys.client_names()), 0o600)
            write_atomic(self.folder / "mosquitto.conf", text, 0o600)
        self._process = self._start()
        try:
            self._wait_until_up()
        except FederationError as error:
            sessions = self.folder / "mosquitto.db"
            if not sessions.exists() or "ddress" in str(error):  # an address in use or unknown damages no file
                raise
            sessions.replace(sessions.with_suffix(".damaged"))  # as after a power cut; both ends send again what it had
            self._process = self._start()
            self._wait_until_up()

    @property
    def log(self) -> Path:
        """Return the file with what it says."""
        return self.folder / "mosquitto.log"

    def _start(self) -> Leashed:
        self._starts.append(time.monotonic())
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with contextlib.suppress(ValueError):  # macOS allows less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # inherited: one file for each connection
        command = [self._program, "-c", str(self.folder / "mosquitto.conf")]
        return Leashed(command, dict(os.environ), self.log)

    def _wait_until_up(self) -> None:
        give_up = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.wait(0.05) or time.monotonic() > give_up:
                said = [line.partition(": ")[2] for line in self._process.said().splitlines() if "Error" in line][-2:]
                self.stop()
                raise FederationError(f"Mosquitto did not start: {' '.join(said) or 'no reason given'}")

    def _answers(self) -> bool:
        try:
            socket.create_connection(self.address, 1.0).close()
        except OSError:
            return False
        return True

    def watch(self, tell: Callable[..., None]) -> None:
        """Start it again if it has ended; raise FederationError if that happens again and again."""
        if self._process.status is None:
            return
        now = time.monotonic()
        if len([start for start in self._starts if now - start < RESTART_SECONDS]) > RESTARTS:
            raise FederationError(f"Mosquitto ends again and again; its log is {self.log}")
        tell("warned", reason=f"Mosquitto ended with status {self._process.status}; starting it again")
        self._process = self._start()

    def stop(self) -> None:
        """End it."""
        self._process.stop()
