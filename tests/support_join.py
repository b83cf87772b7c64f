"""A client's session without a network: nobody is reached, and nothing is counted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import cast

import pytest

from tinyproto.cli.client_folder import JoinOptions
from tinyproto.cli.interrupt import StopOnInterrupt
from tinyproto.cli.join import ClientSession
from tinyproto.cli.terminal import Output
from tinyproto.federation.flower.connection import Relay
from tinyproto.federation.key_making import make_keys
from tinyproto.federation.keys import ClientKeys


class NoRelay:
    """Counts nothing; tests say since when the coordinator has not answered."""

    proxy = ""
    unanswered_since: float | None = None

    def add(self, counts: object) -> None:
        pass


def make_session(folder: Path, quiet: bool = True) -> ClientSession:
    """Client 0 of a federation at h:1, with its keys and all it keeps in one folder."""
    if not (folder / "client-0").exists():
        make_keys(folder, 1, [])
    options = JoinOptions(0, folder, None, None, None, "m", "cpu", folder)
    keys = ClientKeys.open(folder / "client-0")
    relay = cast("Relay", NoRelay())
    return ClientSession(options, ("h", 1), "h:1", keys, relay, StopOnInterrupt(), Output(quiet=quiet))


def only_waiting_takes_time(monkeypatch: pytest.MonkeyPatch, start: float = 0.0) -> list[float]:
    """From now on time passes in sleeping only; what time it is stands in the list."""
    now = [start]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    return now
