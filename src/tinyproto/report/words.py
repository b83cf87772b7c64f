"""Numbers in the form that people read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SYMBOLS = {"cps_dim": "s", "global_scale": "μ", "length": "R"}
"""The paper's symbols for derived hyper-parameters; any other goes by its name."""


def percent(fraction: float) -> str:
    """Return 94.1 %."""
    return f"{100 * fraction:.1f} %"


def points(fraction: float) -> str:
    """Return +1.3, with a real minus sign; a difference that rounds to zero has no sign."""
    text = f"{100 * fraction:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def size(count: float) -> str:
    """Return bytes in decimal units: 0 B, 812 B, 11.1 kB, 1.46 MB."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.9995 * factor:  # it would round to 1000 of the smaller unit
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"


def number(count: float) -> str:
    """Return a count with its thousands set apart: 27 800."""
    return f"{count:,.0f}".replace(",", " ")


def times(ratio: float) -> str:
    """Return 10.0×."""
    return f"{ratio:.1f}×"


def counted(count: int, thing: str) -> str:
    """Return a count with its noun: 1 seed, 3 seeds, 10 classes."""
    plural = "es" if thing.endswith("s") else "s"
    return f"{count} {thing}{'' if count == 1 else plural}"


def derived_words(values: Mapping[str, int | float | Sequence[int | float]]) -> str:
    """Return derived hyper-parameters: s = 42, μ = 0.1744; several seeds as a range, μ = 0.01 to 0.015."""
    return ", ".join(f"{SYMBOLS.get(name, name)} = {_range(value)}" for name, value in values.items())


def _range(value: int | float | Sequence[int | float]) -> str:
    values = [value] if isinstance(value, int | float) else value
    ends = (min(values), max(values))
    return " to ".join(dict.fromkeys(str(end) if isinstance(end, int) else f"{end:.4g}" for end in ends))


def class_labels(names: Sequence[str] | None, classes: int) -> list[str]:
    """Return the names of the classes, or their numbers if they have none."""
    return list(names) if names else [str(number) for number in range(classes)]
