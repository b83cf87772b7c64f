"""A client's connection to the coordinator: the check before it, the relay it runs through, and a watch over it.

The relay is on the client's own machine, and its SuperNode uses it as an HTTPS proxy. TLS passes through unchanged, so
the server's certificate is checked for the server's own name. The relay counts bytes and leads to one address only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from tinyproto.engine.measure import WAYS
from tinyproto.errors import FederationError
from tinyproto.federation.unreachable import why_unreachable
from tinyproto.storage.atomic import write_atomic

REACH_SECONDS = 10.0
BLIP_SECONDS = 5.0
"""A connection that is unanswered for less is not reported."""

CHUNK = 64 * 1024
WRITE_SECONDS = 0.1
"""Longest time that counts are ahead of the file."""


class AwayError(Exception):
    """Nobody answers at the address, for now."""


class TurnedAwayError(Exception):
    """The coordinator answers, but does not admit this client, for now."""


def reach(server: tuple[str, int], authority: Path) -> dict[str, int]:
    """Complete a TLS handshake with the coordinator; return the bytes sent ("up") and received ("down").

    Raise FederationError for what waiting does not change, AwayError for what may change.
    """
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except (ssl.SSLError, OSError) as error:
        raise FederationError(
            f"{authority} is not an authority's certificate; copy the coordinator's server/ca.crt"
        ) from error
    try:
        with socket.create_connection(server, REACH_SECONDS) as opened:
            return _shake_hands(opened, context, server[0])
    except OSError as error:
        raise AwayError(why_unreachable(error, server, authority)) from error


def _shake_hands(opened: socket.socket, context: ssl.SSLContext, host: str) -> dict[str, int]:
    received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
    shaking = context.wrap_bio(received, to_send, server_hostname=host)
    counts: dict[str, int] = dict.fromkeys(WAYS, 0)
    while True:
        try:
            shaking.do_handshake()
            complete = True
        except ssl.SSLWantReadError:
            complete = False
        data = to_send.read()
        opened.sendall(data)
        counts["up"] += len(data)
        if complete:
            opened.shutdown(socket.SHUT_WR)
            while data := opened.recv(65536):  # session tickets count, too
                counts["down"] += len(data)
            return counts
        data = opened.recv(65536)
        counts["down"] += len(data)
        if data:
            received.write(data)
        else:
            received.write_eof()


class Relay:
    """Passes bytes between a SuperNode and the server, and counts both ways from the counts in a file."""

    def __init__(self, server: tuple[str, int], file: Path) -> None:
        self.server = server
        self.file = file
        self._relayed = Counter(read_counts(file))
        self._checks: Counter[str] = Counter()  # apart, since another thread counts them
        self.unanswered_since: float | None = None  # time of the first byte or attempt after the server's last byte
        self._written: dict[str, int] = {}
        self._closing = threading.Event()
        try:
            self._listening = socket.create_server(("127.0.0.1", 0))
        except OSError as error:
            raise FederationError(f"cannot listen on this machine's loopback: {error.strerror or error}") from error
        self.port = self._listening.getsockname()[1]
        self._write()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="relay", daemon=True)
        self._thread.start()

    @property
    def counts(self) -> dict[str, int]:
        """Return the bytes to and from the server, by the relay and outside it."""
        return {way: self._relayed[way] + self._checks[way] for way in WAYS}

    def add(self, counts: Mapping[str, int]) -> None:
        """Count bytes that went to the server outside the relay."""
        self._checks.update(counts)

    @property
    def proxy(self) -> str:
        """Return the address for a SuperNode's `HTTPS_PROXY`."""
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Close all connections and write the last counts."""
        self._closing.set()
        self._thread.join(timeout=5)
        self._write()

    async def _serve(self) -> None:
        """Serve until closed; `asyncio.run` then cancels the connections that are open."""
        opened = await asyncio.start_server(self._connection, sock=self._listening)
        while not self._closing.is_set():
            await asyncio.sleep(WRITE_SECONDS)
            self._write()
        opened.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with (
            contextlib.closing(writer),
            contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError),
        ):
            await self._tunnel(reader, writer)

    async def _tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        host, port = self.server
        asked = f"CONNECT {f'[{host}]' if ':' in host else host}:{port} HTTP/1.1\r\n".lower()
        if not request.decode("latin-1").lower().startswith(asked):
            writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()
            return
        self._wait_for_answer()
        # If this fails, the SuperNode's connection closes without an answer, and it tries again.
        from_server, to_server = await asyncio.open_connection(host, port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            await asyncio.gather(self._pump(reader, to_server, "up"), self._pump(from_server, writer, "down"))
        finally:
            to_server.close()

    def _wait_for_answer(self) -> None:
        if self.unanswered_since is None:
            self.unanswered_since = time.monotonic()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: str) -> None:
        while data := await source.read(CHUNK):
            if way == "up":
                self._wait_for_answer()
            else:
                self.unanswered_since = None
            sink.write(data)
            self._relayed[way] += len(data)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()

    def _write(self) -> None:
        counts = self.counts
        if counts != self._written:
            with contextlib.suppress(OSError):  # a full disk is reported where more than counts is written
                write_atomic(self.file, json.dumps(counts))
                self._written = counts


def read_counts(file: Path) -> dict[str, int]:
    """Return a relay's counts; empty if the file is missing or damaged."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {way: int(found[way]) for way in WAYS}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


class Watch:
    """Watches whether the coordinator still answers a connected SuperNode, which reconnects forever by itself.

    A slow request looks like a dead connection, so the coordinator itself is tried before it counts as away.
    """

    def __init__(self, relay: Relay, reach_it: Callable[[], object]) -> None:
        self._relay = relay
        self._reach_it = reach_it
        self._tried: float | None = None
        self._reason: str | None = None

    def why_away(self, now: float, patience: float = BLIP_SECONDS) -> str | None:
        """Return why nobody answers; None while somebody does, or may still within `patience` seconds."""
        since = self._relay.unanswered_since
        if since is None:
            self._reason = self._tried = None
        elif self._reason is None and now - (since if self._tried is None else self._tried) >= patience:
            self._tried = now
            try:
                self._reach_it()
            except AwayError as reason:
                self._reason = str(reason)
        return self._reason
