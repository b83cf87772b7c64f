"""Clients that were left out of rounds, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tinyproto.report.compare import Comparison
from tinyproto.report.words import counted

NAMED = 10
"""So many clients of a cell are named with their rounds and the reason."""


def left_out_sentence(comparison: Comparison) -> str:
    """Say how many client-rounds each method does without; empty where there are none."""
    told = [f"{row.title} {row.left_out}" for row in comparison.rows if row.left_out]
    return f"Client-rounds left out: {', '.join(told)}; summary.json says which clients." if told else ""


def left_out_lines(title: str, records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Say for each client that was left out of rounds of a cell which rounds these are, and why it was the first."""
    rounds: dict[str, list[int]] = {}
    reasons: dict[str, str] = {}
    for record in records:
        for client, reason in record.get("refused", {}).items():
            rounds.setdefault(client, []).append(record["round"])
            reasons.setdefault(client, reason)
    for client in sorted(rounds, key=int)[:NAMED]:
        numbers = rounds[client]
        word = "round" if len(numbers) == 1 else "rounds"
        yield f"{title}: client {client} in {word} {_ranges(numbers)}: {reasons[client]}"
    if len(rounds) > NAMED:
        yield f"{title}: {counted(len(rounds) - NAMED, 'client')} more"


def _ranges(numbers: Sequence[int]) -> str:
    """Rounds in order, neighbours joined: 3, 5–7."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in ranges)
