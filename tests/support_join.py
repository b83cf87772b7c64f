"""A client's stay without a network: nobody is reached, and nothing is counted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import cast

import pytest

from tinyproto.cli.interrupt import StopOnInterrupt
from tinyproto.cli.join import Own, Stay
from tinyproto.cli.terminal import Output
from tinyproto.federation.certificates import ClientKeys, make_keys
from tinyproto.federation.flower.socket_bytes import Relay


class NoRelay:
    """Where nothing is sent, nothing is counted."""

    proxy = ""

    def add(self, counts: object) -> None:
        pass


def make_stay(folder: Path, give_up: int | None = None, quiet: bool = True) -> Stay:
    """Client 0 of a federation at h:1, with its keys and all it keeps in one folder."""
    if not (folder / "client-0").exists():
        make_keys(folder, 1, [])
    own = Own(0, folder, None, None, None, "m", "cpu", folder, give_up)
    keys = ClientKeys.open(folder / "client-0")
    relay = cast("Relay", NoRelay())
    return Stay(own, ("h", 1), "h:1", keys, relay, StopOnInterrupt(), Output(quiet=quiet))


def only_waiting_takes_time(monkeypatch: pytest.MonkeyPatch, start: float = 0.0) -> list[float]:
    """From now on time passes in sleeping only; what time it is stands in the list."""
    now = [start]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    return now
