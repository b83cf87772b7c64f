"""What methods chose by themselves, in words: s within a byte budget, μ from the clients' hello."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tinyproto.report.compare import Comparison

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
