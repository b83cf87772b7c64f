"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tinyproto.report.compare import Comparison


def percent(fraction: float) -> str:
    """94.1 %."""
    return f"{100 * fraction:.1f} %"


def points(fraction: float) -> str:
    """+1.3, with a real minus sign; a difference that rounds to zero has no sign."""
    text = f"{100 * fraction:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def size(count: float) -> str:
    """Bytes in decimal units: 0 B, 812 B, 11.1 kB, 1.46 MB."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.9995 * factor:  # what would round to 1000 of the smaller unit
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"


def number(count: float) -> str:
    """Thousands set apart: 27 800."""
    return f"{count:,.0f}".replace(",", " ")


def times(ratio: float) -> str:
    """10.0×."""
    return f"{ratio:.1f}×"


def counted(count: int, thing: str) -> str:
    """1 seed, 3 seeds, 10 classes."""
    plural = "es" if thing.endswith("s") else "s"
    return f"{count} {thing}{'' if count == 1 else plural}"


SYMBOLS = {"cps_dim": "s", "global_scale": "μ"}
"""As the paper writes them; what a method of one's own derives goes by its name."""


def derived_words(values: Mapping[str, int | float]) -> str:
    """Of one cell: s = 42, μ = 0.1744."""
    return _listed({name: [value] for name, value in values.items()})


def derived_sentence(comparison: Comparison) -> str:
    """Of all that derived anything, from the lowest to the highest value where seeds differ; else nothing."""
    said = [f"{row.title} {_listed(row.derived)}" for row in comparison.rows if row.derived]
    return f"Derived: {'; '.join(said)}." if said else ""


def _listed(values: Mapping[str, Sequence[int | float]]) -> str:
    return ", ".join(f"{SYMBOLS.get(name, name)} = {_from_to(found)}" for name, found in values.items())


def _from_to(values: Sequence[int | float]) -> str:
    return " to ".join(dict.fromkeys(_number(value) for value in (min(values), max(values))))


def _number(value: int | float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"


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
