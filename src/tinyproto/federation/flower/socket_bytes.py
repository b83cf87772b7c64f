"""Bytes at a client's socket: a relay on the client's own machine, through which its SuperNode reaches the server.

The SuperNode takes it for an HTTPS proxy, so TLS goes through it untouched and the server's certificate is checked for
the server's own name. It leads to one address only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path

from tinyproto.engine.measure import WAYS, Direction
from tinyproto.errors import FederationError

CHUNK = 64 * 1024
WRITE_SECONDS = 0.1
"""How long counts may be ahead of the file."""


class Relay:
    """Counts both ways of every connection, from the counts that the file had."""

    def __init__(self, server: tuple[str, int], file: Path) -> None:
        self.server = server
        self.file = file
        self.counts = _counts_in(file)
        self._written = dict(self.counts)
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self.port = 0
        self._failure: OSError | None = None
        try:
            self._write()
        except OSError as error:
            raise FederationError(f"cannot write {file}: {error.strerror or error}") from error
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()
        self._ready.wait()
        if not self.port:
            reason = (self._failure and self._failure.strerror) or self._failure
            raise FederationError(f"cannot listen on this machine's loopback: {reason}") from self._failure

    @property
    def proxy(self) -> str:
        """The address that a SuperNode is given as `HTTPS_PROXY`."""
        return f"http://127.0.0.1:{self.port}"

    def add(self, counts: Mapping[str, int]) -> None:
        """Count what went to the server by another way."""
        self._loop.call_soon_threadsafe(self._add, dict(counts))

    def _add(self, counts: Mapping[str, int]) -> None:
        for way, count in counts.items():
            self.counts[way] += count

    def close(self) -> None:
        """Cut what is open, and leave the last counts in the file."""
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(timeout=5)
        with contextlib.suppress(OSError):  # a disk without space is told of by whoever writes more than counts
            self._write()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except OSError as error:
            self._failure = error
        finally:
            self._ready.set()  # whoever waits is told, however it went

    async def _serve(self) -> None:
        self._done = asyncio.Event()
        self._under_way: set[asyncio.Task[None]] = set()
        listening = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.port = listening.sockets[0].getsockname()[1]
        self._ready.set()
        while not self._done.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._done.wait(), WRITE_SECONDS)
            with contextlib.suppress(OSError):
                self._write()
        listening.close()
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        try:
            await self._tunnel(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass
        finally:
            self._under_way.discard(task)
            writer.close()

    async def _tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        host, port = self.server
        asked = f"CONNECT {f'[{host}]' if ':' in host else host}:{port} HTTP/1.1\r\n".lower()
        if not request.decode("latin-1").lower().startswith(asked):
            writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()
            return
        # Where that fails, the SuperNode finds itself cut off without an answer, for which it tries again.
        from_server, to_server = await asyncio.open_connection(host, port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            await asyncio.gather(self._pump(reader, to_server, "up"), self._pump(from_server, writer, "down"))
        finally:
            to_server.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: str) -> None:
        while data := await source.read(CHUNK):
            sink.write(data)
            self.counts[way] += len(data)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()

    def _write(self) -> None:
        counts = dict(self.counts)
        if counts == self._written and self.file.exists():
            return
        partial = self.file.with_name(f".{self.file.name}.partial")
        partial.write_text(json.dumps(counts), encoding="utf-8")
        partial.replace(self.file)
        self._written = counts


def _counts_in(file: Path) -> dict[str, int]:
    if not file.is_file():
        return {"up": 0, "down": 0}
    try:
        return read_counts(file)
    except OSError as error:
        raise FederationError(f"cannot read {file}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise FederationError(f"{file} is damaged; remove it, and bytes are counted from 0 again") from error


def read_counts(file: Path) -> dict[str, int]:
    """What the relay of `tinyproto join` has counted; OSError, ValueError, KeyError or TypeError where that fails."""
    found = json.loads(file.read_text(encoding="utf-8"))
    return {way: int(found[way]) for way in WAYS}


class SocketCounts:
    """What each client's socket has seen since last asked.

    An answer tells what was counted before it was sent, so its own bytes are in the next one's count; the first count
    of a client is where counting begins.
    """

    def __init__(self) -> None:
        self._last: dict[int, dict[Direction, int]] = {}  # as told, by client
        self._used: dict[int, dict[Direction, int]] = {}

    def note(self, client: int, values: Mapping[str, object]) -> None:
        """Take in the counters that came with an answer, where they are whole numbers."""
        now: dict[Direction, int] = {}
        for way in WAYS:
            told = values.get(f"socket-{way}")
            if isinstance(told, int) and told >= 0:
                now[way] = told
        if len(now) < len(WAYS):
            return
        before = self._last.get(client, now)
        self._last[client] = now
        used = self._used.setdefault(client, dict.fromkeys(WAYS, 0))
        for way in WAYS:  # a counter that is smaller than it was began anew
            used[way] += now[way] - before[way] if now[way] >= before[way] else now[way]

    def take(self) -> Mapping[int, Mapping[Direction, int]] | None:
        """By client, since last asked; None where no client counts."""
        used, self._used = self._used, {}
        return dict(sorted(used.items())) if self._last else None
