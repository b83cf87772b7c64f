"""A figure of the paper from curves: what was measured as lines with dots, what is printed as dotted lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tinyproto.report.draw import svg
from tinyproto.report.draw.axes import BOTTOM, LEFT, RIGHT, TOP, LegendEntry, frame, in_percent, legend, stroke
from tinyproto.report.draw.scales import Linear, Logarithmic, Scale, span
from tinyproto.report.figures.figure import Figure, Value
from tinyproto.report.figures.traffic import pareto_front, stairs
from tinyproto.report.words import size


@dataclass(frozen=True)
class Point:
    """One cell, or one value of a formula."""

    x: float
    y: float
    words: str

    @property
    def price(self) -> float:
        """Where x is bytes."""
        return self.x

    @property
    def accuracy(self) -> float:
        """Where y is one."""
        return self.y


@dataclass(frozen=True)
class Curve:
    """Points of one kind."""

    name: str
    ink: str
    points: Sequence[Point]
    printed: Sequence[tuple[float, float]] = ()  # the paper's values
    level: bool = False  # the same everywhere: its one point becomes a line across


@dataclass(frozen=True)
class Axis:
    """How values become places, and places words."""

    name: str
    scale: Scale
    words: Callable[[float], str]


def widths(values: Sequence[float], name: str) -> Axis:
    """For numbers of dimensions, each marked."""
    low, high = min(values), max(values)
    air = 0.06 * (high - low)
    scale = Linear(low - air, high + air, LEFT, RIGHT, marked=tuple(sorted(set(values))))
    return Axis(name, scale, lambda value: f"{value:g}")


def sizes(curves: Sequence[Curve], name: str) -> Axis:
    """For bytes a round."""
    values = [point.x for curve in curves if not curve.level for point in curve.points]
    return Axis(name, _logarithmic(values, LEFT, RIGHT), size)


def counts(values: Sequence[float], name: str, *, upright: bool = False) -> Axis:
    """For numbers of parameters or classes."""
    start, stop = (BOTTOM, TOP) if upright else (LEFT, RIGHT)
    return Axis(name, _logarithmic(values, start, stop), short_number)


def accuracies(curves: Sequence[Curve]) -> Axis:
    """For shares, in %."""
    values = [point.y for curve in curves for point in curve.points] + [y for c in curves for _, y in c.printed]
    return Axis("Accuracy in %", Linear(*span(values, 0.04, 0.0, 1.0), BOTTOM, TOP), in_percent)


def draw(
    slug: str, title: str, caption: str, curves: Sequence[Curve], x: Axis, y: Axis, *, with_front: bool = False
) -> Figure:  # fmt: skip
    """All curves in one frame; with the front of those that no other beats, where x is bytes and y accuracy."""
    drawn = [curve for curve in curves if curve.points or curve.printed]
    front = pareto_front([point for curve in drawn for point in curve.points]) if with_front else []
    parts = frame(x.scale, y.scale, x.name, y.name, x.words, y.words)
    parts += [svg.path(stairs(front, x.scale, y.scale), "front")] if front else []
    for curve in drawn:
        parts += _draw(curve, x.scale, y.scale)
    entries = [LegendEntry(curve.name, _mark(curve)) for curve in drawn if curve.points]
    if any(curve.printed for curve in drawn):
        single = all(len(curve.printed) < 2 for curve in drawn) and not any(curve.level for curve in drawn)
        entries.append(LegendEntry("the paper", _hollow if single else stroke("curve printed axis")))
    entries += [LegendEntry("Pareto front", stroke("front"))] if front else []
    explained, bottom = legend(entries)
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
    """500, 10k, 1.4M."""
    for unit, factor in (("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


def _logarithmic(values: Sequence[float], start: float, stop: float) -> Logarithmic:
    """At least a decade, so that its ticks are few round numbers."""
    low, high = min(values) / 1.3, max(values) * 1.2
    air = max(1.0, math.sqrt(10 * low / high))
    return Logarithmic(low / air, high * air, start, stop)


def _draw(curve: Curve, x: Scale, y: Scale) -> list[str]:
    if curve.level:
        ends = [svg.line(LEFT, y(point.y), RIGHT, y(point.y), f"curve dashed {curve.ink}") for point in curve.points]
        return ends + [svg.line(LEFT, y(v), RIGHT, y(v), f"curve printed {curve.ink}") for _, v in curve.printed]
    parts = []
    if len(curve.printed) == 1:
        parts += [svg.marker(x(place), y(v), f"hollow {curve.ink}", "as printed") for place, v in curve.printed]
    elif curve.printed:
        parts.append(svg.path([(x(place), y(value)) for place, value in curve.printed], f"curve printed {curve.ink}"))
    places = [(x(point.x), y(point.y)) for point in curve.points]
    if len(places) > 1:
        parts.append(svg.path(places, f"curve {curve.ink}"))
    parts += [
        svg.marker(*place, f"dot {curve.ink}", f"{curve.name}: {point.words}")
        for place, point in zip(places, curve.points, strict=True)
    ]
    return parts


def _mark(curve: Curve) -> Callable[[float, float], str]:
    if curve.level:
        return stroke(f"curve dashed {curve.ink}")
    if len(curve.points) > 1:
        return stroke(f"curve {curve.ink}")
    return lambda left, middle: svg.marker(left + 10, middle, f"dot {curve.ink}", curve.name)


def _hollow(left: float, middle: float) -> str:
    return svg.marker(left + 10, middle, "hollow axis", "as printed")


def _in_words(title: str, curves: Sequence[Curve], x: Axis, y: Axis) -> str:
    told = [f"{c.name}: {', '.join(point.words for point in c.points)}" for c in curves if c.points]
    missing = [curve.name for curve in curves if not curve.points]
    rest = f" Only the paper's values are there for {', '.join(missing)}." if missing else ""
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
