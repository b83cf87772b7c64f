"""One round stays readable: how many files of the package a reader passes who follows it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import tinyproto
from support_rounds import build, simulation
from tinyproto.algorithms.base import Round
from tinyproto.data.dataset import FederatedData
from tinyproto.engine.measure import Meter
from tinyproto.engine.round import play_round
from tinyproto.engine.server import RoundPlan

ROOT = Path(tinyproto.__file__).parent
MOST_FILES = 23


def files_of_a_round(data: FederatedData) -> list[str]:
    """Return the files in which a round of TinyProto-FT enters a function, after a round that warms up."""
    played = simulation(data, build("tinyproto_ft"), rounds=3)
    clients = range(data.num_clients)
    played.server.greet(played.host, clients, Meter())
    plans = [RoundPlan(Round(number, 3), clients, frozenset(clients)) for number in (1, 2)]
    play_round(played.server, played.host, plans[0], Meter())
    entered: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            entered.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        play_round(played.server, played.host, plans[1], Meter())
    finally:
        sys.setprofile(None)
    inside = [Path(name) for name in entered if Path(name).is_relative_to(ROOT)]
    return sorted(str(path.relative_to(ROOT)) for path in inside)


def test_a_round_passes_through_few_files(quarters: FederatedData) -> None:
    files = files_of_a_round(quarters)
    assert "engine/round.py" in files
    assert len(files) <= MOST_FILES, "\n".join(files)
