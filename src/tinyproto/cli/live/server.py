"""The live page's server: on the loopback only, behind a token in the address, for as long as the command runs."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

HOST = "127.0.0.1"
LOOK_SECONDS = 0.5
"""Seconds between two looks at the records, however many pages ask."""

HELD_SECONDS = 10.0
"""Seconds after which a request for a newer state is answered with the same one."""

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class LiveServer(ThreadingHTTPServer):
    """Serves the page, the state of the run and, once it is complete, the report.

    A request for the state waits until there is a newer one than the page has, since browsers slow down the timers of
    pages in the background.
    """

    daemon_threads = True

    def __init__(self, page: str, read: Callable[[], dict[str, Any]]) -> None:
        super().__init__((HOST, 0), _Handler)
        self.token = secrets.token_urlsafe(16)
        self.page = page
        self.report: Path | None = None
        self.asked_at: float | None = None  # time of the last request for the state
        self.delivered = threading.Event()  # the last state, or the report if there is one, has reached a page
        self._ended = threading.Event()
        self._read = read
        self._lock = threading.Lock()
        self._looked_at = 0.0
        self._state: dict[str, Any] = {}
        self._words = ""
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    def server_bind(self) -> None:
        """Bind without asking a name server for this machine's name, as HTTPServer does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.socket.getsockname()[1]

    @property
    def address(self) -> str:
        """Return the address of the page."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def end(self, words: str, report: Path | None) -> None:
        """Let the pages know that the run has ended, and how."""
        with self._lock:
            self._words, self.report, self._looked_at = words, report, 0.0
        self._ended.set()

    def state(self, seen: str) -> bytes:
        """Return the state; wait a while if it is the one that the page has seen."""
        give_up = time.monotonic() + HELD_SECONDS
        while True:
            state = self._latest()
            if state["version"] != seen or self._ended.is_set() or time.monotonic() >= give_up:
                return json.dumps(state).encode()
            self._ended.wait(LOOK_SECONDS)

    def _latest(self) -> dict[str, Any]:
        with self._lock:
            self.asked_at = time.monotonic()
            if not self._looked_at or (self.asked_at - self._looked_at >= LOOK_SECONDS and not self._ended.is_set()):
                self._looked_at = self.asked_at
                state = {**self._read(), "words": self._words, "ended": bool(self._words)}
                state["report"] = self.report is not None
                known = {key: value for key, value in state.items() if key != "left"}  # changes at any time
                if known != {key: self._state.get(key) for key in known}:
                    state["version"] = secrets.token_hex(4)
                self._state = {"version": self._state.get("version"), **state}
            return self._state

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a page that closes its connection."""


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version, sys_version = "tinyproto", ""
    timeout = 30.0

    def do_GET(self) -> None:
        """Answer a page of this machine that knows the token; refuse every other request."""
        known = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}
        if self.headers.get("Host") not in known:  # a name that an attacker resolves to this machine
            self._refuse(HTTPStatus.FORBIDDEN)
            return
        asked = urlsplit(self.path)
        _, token, *rest = f"{asked.path}/".split("/", 3)
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        match rest[0] if asked.path.count("/") == 2 else None:
            case "":
                self._answer("text/html; charset=utf-8", self.server.page.encode())
            case "state":
                content = self.server.state(parse_qs(asked.query).get("seen", [""])[0])
                self._answer("application/json", content)
                if self.server.report is None and json.loads(content)["ended"]:
                    self.server.delivered.set()
            case "report" if self.server.report is not None:
                self._answer("text/html; charset=utf-8", self.server.report.read_bytes())
                self.server.delivered.set()
            case _:
                self._refuse(HTTPStatus.NOT_FOUND)

    def _forbid(self) -> None:
        self._refuse(HTTPStatus.FORBIDDEN)

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _forbid  # noqa: N815

    def _answer(self, kind: str, content: bytes) -> None:
        self.send_response(HTTPStatus.OK)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def _refuse(self, status: HTTPStatus) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the terminal for the run."""
