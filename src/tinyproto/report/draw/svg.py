"""SVG elements as text; colours and fonts are classes, so that a page can be light, dark or on paper."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Literal

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]
WIDTH = 440.0
"""Of every figure, in its own units: at this width its text is read on a phone without zooming."""

MOST_POINTS = 160
"""Of a line as wide as a figure."""

DOT = 4.0
"""A marker's radius."""


def element(name: str, content: str = "", **attributes: str | float) -> str:
    """One element; `class_` and `stroke_width` become `class` and `stroke-width`, numbers are rounded."""
    written = written_attributes(attributes)
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def written_attributes(attributes: Mapping[str, str | float]) -> str:
    """Attributes inside a tag; Python's names become the markup's."""
    return "".join(
        f' {key.rstrip("_").replace("_", "-")}="{number(value) if isinstance(value, int | float) else _safe(value)}"'
        for key, value in attributes.items()
    )


def _safe(words: str) -> str:
    """As XML can hold it, which knows no control characters."""
    return escape(_NOT_XML.sub("\N{REPLACEMENT CHARACTER}", words))


def number(value: float) -> str:
    """A tenth of a unit is finer than any screen."""
    return f"{value:.1f}".removesuffix(".0")


def short(words: str, most: int) -> str:
    """Words that have room; of longer ones the middle is left out, since names differ at their ends."""
    half = (most - 1) // 2
    return words if len(words) <= most else f"{words[:half]}…{words[-half:]}"


def text(x: float, y: float, words: str, anchor: Anchor = "start", class_: str = "label") -> str:
    """One line of words."""
    return element("text", _safe(words), x=x, y=y, text_anchor=anchor, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def rectangle(x: float, y: float, width: float, height: float, class_: str) -> str:
    """An upright rectangle."""
    return element("rect", x=x, y=y, width=width, height=height, class_=class_)


def path(points: Iterable[tuple[float, float]], class_: str, *, closed: bool = False) -> str:
    """A line through points, or the area it encloses."""
    steps = "L".join(f"{number(x)},{number(y)}" for x, y in points)
    return element("path", d=f"M{steps}{'Z' if closed else ''}", class_=class_)


def thinned(points: Sequence[Point]) -> list[Point]:
    """Not more points than a screen tells apart; the first and the last are among them."""
    step = -(-len(points) // MOST_POINTS)
    return [*points[:-1:step], *points[-1:]] if step > 1 else list(points)


def marker(x: float, y: float, class_: str, tip: str, radius: float = DOT) -> str:
    """A dot that says what it is when pointed at."""
    return element("circle", element("title", _safe(tip)), cx=x, cy=y, r=radius, class_=class_)


def with_style(picture: str, style: str) -> str:
    """A figure for a file of its own, which brings its colours along."""
    start = picture.index(">") + 1
    return f"{picture[:start]}{element('style', style)}{picture[start:]}"


def figure(height: float, parts: Sequence[str], name: str) -> str:
    """A whole picture, named for those who do not see it."""
    return element(
        "svg",
        "".join(parts),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {number(WIDTH)} {number(height)}",
        role="img",
        aria_label=name,
        class_="figure",
    )
