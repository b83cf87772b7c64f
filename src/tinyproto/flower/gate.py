"""The gate before the SuperLink: the network reaches what clients need of it, and nothing else.

Flower serves three interfaces at one port: Fleet for clients, Control for whoever submits runs and registers keys,
Runtime for the ServerApp. Control has no authentication of its own. So the SuperLink listens on the loopback only, and
this passes on requests of the Fleet interface that a registered client makes.
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

from tinyproto.errors import FederationError
from tinyproto.flower.certificates import ServerKeys

CALLS = (
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run", "get-fab",
    "push-object", "pull-object", "confirm-message-received",
)  # fmt: skip
PATHS = frozenset(f"/v1/fleet/{call}" for call in CALLS)
"""All of Fleet but the two calls by which a client without a registered key would register itself."""

NOT_PASSED_ON = frozenset({b"host", b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer",
                           b"content-length", b"expect"})  # fmt: skip
MOST_AT_ONCE = 512
PATIENCE_SECONDS = 60.0
OVERHEAD = 64 * 1024
"""Bytes that Flower's envelope may add to a frame."""

Event = MutableMapping[str, Any]


class TooLargeError(Exception):
    """A body beyond the limit."""


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
        status, headers, body = await self._answer(scope, receive)
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
            body = await self._body(receive)
        except TooLargeError:
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
            return 503, [], b""  # which a SuperNode takes for a reason to try again
        passed = [(name.lower(), value) for name, value in answer.headers.raw]
        kept = [(name, value) for name, value in passed if name not in NOT_PASSED_ON | {b"content-encoding"}]
        return answer.status_code, kept, answer.content

    async def _body(self, receive: Callable[[], Awaitable[Event]]) -> bytes:
        parts, length = list[bytes](), 0
        while True:
            event = await receive()
            parts.append(event.get("body", b""))
            length += len(parts[-1])
            if length > self.limit:
                raise TooLargeError
            if not event.get("more_body", False):
                return b"".join(parts)


class OpenGate:
    """The gate, listening in a thread of this process until it is closed."""

    def __init__(self, gate: Gate, host: str, port: int, keys: ServerKeys, opened: socket.socket | None = None) -> None:
        self._socket = opened or listening(host, port)
        config = uvicorn.Config(
            gate, ssl_certfile=str(keys.certificate), ssl_keyfile=str(keys.key), log_config=None, access_log=False,
            lifespan="off", http="h11", ws="none", limit_concurrency=MOST_AT_ONCE, server_header=False,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        _hush()
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="gate", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))

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
        opened = socket.socket(family, kind, protocol)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(MOST_AT_ONCE)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FederationError(
            f"cannot listen on {host}:{port}: {reason}; is another federation there? --listen HOST:PORT goes elsewhere"
        ) from error
    return opened
