"""Draw a figure of the paper: measured values as lines with dots, printed values as dotted lines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tinyproto.report import svg
from tinyproto.report.figures import Figure, Value
from tinyproto.report.figures.curves import pareto_front, stairs
from tinyproto.report.svg import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    LegendEntry,
    Linear,
    Logarithmic,
    Scale,
    frame,
    in_percent,
    legend,
    span,
    stroke,
)
from tinyproto.report.words import size

Place = tuple[float, float]
Places = tuple[Place, ...]
RING = 2.5
"""The difference in radius between a ring and the dot or ring inside it."""

OVER = ("", " over", " thrice")
"""CSS classes of a line by the number of equal lines under it."""


@dataclass(frozen=True)
class Point:
    """One cell, or one value of a formula."""

    x: float
    y: float
    words: str


@dataclass(frozen=True)
class Curve:
    """Points of one kind."""

    name: str
    ink: str
    points: Sequence[Point]
    printed: Sequence[tuple[float, float]] = ()  # the paper's values
    level: bool = False  # constant: its one point becomes a horizontal line


@dataclass(frozen=True)
class Axis:
    """A scale with a name and a format for its values."""

    name: str
    scale: Scale
    words: Callable[[float], str]


def widths(values: Sequence[float], name: str) -> Axis:
    """Return an axis for numbers of dimensions, each marked."""
    low, high = min(values), max(values)
    air = 0.06 * (high - low)
    scale = Linear(low - air, high + air, LEFT, RIGHT, marked=tuple(sorted(set(values))))
    return Axis(name, scale, lambda value: f"{value:g}")


def sizes(curves: Sequence[Curve], name: str) -> Axis:
    """Return an axis for bytes a round."""
    values = [point.x for curve in curves if not curve.level for point in curve.points]
    return Axis(name, _logarithmic(values, LEFT, RIGHT), size)


def counts(values: Sequence[float], name: str, *, upright: bool = False) -> Axis:
    """Return an axis for numbers of parameters or classes."""
    start, stop = (BOTTOM, TOP) if upright else (LEFT, RIGHT)
    return Axis(name, _logarithmic(values, start, stop), short_number)


def accuracies(curves: Sequence[Curve]) -> Axis:
    """Return an axis for accuracies, in %."""
    values = [point.y for curve in curves for point in curve.points] + [y for c in curves for _, y in c.printed]
    return Axis("Accuracy in %", Linear(*span(values, 0.04, 0.0, 1.0), BOTTOM, TOP), in_percent)


def draw(
    slug: str, title: str, caption: str, curves: Sequence[Curve], x: Axis, y: Axis, *, with_front: bool = False
) -> Figure:  # fmt: skip
    """Draw all curves in one frame, with the Pareto front on request (x is bytes, y accuracy)."""
    drawn = [curve for curve in curves if curve.points or curve.printed]
    points = [point for curve in drawn for point in curve.points] if with_front else []
    front = pareto_front(points, lambda point: (point.x, point.y))
    parts = frame(x.scale, y.scale, x.name, y.name, x.words, y.words)
    parts += [svg.path(stairs([(point.x, point.y) for point in front], x.scale, y.scale), "front")] if front else []
    lines: Counter[Places] = Counter()
    dots: Counter[Place] = Counter()
    entries = []
    for curve in drawn:
        places = _places(curve, x.scale, y.scale)
        parts += _draw(curve, places, lines[places], dots, x.scale, y.scale)
        entries.append(_entry(curve, lines[places]))
        lines[places] += 1
        dots.update(places)
    explained, bottom = legend(entries + _common(drawn) + _front_entry(front))
    return Figure(
        slug=slug,
        title=title,
        caption=caption,
        alternative=_in_words(title, drawn, x, y) + _front_words(drawn, front),
        svg=svg.figure(bottom, parts + explained, title),
        columns=("curve", "from", x.name, y.name, "what"),
        rows=_rows(drawn),
    )


def short_number(value: float) -> str:
    """Return a number as 500, 10k or 1.4M."""
    for unit, factor in (("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


def _logarithmic(values: Sequence[float], start: float, stop: float) -> Logarithmic:
    """Return a scale over at least a decade, so that its ticks are few round numbers."""
    low, high = min(values) / 1.3, max(values) * 1.2
    air = max(1.0, math.sqrt(10 * low / high))
    return Logarithmic(low / air, high * air, start, stop)


def _places(curve: Curve, x: Scale, y: Scale) -> Places:
    """Return the places of its points, rounded to what a screen shows; for a horizontal line x has no meaning."""
    return tuple((LEFT if curve.level else round(x(point.x), 1), round(y(point.y), 1)) for point in curve.points)


def _draw(curve: Curve, places: Places, under: int, dots: Mapping[Place, int], x: Scale, y: Scale) -> list[str]:
    """Draw a curve over `under` equal curves, and over dots that may be at the same places."""
    if curve.level:
        ends = [svg.line(LEFT, height, RIGHT, height, f"curve dashed {curve.ink}") for _, height in places]
        return ends + [svg.line(LEFT, y(v), RIGHT, y(v), f"curve printed {curve.ink}") for _, v in curve.printed]
    parts = []
    if len(curve.printed) == 1:
        parts += [svg.marker(x(place), y(v), f"hollow {curve.ink}", "as printed") for place, v in curve.printed]
    elif curve.printed:
        parts.append(svg.path([(x(place), y(value)) for place, value in curve.printed], f"curve printed {curve.ink}"))
    if len(places) > 1:
        parts.append(svg.path(places, _line(curve, under)))
    parts += [
        _dot(place, curve.ink, f"{curve.name}: {point.words}", dots[place])
        for place, point in zip(places, curve.points, strict=True)
    ]
    return parts


def _line(curve: Curve, under: int) -> str:
    """Return its CSS classes: a line over equal lines leaves gaps that show them."""
    return f"curve{OVER[min(under, len(OVER) - 1)]} {curve.ink}"


def _dot(place: Place, ink: str, tip: str, under: int) -> str:
    """Draw a dot, or a ring around the dots at the same place."""
    return svg.marker(*place, f"hollow {ink}" if under else f"dot {ink}", tip, svg.DOT + RING * under)


def _entry(curve: Curve, under: int) -> LegendEntry:
    """Return the legend entry of a curve; if only the paper has values of it, it says so."""
    if not curve.points:
        across = curve.level or len(curve.printed) > 1
        return LegendEntry(
            f"{curve.name}, printed", stroke(f"curve printed {curve.ink}") if across else _hollow(curve.ink)
        )
    if curve.level:
        return LegendEntry(curve.name, stroke(f"curve dashed {curve.ink}"))
    if len(curve.points) > 1:
        return LegendEntry(curve.name, stroke(_line(curve, under)))
    return LegendEntry(curve.name, lambda left, middle: _dot((left + 10, middle), curve.ink, curve.name, under))


def _common(curves: Sequence[Curve]) -> list[LegendEntry]:
    """Return a legend entry for printed values of curves that also have measured ones."""
    both = [curve for curve in curves if curve.points and curve.printed]
    single = all(len(curve.printed) < 2 and not curve.level for curve in both)
    return [LegendEntry("the paper", _hollow("axis") if single else stroke("curve printed axis"))] if both else []


def _front_entry(front: Sequence[Point]) -> list[LegendEntry]:
    return [LegendEntry("Pareto front", stroke("front"))] if front else []


def _hollow(ink: str) -> Callable[[float, float], str]:
    return lambda left, middle: svg.marker(left + 10, middle, f"hollow {ink}", "as printed")


def _in_words(title: str, curves: Sequence[Curve], x: Axis, y: Axis) -> str:
    told = [f"{c.name}: {', '.join(point.words for point in c.points)}" for c in curves if c.points]
    missing = [curve.name for curve in curves if not curve.points]
    rest = f" Only the paper has values of {', '.join(missing)}." if missing else ""
    return f"{title}: {y.name} against {x.name}. {'; '.join(told)}.{rest}"


def _front_words(curves: Sequence[Curve], front: Sequence[Point]) -> str:
    names = [f"{curve.name} ({point.words})" for point in front for curve in curves if point in curve.points]
    return f" On the Pareto front: {'; '.join(names)}." if names else ""


def _rows(curves: Sequence[Curve]) -> list[list[Value]]:
    rows: list[list[Value]] = []
    for curve in curves:
        rows += [[curve.name, "paper", x, y, ""] for x, y in curve.printed]
        rows += [[curve.name, "ours", None if curve.level else p.x, p.y, p.words] for p in curve.points]
    return rows
