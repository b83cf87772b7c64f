"""Numbers as people read them."""

from __future__ import annotations


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
