"""A TCP proxy on this machine that notes every piece of data it passes on: when, which way, how many bytes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from typing import NamedTuple

from tinyproto.engine.measure import WAYS, Direction


class Piece(NamedTuple):
    """Some bytes that passed."""

    when: float  # seconds since the epoch
    way: Direction
    size: int


class CountingProxy:
    """Listens at `port` of the loopback and passes each connection on to another port of it."""

    def __init__(self, target: int) -> None:
        self.pieces: list[Piece] = []
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def count(self, begin: float = 0.0, end: float = float("inf")) -> dict[str, int]:
        """Return the bytes that passed in a span of time, up and down."""
        pieces = [piece for piece in list(self.pieces) if begin <= piece.when < end]
        return {way: sum(piece.size for piece in pieces if piece.way == way) for way in WAYS}

    def close(self) -> None:
        """End all connections."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._listening.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.start_server(self._pass_on, sock=self._listening))
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._copy(reader, server[1], "up"), self._copy(server[0], writer, "down"))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Direction) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                self.pieces.append(Piece(time.time(), way, len(data)))
                writer.write(data)
                await writer.drain()
        writer.close()
