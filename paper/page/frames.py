"""Bytes on the wire of runs with different versions of the frame: what each counted, and what another would count.

Versions differ in the length of the header only. A record names its version in environment.json; an older one shows it
by its hello, which sends down nothing but a header.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from tinyproto.report.studies import Cell
from tinyproto.report.words import size

HEADERS = {1: 40, 2: 14}
"""Bytes of a frame's header by version."""

FIRST = 1
MARK = "†"
"""Marks bytes of frames of a later version than the first, which most records have."""


def frame_version(cell: Cell) -> int:
    """Return the version of the frames that a run counted."""
    named = cell.run.environment.get("frame_version")
    if named is not None:
        return int(named)
    hello = cell.result.get("hello_bytes", {}).get("down")
    return 2 if hello == HEADERS[2] * cell.result["num_clients"] else FIRST


def oldest_version(cells: Iterable[Cell]) -> int:
    """Return the oldest version of some runs."""
    return min(map(frame_version, cells))


def wire_bytes(cells: Iterable[Cell], version: int) -> float:
    """Return bytes on the wire of a training round, up and down, as frames of a version have them; a mean over runs.

    Every client receives one frame and sends one: all cells of the paper have full participation.
    """
    return fmean(
        sum(cell.result["wire_bytes_per_round"].values())
        + 2 * cell.result["num_clients"] * (HEADERS[version] - HEADERS[frame_version(cell)])
        for cell in cells
    )


def marked(count: float, version: int) -> str:
    """Return a number of bytes, marked if its frames are of a later version."""
    return size(count) + (MARK if version > FIRST else "")


def explained(versions: Iterable[int]) -> str:
    """Return a sentence on the versions of some runs, with a space before it; empty without runs."""
    found = set(versions)
    told = [f"Wire bytes are those of frames of version {FIRST}"] if FIRST in found else []
    for later in sorted(found - {FIRST}):
        shorter = HEADERS[FIRST] - HEADERS[later]
        told.append(f"{MARK} frames of version {later}, {shorter} bytes a frame less than version {FIRST}")
    return f" {'; '.join(told)}." if told else ""
