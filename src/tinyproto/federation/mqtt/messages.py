"""The contents of our MQTT messages, their topics, and the code that authenticates them on a broker that is not ours.

| first byte | content |
|---|---|
| the frame's version | a frame; from a client, followed by 8 bytes: its socket's bytes up and down so far |
| `{` | a JSON object: presence, terms, a refusal, a notice |

| topic | who writes | who reads |
|---|---|---|
| `uN` | client N | the coordinator |
| `dN` | the coordinator | client N |
| `a` | the coordinator | all clients |

On a broker that is not ours, topics start with a prefix, nothing is shared, and every message ends with a code of 16
bytes (keyed BLAKE2b) under a key that only the coordinator and that client have. It covers the direction, the client
and a context: the digest for frames, which covers the federation's token; a number that the client draws, and replaces
with each federation it accepts, for the coordinator's JSON; the token for a client's replies; the code of what it
refuses, for a client that does not know the federation yet. So a message of another client, direction or federation is
no good. Within one federation, repeats do nothing: a round is answered once.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import struct
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from tinyproto.errors import WireError

Way = Literal["u", "d"]
"""From a client up to the coordinator, or down from it."""

SESSION_SECONDS = 7 * 24 * 3600
"""The broker keeps messages for a client that sleeps for this long."""

MAC_BYTES = 16
_COUNTS = struct.Struct("<II")
_UNKNOWN = 0xFFFFFFFF


class Happened(NamedTuple):
    """An event at a connection: a message, that it is open (`resumed`: with its session), lost, or a warning."""

    topic: str | None = None
    payload: bytes = b""
    resumed: bool | None = None
    lost: str | None = None
    warned: str | None = None


class HasFileno(Protocol):
    """Something to wait for."""

    def fileno(self) -> int:
        """Return its file descriptor."""
        ...


@dataclass(frozen=True)
class Topics:
    """The names of topics."""

    prefix: str = ""

    def up(self, client: int) -> str:
        """Return the topic that a client writes."""
        return f"{self.prefix}u{client}"

    def down(self, client: int) -> str:
        """Return the topic that the coordinator writes for a client."""
        return f"{self.prefix}d{client}"

    @property
    def everyone(self) -> str:
        """Return the topic that the coordinator writes for all clients."""
        return f"{self.prefix}a"


@dataclass(frozen=True)
class Seal:
    """Authenticates the messages between the coordinator and one client."""

    key: bytes
    client: int

    def close(self, way: Way, content: bytes, context: bytes) -> bytes:
        """Return the content with its code."""
        return content + self._code(way, content, context)

    def open(self, way: Way, payload: bytes, *contexts: bytes) -> bytes:
        """Return the content of a message with a valid code in one of these contexts; raise WireError otherwise."""
        content, code = payload[:-MAC_BYTES], payload[-MAC_BYTES:]
        if not any(hmac.compare_digest(code, self._code(way, content, context)) for context in contexts):
            raise WireError(f"message of client {self.client}, refused: its authentication code is invalid")
        return content

    def _code(self, way: Way, content: bytes, context: bytes) -> bytes:
        head = struct.pack("<cII", way.encode(), self.client, len(context))
        return hashlib.blake2b(head + context + content, key=self.key, digest_size=MAC_BYTES).digest()


@dataclass
class Allowance:
    """Limits the lines in a journal over time: what strangers send must not fill a disk."""

    most: int = 20
    seconds: float = 600.0
    _since: float = -math.inf
    _taken: int = 0

    def take(self, now: float) -> bool:
        """Return True if one more is allowed now."""
        if now - self._since >= self.seconds:
            self._since, self._taken = now, 0
        self._taken += 1
        return self._taken <= self.most


def refusal_of(payload: bytes) -> bytes:
    """Return the context of a refusal by a client that does not know the federation: the refused message's code.

    It starts with a word, so that no code that a broker invents makes it another context.
    """
    return b"refused" + payload[-MAC_BYTES:]


def is_json(content: bytes) -> bool:
    """Return True for a JSON object, False for a frame."""
    return content[:1] == b"{"


def to_json(**values: Any) -> bytes:
    """Return a JSON object as content."""
    return json.dumps(values, separators=(",", ":")).encode()


def from_json(content: bytes) -> dict[str, Any]:
    """Return a JSON object; raise WireError if the content is none."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise WireError(f"a message is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise WireError("a message is not a JSON object")
    return found


def with_counts(frame: bytes, counts: dict[str, int] | None) -> bytes:
    """Return a client's frame followed by the bytes at its socket."""
    up, down = (_UNKNOWN, _UNKNOWN) if counts is None else (counts["up"] % _UNKNOWN, counts["down"] % _UNKNOWN)
    return frame + _COUNTS.pack(up, down)


def split_counts(content: bytes) -> tuple[bytes, dict[str, int]]:
    """Return a client's frame and its counts as a reply has them; raise WireError if they are missing."""
    if len(content) < _COUNTS.size:
        raise WireError(f"length: {len(content)} bytes are no frame with counts")
    frame, (up, down) = content[: -_COUNTS.size], _COUNTS.unpack_from(content, len(content) - _COUNTS.size)
    return frame, {} if up == _UNKNOWN else {"socket-up": up, "socket-down": down}
