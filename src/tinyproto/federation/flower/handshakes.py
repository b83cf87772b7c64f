"""Connections that have not completed their TLS handshake: few of them, for a short time, at little cost.

By default asyncio gives each connection it accepts a TLS engine with 0.3 MB of buffers and 60 seconds. Here a
connection that has sent nothing costs a file descriptor, and TLS starts with its first byte.

If there are too many, a new connection is never refused: the oldest one of the address with the most is dropped. An
honest client sends its first byte with the end of the TCP handshake and completes TLS within one round trip, so it is
gone before it is the oldest. Refusing new connections would keep honest clients out until others time out.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

MOST_SILENT = 256
"""Connections that have sent nothing yet, from all addresses; each costs a file descriptor and about 2 kB."""

MOST_SILENT_PER_ADDRESS = 64
"""The same from one address; the loopback may have all of them, since a proxy can be there."""

MOST_HANDSHAKES = 64
"""TLS handshakes under way, from all addresses; each costs about 0.3 MB."""

MOST_HANDSHAKES_PER_ADDRESS = 32
"""The same from one address; the loopback may have all of them."""

FIRST_BYTE_SECONDS = 5.0
"""Longest silence of a new connection."""

HANDSHAKE_SECONDS = 10.0
"""Longest TLS handshake, from its first byte."""

GOODBYE_SECONDS = 5.0
"""Longest time for the other end to confirm the end of TLS."""

TELL_SECONDS = 60.0
"""Shortest time between two reports of dropped connections."""

SWEEP_SECONDS = 1.0
ACCEPT_AT_ONCE = 64
BEGINS_TLS = b"\x16"
"""The first byte of every TLS handshake."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def network_of(address: str) -> Network:
    """Return the network that counts as one address: for IPv6 its first 64 bits, which one customer has."""
    found = ipaddress.ip_address(address.partition("%")[0])
    found = getattr(found, "ipv4_mapped", None) or found
    return ipaddress.ip_network(
        (found, 64 if found.version == 6 and not found.is_loopback else found.max_prefixlen), False
    )


@dataclass(eq=False)
class Pending:
    """A connection before the end of its TLS handshake."""

    socket: socket.socket
    network: Network
    since: float
    task: asyncio.Task[None] | None = None  # while TLS is under way
    is_complete: bool = False


class Crowd(dict[Pending, None]):
    """Pending connections, the oldest first."""

    def __init__(self, most: int, most_per_address: int) -> None:
        super().__init__()
        self.most = most
        self.most_per_address = most_per_address

    def add(self, one: Pending) -> Pending | None:
        """Add a connection; return the one to drop if there are too many now."""
        self[one] = None
        alike = [other for other in self if other.network == one.network]
        if len(alike) > self.most_per_address and not one.network.is_loopback:
            return alike[0]
        return self.first_to_go() if len(self) > self.most else None

    def first_to_go(self) -> Pending | None:
        """Return the oldest connection of the address with the most; None if there is none."""
        sizes = Counter(one.network for one in self)
        return max(self, key=lambda one: sizes[one.network], default=None)


class Handshakes:
    """Accepts connections at a listening socket and hands each to a protocol once TLS is complete."""

    def __init__(
        self, listener: socket.socket, context: ssl.SSLContext, protocol: Callable[[], asyncio.BaseProtocol],
        tell: Callable[..., None],
    ) -> None:  # fmt: skip
        self._listener = listener
        self._context = context
        self._protocol = protocol
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._silent = Crowd(MOST_SILENT, MOST_SILENT_PER_ADDRESS)
        self._shaking = Crowd(MOST_HANDSHAKES, MOST_HANDSHAKES_PER_ADDRESS)
        self._dropped = 0
        self._last_dropped: Network | None = None
        self._told = -TELL_SECONDS
        listener.setblocking(False)
        self._listen()
        self._timer = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def close(self) -> None:
        """Accept no more connections, and drop those that are pending."""
        self._timer.cancel()
        self._loop.remove_reader(self._listener)
        for one in (*self._silent, *self._shaking):
            self._drop(one)

    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPT_AT_ONCE):
            try:
                opened, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no file descriptor or no memory is left
                self._free_one()
                return
            opened.setblocking(False)
            one = Pending(opened, network_of(address[0]), self._loop.time())
            self._loop.add_reader(opened, self._begin, one)
            self._drop(self._silent.add(one))

    def _free_one(self) -> None:
        """Drop a pending connection, so that another can be accepted; if there is none, accept none for a while."""
        one = self._silent.first_to_go() or self._shaking.first_to_go()
        if one is not None:
            self._drop(one)
        else:
            self._loop.remove_reader(self._listener)
            self._loop.call_later(SWEEP_SECONDS, self._listen)

    def _begin(self, one: Pending) -> None:
        """Start TLS on a connection that has sent its first byte."""
        try:
            first = one.socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        self._loop.remove_reader(one.socket)
        self._silent.pop(one, None)
        if first != BEGINS_TLS:  # it closed, or uses another protocol
            one.socket.close()
            return
        one.task = self._loop.create_task(self._shake_hands(one))
        one.task.add_done_callback(lambda _: self._shaken(one))
        self._drop(self._shaking.add(one))

    async def _shake_hands(self, one: Pending) -> None:
        """Complete TLS or close the connection.

        No error leaves here: its traceback would hold this connection's buffers until the next garbage collection.
        """
        try:
            await self._loop.connect_accepted_socket(
                self._protocol, one.socket, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=GOODBYE_SECONDS,
            )  # fmt: skip
        except ConnectionAbortedError:  # it took too long
            self._count(one)
        except (OSError, asyncio.CancelledError):
            pass
        else:
            one.is_complete = True

    def _shaken(self, one: Pending) -> None:
        self._shaking.pop(one, None)
        one.task = None
        if not one.is_complete:
            one.socket.close()

    def _drop(self, one: Pending | None) -> None:
        if one is None:
            return
        self._count(one)
        if one.task is not None:
            self._shaking.pop(one, None)
            one.task.cancel()  # which closes the socket, in `_shaken`
        else:
            self._silent.pop(one, None)
            self._loop.remove_reader(one.socket)
            one.socket.close()

    def _count(self, one: Pending) -> None:
        self._dropped += 1
        self._last_dropped = one.network

    def _sweep(self) -> None:
        """Drop connections that have been silent for too long, and report the dropped ones."""
        now = self._loop.time()
        for one in list(self._silent):
            if now - one.since > FIRST_BYTE_SECONDS:
                self._drop(one)
        if self._dropped and self._last_dropped is not None and now - self._told >= TELL_SECONDS:
            address = str(self._last_dropped.network_address)
            self._tell("dropped", connections=self._dropped, last_from=address)
            self._dropped, self._told = 0, now
        self._timer = self._loop.call_later(SWEEP_SECONDS, self._sweep)
