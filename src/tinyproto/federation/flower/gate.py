"""The gate before the SuperLink: the network reaches what clients need of it, and nothing else.

Flower serves three interfaces at one port: Fleet for clients, Control for whoever submits runs and registers keys,
Runtime for the ServerApp. Control has no authentication of its own. So the SuperLink listens on the loopback only, and
this passes on requests of the Fleet interface that a registered client makes.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import httpx
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tinyproto.errors import FederationError
from tinyproto.federation.certificates import ServerKeys
from tinyproto.federation.flower.handshakes import Handshakes, network_of

CALLS = (
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run", "get-fab",
    "push-object", "pull-object", "confirm-message-received",
)  # fmt: skip
PATHS = frozenset(f"/v1/fleet/{call}" for call in CALLS)
"""All of Fleet but the two calls by which a client without a registered key would register itself."""

NOT_PASSED_ON = frozenset({b"host", b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer",
                           b"content-length", b"expect"})  # fmt: skip
MOST_AT_ONCE = 512
MOST_PER_ADDRESS = 128
"""Connections of one address, so that a single one cannot take them all; the loopback may, where a proxy can be."""

PATIENCE_SECONDS = 60.0
HEADER_SECONDS = 15.0
"""How long a connection may be there without a whole header."""

BODY_SECONDS = 30.0
"""How long a body may take."""

OVERHEAD = 64 * 1024
"""Bytes that Flower's envelope may add to a frame."""

_HINTS = {
    errno.EADDRINUSE: "is another federation there? --listen HOST:PORT goes elsewhere",
    errno.EADDRNOTAVAIL: "it is none of this machine's addresses; 0.0.0.0 is all of them",
    errno.EACCES: "ports below 1024 may need the administrator; --listen HOST:PORT goes elsewhere",
}

Event = MutableMapping[str, Any]


class TooLargeError(Exception):
    """A body beyond the limit."""


class GoneError(Exception):
    """Whoever asked hung up before the end of the body."""


class Gate:
    """An ASGI application in front of the SuperLink."""

    def __init__(self, superlink: str, keys: ServerKeys, largest_frame: int) -> None:
        self.superlink = superlink
        self.limit = largest_frame + OVERHEAD
        self._verify = ssl.create_default_context(cafile=str(keys.authority))
        self._client: httpx.AsyncClient | None = None

    async def __call__(
        self, scope: Event, receive: Callable[[], Awaitable[Event]], send: Callable[[Event], Awaitable[None]]
    ) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        try:
            status, headers, body = await self._answer(scope, receive)
        except GoneError:
            return
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(
        self, scope: Event, receive: Callable[[], Awaitable[Event]]
    ) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        path = scope["path"]
        if path not in PATHS or scope["query_string"]:
            return 404, [], b""
        if scope["method"] != "POST":
            return 405, [], b""
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await self._body(receive)
        except TooLargeError:
            return 413, [(b"connection", b"close")], b""
        except TimeoutError:
            return 503, [(b"connection", b"close")], b""  # as below
        if self._client is None:
            self._client = httpx.AsyncClient(
                base_url=f"https://{self.superlink}", verify=self._verify, trust_env=False, timeout=PATIENCE_SECONDS,
                limits=httpx.Limits(max_connections=MOST_AT_ONCE),
            )  # fmt: skip
        headers = [(name, value) for name, value in scope["headers"] if name not in NOT_PASSED_ON]
        try:
            answer = await self._client.post(path, content=body, headers=headers)
        except httpx.HTTPError:
            return 503, [], b""  # which a SuperNode takes for a reason to try again
        passed = [(name.lower(), value) for name, value in answer.headers.raw]
        kept = [(name, value) for name, value in passed if name not in NOT_PASSED_ON | {b"content-encoding"}]
        return answer.status_code, kept, answer.content

    async def _body(self, receive: Callable[[], Awaitable[Event]]) -> bytes:
        parts, length = list[bytes](), 0
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise GoneError
            parts.append(event.get("body", b""))
            length += len(parts[-1])
            if length > self.limit:
                raise TooLargeError
            if not event.get("more_body", False):
                return b"".join(parts)


class Guarded(H11Protocol):  # type: ignore[misc]
    """One connection: cut off if no header comes, or if its address has too many."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """From here on it counts."""
        super().connection_made(transport)
        self._guard: asyncio.TimerHandle | None = None
        self.network = network_of(self.client[0]) if self.client else None
        if len(self.connections) > MOST_AT_ONCE or self._address_has_too_many():
            transport.abort()
        else:
            self._watch()

    def _address_has_too_many(self) -> bool:
        if self.network is None or self.network.is_loopback:
            return False
        alike: int = sum(other.network == self.network for other in self.connections)
        return alike > MOST_PER_ADDRESS

    def data_received(self, data: bytes) -> None:
        """Some of a header or a body."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """It counts no longer."""
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """A request that is under way has the gate's own limits; before one, and between two, this is the limit."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._unwatch()
        elif self._guard is None and not self.transport.is_closing():
            self._guard = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _unwatch(self) -> None:
        if self._guard is not None:
            self._guard.cancel()
            self._guard = None


class OpenGate:
    """The gate, listening in a thread of this process until it is closed."""

    def __init__(
        self, gate: Gate, host: str, port: int, keys: ServerKeys, opened: socket.socket | None = None,
        tell: Callable[..., None] = lambda *_, **__: None,
    ) -> None:  # fmt: skip
        self._socket = opened or listening(host, port)
        self._tell = tell
        self._config = uvicorn.Config(
            gate, ssl_certfile=str(keys.certificate), ssl_keyfile=str(keys.key), log_config=None, access_log=False,
            lifespan="off", http=Guarded, ws="none", limit_concurrency=MOST_AT_ONCE, server_header=False,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        _hush()
        self._config.load()
        self._server = uvicorn.Server(self._config)
        self._thread = threading.Thread(target=self._run, name="gate", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        """Uvicorn serves connections whose TLS handshake is complete; it accepts none itself."""
        handshakes = Handshakes(self._socket, self._config.ssl, self._protocol, self._tell)
        try:
            await self._server.serve(sockets=[])
        finally:
            handshakes.close()

    def _protocol(self) -> Guarded:
        return Guarded(self._config, self._server.server_state, app_state={})

    def close(self) -> None:
        """No more requests; those under way may end."""
        self._server.should_exit = True
        self._thread.join(timeout=5)
        self._socket.close()


def _hush() -> None:
    """What uvicorn has to say concerns nobody who looks at a federation."""
    for name in ("uvicorn.error", "httpx"):
        logger = logging.getLogger(name)
        logger.addHandler(logging.NullHandler())
        logger.propagate = False


def listening(host: str, port: int) -> socket.socket:
    """A socket at this address, whether or not a gate is behind it yet."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise FederationError(f"cannot listen on {host}:{port}: nothing is called {host} here") from error
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(MOST_AT_ONCE)
    except OSError as error:
        opened.close()
        reason = error.strerror or str(error)
        hint = _HINTS.get(error.errno or 0, "--listen HOST:PORT goes elsewhere")
        raise FederationError(f"cannot listen on {host}:{port}: {reason}; {hint}") from error
    return opened
