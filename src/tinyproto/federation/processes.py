"""Processes that a transport needs: started on a leash, each with its log, and ended with all their descendants."""

from __future__ import annotations

import errno
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tinyproto.errors import FederationError
from tinyproto.federation import leash

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


_HINTS = {
    errno.EADDRINUSE: "another process listens there; choose another address with --listen HOST:PORT",
    errno.EADDRNOTAVAIL: "it is not an address of this machine; 0.0.0.0 listens on all of them",
    errno.EACCES: "ports below 1024 may need an administrator; choose another one with --listen HOST:PORT",
}

BACKLOG = 512
"""Connections that wait to be accepted."""


def free_port() -> int:
    """Return a port on the loopback that is not in use now."""
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            return port
    except OSError as error:
        raise FederationError(f"cannot listen on this machine's loopback: {error.strerror or error}") from error


def listening(host: str, port: int) -> socket.socket:
    """Open a listening socket at this address; raise FederationError if that fails."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise FederationError(f"cannot listen on {host}:{port}: the host name {host} is unknown") from error
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        reason = error.strerror or str(error)
        hint = _HINTS.get(error.errno or 0, "choose another address with --listen HOST:PORT")
        raise FederationError(f"cannot listen on {host}:{port}: {reason}; {hint}") from error
    return opened


def split_address(text: str, option: str) -> tuple[str, int]:
    """Split HOST:PORT, with an IPv6 address in brackets; raise FederationError if it is invalid."""
    found = re.fullmatch(r"\[([0-9a-fA-F:.]+)\]:(\d+)|([^:/\s\[\]]+):(\d+)", text)
    port = int(found[2] or found[4]) if found else 0
    if found is not None and not 1 <= port <= 65535:
        raise FederationError(f"{option}: port {port} is out of range; a port is a number from 1 to 65535")
    if found is None:
        raise FederationError(f"{option}: expected HOST:PORT, for example 192.168.1.20:8443, not {text!r}")
    return found[1] or found[3], port


class Leashed:
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
    def status(self) -> int | None:
        """Return the command's exit status; None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> bool:
        """Wait for the end for this many seconds; return True if it came."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        """Release the leash, and wait until nothing of it runs."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if not self.wait(4 * leash.GRACE_SECONDS):
            self._process.kill()
            self._process.wait()

    def said(self) -> str:
        """Return what it wrote since it was started, without colours."""
        with self.log.open("rb") as stream:
            stream.seek(self._from)
            return _COLOUR.sub("", stream.read().decode("utf-8", errors="replace"))
