"""A plot's frame: axes with ticks, names, a legend below."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tinyproto.report.draw import svg
from tinyproto.report.draw.scales import Scale

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
