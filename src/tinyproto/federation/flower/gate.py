"""The gate before the SuperLink: the network reaches what clients need, and nothing else.

Flower serves three interfaces at one port: Fleet for clients, Control for submitting runs and registering keys, Runtime
for the ServerApp. Control has no authentication. So the SuperLink listens on the loopback only, and the gate passes on
the Fleet requests of registered clients.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import httpx
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tinyproto.federation.flower.handshakes import Handshakes, network_of
from tinyproto.federation.keys import ServerKeys

CALLS = (
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run", "get-fab",
    "push-object", "pull-object", "confirm-message-received",
)  # fmt: skip
PATHS = frozenset(f"/v1/fleet/{call}" for call in CALLS)
"""All of Fleet but the two calls with which a client without a registered key would register itself."""

NOT_PASSED_ON = frozenset({b"host", b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer",
                           b"content-length", b"expect"})  # fmt: skip
MOST_AT_ONCE = 512
MOST_PER_ADDRESS = 128
"""Connections of one address, so that none takes them all; the loopback may, since a proxy can be there."""

PATIENCE_SECONDS = 60.0
HEADER_SECONDS = 15.0
"""Longest time of a connection without a complete header."""

BODY_SECONDS = 30.0
"""Longest time for a body."""

OVERHEAD = 64 * 1024
"""Bytes that Flower's envelope may add to a frame."""

Event = MutableMapping[str, Any]


class GoneError(Exception):
    """The client closed the connection before the end of the body."""


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
        """Answer one request."""
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
        except TimeoutError:
            return 503, [(b"connection", b"close")], b""  # as below
        if len(body) > self.limit:
            return 413, [(b"connection", b"close")], b""
        if self._client is None:
            self._client = httpx.AsyncClient(
                base_url=f"https://{self.superlink}", verify=self._verify, trust_env=False, timeout=PATIENCE_SECONDS,
                limits=httpx.Limits(max_connections=MOST_AT_ONCE),
            )  # fmt: skip
        headers = [(name, value) for name, value in scope["headers"] if name not in NOT_PASSED_ON]
        try:
            answer = await self._client.post(path, content=body, headers=headers)
        except httpx.HTTPError:
            return 503, [], b""  # a SuperNode tries again after this
        passed = [(name.lower(), value) for name, value in answer.headers.raw]
        kept = [(name, value) for name, value in passed if name not in NOT_PASSED_ON | {b"content-encoding"}]
        return answer.status_code, kept, answer.content

    async def _body(self, receive: Callable[[], Awaitable[Event]]) -> bytes:
        """Return the body, or as much of it as shows that it is too large."""
        body, more = bytearray(), True
        while more and len(body) <= self.limit:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise GoneError
            body += event.get("body", b"")
            more = event.get("more_body", False)
        return bytes(body)


class Guarded(H11Protocol):  # type: ignore[misc]
    """One connection: closed if no header comes, or if its address has too many."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Count the connection, or close it."""
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
        """Take in a part of a header or body."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer of the connection."""
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Limit the time before and between requests; a request under way has the gate's own limits."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._unwatch()
        elif self._guard is None and not self.transport.is_closing():
            self._guard = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _unwatch(self) -> None:
        if self._guard is not None:
            self._guard.cancel()
            self._guard = None


class OpenGate:
    """The gate, listening in a thread of this process until closed."""

    def __init__(
        self, gate: Gate, keys: ServerKeys, opened: socket.socket, tell: Callable[..., None] = lambda *_, **__: None
    ) -> None:
        self._socket = opened
        self._tell = tell
        self._config = uvicorn.Config(
            gate, ssl_certfile=str(keys.certificate), ssl_keyfile=str(keys.key), log_config=None, access_log=False,
            lifespan="off", http=Guarded, ws="none", limit_concurrency=MOST_AT_ONCE, server_header=False,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        _hush()
        self._config.load()
        self._server = uvicorn.Server(self._config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="gate", daemon=True)
        self._thread.start()

    async def _serve(self) -> None:
        """Serve connections whose TLS handshake is complete; uvicorn accepts none itself."""
        handshakes = Handshakes(self._socket, self._config.ssl, self._protocol, self._tell)
        try:
            await self._server.serve(sockets=[])
        finally:
            handshakes.close()

    def _protocol(self) -> Guarded:
        return Guarded(self._config, self._server.server_state, app_state={})

    def close(self) -> None:
        """Accept no more requests; let those under way end."""
        self._server.should_exit = True
        self._thread.join(timeout=5)
        self._socket.close()


def _hush() -> None:
    """Silence uvicorn and httpx, whose messages do not concern a federation's user."""
    for name in ("uvicorn.error", "httpx"):
        logger = logging.getLogger(name)
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
