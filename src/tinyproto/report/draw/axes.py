"""A plot's frame: axes with ticks, names, a legend below."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tinyproto.report.draw import svg

LEFT, RIGHT, TOP, HEIGHT = 42.0, 424.0, 22.0, 210.0
BOTTOM = TOP + HEIGHT
LEGEND_LINE = 17.0
LONGEST_WORDS = 62


@dataclass(frozen=True)
class LegendEntry:
    """What one mark means."""

    words: str
    mark: Callable[[float, float], str]  # drawn at a place


def in_percent(fraction: float) -> str:
    """A tick of an axis that is in %."""
    return f"{100 * fraction:.0f}"


def frame(
    x: Scale,
    y: Scale,
    x_name: str,
    y_name: str,
    x_words: Callable[[float], str],
    y_words: Callable[[float], str] = in_percent,
) -> list[str]:
    """Grid, ticks and names."""
    parts = [svg.text(LEFT - 36, TOP - 9, y_name, class_="label strong")]
    for value in y.ticks():
        parts += [
            svg.line(LEFT, y(value), RIGHT, y(value), "grid"),
            svg.text(LEFT - 5, y(value) + 4, y_words(value), "end"),
        ]
    for value in x.ticks():
        parts += [
            svg.line(x(value), BOTTOM, x(value), BOTTOM + 4, "axis"),
            svg.text(x(value), BOTTOM + 17, x_words(value), "middle"),
        ]
    parts += [
        svg.line(LEFT, BOTTOM, RIGHT, BOTTOM, "axis"),
        svg.text(RIGHT, BOTTOM + 33, x_name, "end", "label strong"),
    ]
    return parts


def legend(entries: Sequence[LegendEntry]) -> tuple[list[str], float]:
    """The marks explained below the plot, in two columns where the words are short; and how far down it reaches."""
    columns = 2 if max((len(entry.words) for entry in entries), default=0) <= 28 else 1
    width = (svg.WIDTH - 8) / columns
    top = BOTTOM + 52
    parts = []
    for index, entry in enumerate(entries):
        place, row = index % columns, index // columns
        x, y = 8 + place * width, top + row * LEGEND_LINE
        parts += [entry.mark(x, y - 4), svg.text(x + 26, y, svg.short(entry.words, LONGEST_WORDS))]
    rows = -(-len(entries) // columns)
    return parts, top + rows * LEGEND_LINE - 6


def stroke(class_: str) -> Callable[[float, float], str]:
    """A legend's mark for a line."""
    return lambda x, y: svg.line(x, y, x + 20, y, class_)


class Scale(Protocol):
    """One axis."""

    def __call__(self, value: float) -> float:
        """Where a value goes."""
        ...

    def ticks(self) -> list[float]:
        """Values to mark."""
        ...


@dataclass(frozen=True)
class Linear:
    """Equal differences, equal distances."""

    low: float
    high: float
    start: float
    stop: float
    wanted: int = 5
    finest: float = 0.0  # no tick is closer to the next than this
    marked: tuple[float, ...] = ()  # the ticks, where only these values mean something

    def __call__(self, value: float) -> float:
        """Where a value goes."""
        return self.start + (self.stop - self.start) * (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Those given, or multiples of 1, 2 or 5 times a power of ten."""
        if self.marked:
            return list(self.marked)
        step = max(round_step((self.high - self.low) / self.wanted), self.finest)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]


@dataclass(frozen=True)
class Logarithmic:
    """Equal ratios, equal distances."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """Where a value goes."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + (self.stop - self.start) * share

    def ticks(self) -> list[float]:
        """Powers of ten; where there are few inside, also 2 and 5 times them, or all multiples."""
        exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        tens = [10.0**exponent for exponent in exponents]
        for factors in ((1,), (1, 2, 5), range(1, 10)):
            inside = [factor * ten for ten in tens for factor in factors if self.low <= factor * ten <= self.high]
            if len(inside) >= 3:
                break
        return inside


def round_step(about: float) -> float:
    """The nearest of 1, 2, 5 × 10^n that is not smaller."""
    power = 10.0 ** math.floor(math.log10(about))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= about * (1 - 1e-9))


def span(values: list[float], least: float, low: float, high: float) -> tuple[float, float]:
    """A range that holds all values with some air, at least `least` wide, between `low` and `high`."""
    bottom, top = min(values), max(values)
    air = max(0.05 * (top - bottom), (least - (top - bottom)) / 2, 0.0)
    return max(low, bottom - air), min(high, top + air)
