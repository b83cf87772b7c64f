"""SVG as text: elements, axes and a legend.

Figures are drawn by hand, not by a plotting library: they take their colours from the page's stylesheet (light, dark,
print), and a page with dozens of them stays small.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]

WIDTH = 440.0
"""Width of every figure in its own units; at this width its text is readable on a phone without zooming."""

MOST_POINTS = 160
"""Points of a line that is as wide as a figure."""

DOT = 4.0
"""Radius of a marker."""

SHAPES: tuple[tuple[Point, ...], ...] = (
    (),
    ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    ((0, -1.2), (1.15, 0.9), (-1.15, 0.9)),
    ((0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)),
    ((0, 1.2), (1.15, -0.9), (-1.15, -0.9)),
)
"""Markers as corners around their middle, in radii: a circle, square, triangle, diamond, triangle upside down."""

LEFT, RIGHT, TOP, HEIGHT = 42.0, 424.0, 22.0, 210.0
BOTTOM = TOP + HEIGHT
LEGEND_LINE = 17.0
LONGEST_WORDS = 62


def element(name: str, content: str = "", **attributes: str | float) -> str:
    """Return one element; `class_` and `stroke_width` become `class` and `stroke-width`, numbers are rounded."""
    written = written_attributes(attributes)
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def written_attributes(attributes: Mapping[str, str | float]) -> str:
    """Return attributes as they stand inside a tag."""
    return "".join(
        f' {key.rstrip("_").replace("_", "-")}="{number(value) if isinstance(value, int | float) else _safe(value)}"'
        for key, value in attributes.items()
    )


def _safe(words: str) -> str:
    """Escape words and replace control characters, which XML does not allow."""
    return escape(_NOT_XML.sub("\N{REPLACEMENT CHARACTER}", words))


def number(value: float) -> str:
    """Return a coordinate; a tenth of a unit is finer than any screen."""
    return f"{value:.1f}".removesuffix(".0")


def short(words: str, most: int) -> str:
    """Cut the middle out of words that are too long, since names differ at their ends."""
    half = (most - 1) // 2
    return words if len(words) <= most else f"{words[:half]}…{words[-half:]}"


def text(x: float, y: float, words: str, anchor: Anchor = "start", class_: str = "label") -> str:
    """Return one line of words."""
    return element("text", _safe(words), x=x, y=y, text_anchor=anchor, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    """Return a straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def rectangle(x: float, y: float, width: float, height: float, class_: str) -> str:
    """Return an upright rectangle."""
    return element("rect", x=x, y=y, width=width, height=height, class_=class_)


def path(points: Iterable[Point], class_: str, *, closed: bool = False) -> str:
    """Return a line through points, or the area it encloses."""
    steps = "L".join(f"{number(x)},{number(y)}" for x, y in points)
    return element("path", d=f"M{steps}{'Z' if closed else ''}", class_=class_)


def thinned(points: Sequence[Point]) -> list[Point]:
    """Return at most as many points as a screen can separate, the first and the last among them."""
    step = -(-len(points) // MOST_POINTS)
    return [*points[:-1:step], *points[-1:]] if step > 1 else list(points)


def marker(x: float, y: float, class_: str, tip: str, radius: float = DOT, shape: int = 0) -> str:
    """Return a dot with a tooltip, or another shape, so that colour is not all that tells methods apart."""
    title, corners = element("title", _safe(tip)), SHAPES[shape]
    if not corners:
        return element("circle", title, cx=x, cy=y, r=radius, class_=class_)
    steps = "L".join(f"{number(x + radius * right)},{number(y + radius * down)}" for right, down in corners)
    return element("path", title, d=f"M{steps}Z", class_=class_)


def figure(height: float, parts: Sequence[str], name: str) -> str:
    """Return a complete picture with an accessible name."""
    return element(
        "svg",
        "".join(parts),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {number(WIDTH)} {number(height)}",
        role="img",
        aria_label=name,
        class_="figure",
    )


@dataclass(frozen=True)
class Linear:
    """An axis on which equal differences have equal distances."""

    low: float
    high: float
    start: float
    stop: float
    wanted: int = 5
    finest: float = 0.0  # the smallest distance between ticks
    marked: tuple[float, ...] = ()  # the ticks, if only these values mean something

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value."""
        return self.start + (self.stop - self.start) * (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Return the marked values, or multiples of 1, 2 or 5 times a power of ten."""
        if self.marked:
            return list(self.marked)
        step = max(round_step((self.high - self.low) / self.wanted), self.finest)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]


@dataclass(frozen=True)
class Logarithmic:
    """An axis on which equal ratios have equal distances."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + (self.stop - self.start) * share

    def ticks(self) -> list[float]:
        """Return powers of ten; if fewer than three fit, also 2 and 5 times them, or all multiples."""
        exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        tens = [10.0**exponent for exponent in exponents]
        for factors in ((1,), (1, 2, 5), range(1, 10)):
            inside = [factor * ten for ten in tens for factor in factors if self.low <= factor * ten <= self.high]
            if len(inside) >= 3:
                break
        return inside


Scale = Linear | Logarithmic


def round_step(about: float) -> float:
    """Return the smallest of 1, 2, 5 × 10^n that is not below `about`."""
    power = 10.0 ** math.floor(math.log10(about))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= about * (1 - 1e-9))


def span(values: list[float], least: float, low: float, high: float) -> tuple[float, float]:
    """Return a range that holds all values with a margin, at least `least` wide, between `low` and `high`."""
    bottom, top = min(values), max(values)
    margin = max(0.05 * (top - bottom), (least - (top - bottom)) / 2, 0.0)
    return max(low, bottom - margin), min(high, top + margin)


def in_percent(fraction: float) -> str:
    """Return the label of a tick in %."""
    return f"{100 * fraction:.0f}"


def frame(
    x: Scale,
    y: Scale,
    x_name: str,
    y_name: str,
    x_words: Callable[[float], str],
    y_words: Callable[[float], str] = in_percent,
) -> list[str]:
    """Return grid, ticks and axis names."""
    parts = [text(LEFT - 36, TOP - 9, y_name, class_="label strong")]
    for value in y.ticks():
        parts += [line(LEFT, y(value), RIGHT, y(value), "grid"), text(LEFT - 5, y(value) + 4, y_words(value), "end")]
    for value in x.ticks():
        parts += [
            line(x(value), BOTTOM, x(value), BOTTOM + 4, "axis"),
            text(x(value), BOTTOM + 17, x_words(value), "middle"),
        ]
    return [*parts, line(LEFT, BOTTOM, RIGHT, BOTTOM, "axis"), text(RIGHT, BOTTOM + 33, x_name, "end", "label strong")]


@dataclass(frozen=True)
class LegendEntry:
    """A mark and its meaning."""

    words: str
    mark: Callable[[float, float], str]  # draws the mark at a place


def stroke(class_: str) -> Callable[[float, float], str]:
    """Return a legend's mark for a line."""
    return lambda x, y: line(x, y, x + 20, y, class_)


def marked_stroke(class_: str, mark: Callable[[float, float], str]) -> Callable[[float, float], str]:
    """Return a legend's mark for a line with markers on it."""
    return lambda x, y: line(x, y, x + 20, y, class_) + mark(x + 10, y)


def legend(entries: Sequence[LegendEntry]) -> tuple[list[str], float]:
    """Return the legend below a plot, in two columns if its words are short, and its lower end."""
    columns = 2 if max((len(entry.words) for entry in entries), default=0) <= 28 else 1
    width = (WIDTH - 8) / columns
    top = BOTTOM + 52
    parts = []
    for index, entry in enumerate(entries):
        x, y = 8 + index % columns * width, top + index // columns * LEGEND_LINE
        parts += [entry.mark(x, y - 4), text(x + 26, y, short(entry.words, LONGEST_WORDS))]
    rows = -(-len(entries) // columns)
    return parts, top + rows * LEGEND_LINE - 6
