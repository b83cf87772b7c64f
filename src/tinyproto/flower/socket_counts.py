"""Bytes at the clients' sockets, as the clients tell them with their answers: counters that only grow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tinyproto.wire.meter import WAYS, Direction


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
