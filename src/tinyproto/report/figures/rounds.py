"""Accuracy over rounds: a line per method, and the span of its seeds around it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from tinyproto.report.compare import RULE_NAMES
from tinyproto.report.draw import svg
from tinyproto.report.draw.axes import BOTTOM, LEFT, RIGHT, TOP, LegendEntry, Linear, frame, legend, span, stroke
from tinyproto.report.figures.figure import Figure, Value
from tinyproto.report.studies import Series, Study
from tinyproto.report.words import counted, percent


@dataclass(frozen=True)
class _Curve:
    series: Series
    points: dict[int, list[float]]  # rounds trained → accuracy of each seed


def accuracy_over_rounds(study: Study, rule: str, slug: str) -> Figure | None:
    """None where the rule applies to no method."""
    curves = [curve for _, series in study.series if (curve := _curve(series, rule)).points]
    if not curves:
        return None
    everything = [value for curve in curves for values in curve.points.values() for value in values]
    last = max(max(curve.points) for curve in curves)
    x = Linear(0, max(last, 1), LEFT, RIGHT, finest=1.0)
    y = Linear(*span(everything, 0.1, 0.0, 1.0), BOTTOM, TOP)
    parts = frame(x, y, "rounds trained", f"Accuracy in %, {RULE_NAMES[rule]}", lambda value: f"{value:g}")
    for curve in curves:
        parts += _draw(curve, x, y)
    explained, bottom = legend(
        [LegendEntry(curve.series.title, stroke(f"curve {curve.series.ink}")) for curve in curves]
    )
    seeds = max(len(curve.series.cells) for curve in curves)
    spread = f" Line: mean over seeds; band: the lowest and the highest of up to {seeds} seeds." if seeds > 1 else ""
    return Figure(
        slug=slug,
        title=f"Accuracy over rounds, by {RULE_NAMES[rule]}",
        caption=f"Test accuracy over the samples of all clients evaluated, after so many rounds of training.{spread}",
        alternative=_in_words(curves, rule),
        svg=svg.figure(bottom, parts + explained, f"Accuracy over rounds by {RULE_NAMES[rule]}"),
        columns=("method", "rule", "rounds_trained", "seed", "accuracy"),
        rows=_rows(curves, rule),
    )


def _curve(series: Series, rule: str) -> _Curve:
    points: dict[int, list[float]] = {}
    for _, point, accuracy in series.evaluations(rule):
        points.setdefault(point.rounds, []).append(accuracy)
    return _Curve(series, points)


def _draw(curve: _Curve, x: Linear, y: Linear) -> list[str]:
    colour = curve.series.ink
    places = [(x(rounds), values) for rounds, values in sorted(curve.points.items())]
    top = svg.thinned([(place, y(max(values))) for place, values in places])
    bottom = svg.thinned([(place, y(min(values))) for place, values in places])
    band = [svg.path([*top, *reversed(bottom)], f"band {colour}", closed=True)] if len(curve.series.cells) > 1 else []
    means = [(place, y(statistics.fmean(values))) for place, values in places]
    dot = [svg.marker(*means[0], f"dot {colour}", curve.series.title)] if len(means) == 1 else []
    return [*band, svg.path(svg.thinned(means), f"curve {colour}"), *dot]


def _in_words(curves: list[_Curve], rule: str) -> str:
    ends = [(statistics.fmean(curve.points[max(curve.points)]), curve) for curve in curves]
    ends.sort(key=lambda pair: -pair[0])
    listed = ", ".join(
        f"{curve.series.title} {percent(value)} after {counted(max(curve.points), 'round')}" for value, curve in ends
    )
    return f"Line chart of accuracy by {RULE_NAMES[rule]}. At the end: {listed}."


def _rows(curves: list[_Curve], rule: str) -> list[list[Value]]:
    return [
        [curve.series.title, rule, point.rounds, seed, accuracy]
        for curve in curves
        for seed, point, accuracy in curve.series.evaluations(rule)
    ]
