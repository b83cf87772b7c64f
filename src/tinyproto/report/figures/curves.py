"""Accuracy over rounds and over the bytes sent, one curve per method."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from tinyproto.report import svg
from tinyproto.report.compare import RULE_NAMES, better_rule
from tinyproto.report.figures import Figure
from tinyproto.report.studies import INKS, Series, Setting, Study
from tinyproto.report.svg import BOTTOM, LEFT, RIGHT, TOP, LegendEntry, Linear, Logarithmic, Scale, stroke
from tinyproto.report.words import counted, percent, size

Points = dict[int, list[float]]  # rounds trained → accuracy of each seed
T = TypeVar("T")

MARKERS = 5
"""Markers on a curve, about."""

# Rounds


def accuracy_over_rounds(study: Study, rule: str, slug: str) -> Figure | None:
    """Draw a line per method and a band around it for its seeds; return None if the rule applies to no method."""
    curves = [(series, points) for _, series in study.series if (points := _points(series, rule))]
    if not curves:
        return None
    everything = [value for _, points in curves for values in points.values() for value in values]
    last = max(max(points) for _, points in curves)
    x = Linear(0, max(last, 1), LEFT, RIGHT, finest=1.0)
    y = Linear(*svg.span(everything, 0.1, 0.0, 1.0), BOTTOM, TOP)
    parts = svg.frame(x, y, "rounds trained", f"Accuracy in %, {RULE_NAMES[rule]}", lambda value: f"{value:g}")
    for series, points in curves:
        parts += _draw_curve(series, points, x, y)
    explained, bottom = svg.legend([LegendEntry(series.title, _marked(series)) for series, _ in curves])
    seeds = max(len(series.cells) for series, _ in curves)
    band = f" Line: mean over seeds; band: lowest to highest of up to {seeds} seeds." if seeds > 1 else ""
    return Figure(
        slug=slug,
        title=f"Accuracy over rounds, by {RULE_NAMES[rule]}",
        caption=f"Test accuracy over the samples of all evaluated clients.{band}",
        alternative=_describe_curves(curves, rule),
        svg=svg.figure(bottom, parts + explained, f"Accuracy over rounds by {RULE_NAMES[rule]}"),
        columns=("method", "rule", "rounds_trained", "seed", "accuracy"),
        rows=[
            [series.title, rule, point.rounds, seed, accuracy]
            for series, _ in curves
            for seed, point, accuracy in series.evaluations(rule)
        ],
    )


def _points(series: Series, rule: str) -> Points:
    points: Points = {}
    for _, point, accuracy in series.evaluations(rule):
        points.setdefault(point.rounds, []).append(accuracy)
    return points


def _draw_curve(series: Series, points: Points, x: Linear, y: Linear) -> list[str]:
    places = [(x(rounds), values) for rounds, values in sorted(points.items())]
    top = svg.thinned([(place, y(max(values))) for place, values in places])
    bottom = svg.thinned([(place, y(min(values))) for place, values in places])
    band = [svg.path([*top, *reversed(bottom)], f"band {series.ink}", closed=True)] if len(series.cells) > 1 else []
    means = [(place, y(statistics.fmean(values))) for place, values in places]
    dots = [series.marker(*means[index], series.title) for index in _marked_at(len(means), series.colour)]
    return [*band, svg.path(svg.thinned(means), f"curve {series.ink}"), *dots]


def _marked_at(points: int, colour: int) -> list[int]:
    """Return the points of a curve that get a marker: the last and a few others, not the same for every curve."""
    step = max(1, points // MARKERS)
    return [*range(colour * step // INKS, points - 1, step), points - 1]


def _marked(series: Series, more: str = "") -> Callable[[float, float], str]:
    return svg.marked_stroke(f"curve{more} {series.ink}", lambda x, y: series.marker(x, y, series.title))


def _describe_curves(curves: Sequence[tuple[Series, Points]], rule: str) -> str:
    ends = [(statistics.fmean(points[max(points)]), max(points), series.title) for series, points in curves]
    ends.sort(key=lambda end: -end[0])
    listed = ", ".join(f"{title} {percent(value)} after {counted(last, 'round')}" for value, last, title in ends)
    return f"Line chart of accuracy by {RULE_NAMES[rule]}. At the end: {listed}."


# Bytes


@dataclass(frozen=True)
class Bought:
    """The bytes that one method sent in the whole run, and its headline accuracy."""

    series: Series
    rule: str
    payload_bytes: float
    evaluation_bytes: float  # frames sent only to evaluate, not in `payload_bytes`
    accuracy: float
    path: Sequence[tuple[float, float]]  # payload bytes so far, accuracy; means over seeds


def pareto_front(offers: Sequence[T], place: Callable[[T], tuple[float, float]]) -> list[T]:
    """Return the offers that no other beats, cheapest first; `place` gives the bytes and the accuracy of an offer."""
    front: list[T] = []
    for offer in sorted(offers, key=lambda one: (place(one)[0], -place(one)[1])):
        if not front or place(offer)[1] > place(front[-1])[1]:
            front.append(offer)
    return front


def stairs(front: Sequence[tuple[float, float]], x: Scale, y: Scale) -> list[tuple[float, float]]:
    """Return the outline of a front of bytes and accuracy: an accuracy holds until more bytes buy a better one."""
    places = [(x(count) if count else LEFT, y(accuracy)) for count, accuracy in front]
    steps = [place for before, after in pairwise(places) for place in (before, (after[0], before[1]))]
    return [*steps, places[-1], (RIGHT, places[-1][1])]


def accuracy_over_bytes(study: Study, slug: str) -> Figure | None:
    """Draw accuracy against payload bytes with the Pareto front; return None if no method sends anything."""
    methods = [found for setting, series in study.series if (found := _bought(setting, series)) is not None]
    sending = [method for method in methods if method.payload_bytes]
    if not sending:
        return None
    counts = [count for method in sending for count, _ in method.path if count]
    low, high = min(counts), max(counts)
    x = Logarithmic(low / 1.3, max(high, 2 * low) * 1.1, LEFT, RIGHT)
    shown = [accuracy for method in methods for _, accuracy in method.path] + [method.accuracy for method in methods]
    y = Linear(*svg.span(shown, 0.1, 0.0, 1.0), BOTTOM, TOP)
    front = pareto_front(methods, _place)
    by = RULE_NAMES[sending[0].rule] if len({method.rule for method in sending}) == 1 else "rules as in the caption"
    parts = svg.frame(x, y, "payload bytes sent so far, up and down, all clients", f"Accuracy in %, {by}", size)
    parts += [svg.path(stairs([_place(method) for method in front], x, y), "front")]
    for method in methods:
        parts += _draw_method(method, x, y)
    entries = [*[_entry(method) for method in methods], LegendEntry("Pareto front", stroke("front"))]
    explained, bottom = svg.legend(entries)
    return Figure(
        slug=slug,
        title="Accuracy over bytes sent",
        caption=(
            f"Accuracy is {_rules(methods)}. Lines: during training. Markers: the number in the table, at the bytes of "
            "the whole run. None lies above or left of the shaded Pareto front. A method that sends nothing is a "
            f"dashed line. Bytes are payload, without frame headers.{_excluded(methods)}"
        ),
        alternative=_describe_methods(methods, front),
        svg=svg.figure(bottom, parts + explained, "Accuracy over payload bytes sent"),
        columns=(
            "method", "rule", "seed", "rounds_trained", "payload_bytes", "wire_bytes", "evaluation_bytes", "accuracy",
        ),
        rows=[
            [
                method.series.title, method.rule, seed, point.rounds, point.payload_bytes, point.wire_bytes,
                point.evaluation_bytes, accuracy,
            ]
            for method in methods
            for seed, point, accuracy in method.series.evaluations(method.rule)
        ],
    )  # fmt: skip


def _place(method: Bought) -> tuple[float, float]:
    return method.payload_bytes, method.accuracy


def _bought(setting: Setting, series: Series) -> Bought | None:
    row = setting.row(series)
    if series.algorithm == "local":  # by its better rule, which federating has to beat
        rule, headline = better_rule(row) or ("head", None)
    else:
        rule, headline = setting.headline_rule(series), setting.comparison.headline(row)
    if headline is None:
        return None
    by_round: dict[int, list[tuple[int, float]]] = {}
    for _, point, accuracy in series.evaluations(rule):
        by_round.setdefault(point.rounds, []).append((point.payload_bytes, accuracy))
    path = [
        (statistics.fmean(count for count, _ in seeds), statistics.fmean(accuracy for _, accuracy in seeds))
        for _, seeds in sorted(by_round.items())
    ]
    evaluation = statistics.fmean(cell.points[-1].evaluation_bytes for cell in series.cells if cell.points)
    return Bought(series, rule, path[-1][0], evaluation, headline, path)


def _draw_method(method: Bought, x: Logarithmic, y: Linear) -> list[str]:
    colour = method.series.ink
    if not method.payload_bytes:
        return [svg.line(LEFT, y(method.accuracy), RIGHT, y(method.accuracy), f"curve dashed {colour}")]
    path = [(x(count), y(accuracy)) for count, accuracy in method.path if count]
    tip = f"{method.series.title}: {percent(method.accuracy)} for {size(method.payload_bytes)}"
    return [
        svg.path(svg.thinned(path), f"curve thin {colour}"),
        method.series.marker(x(method.payload_bytes), y(method.accuracy), tip),
    ]


def _excluded(methods: Sequence[Bought]) -> str:
    listed = [f"{method.series.title} {size(method.evaluation_bytes)}" for method in methods if method.evaluation_bytes]
    return f" Not counted: frames sent only to evaluate ({', '.join(listed)} in total)." if listed else ""


def _entry(method: Bought) -> LegendEntry:
    if method.payload_bytes:
        return LegendEntry(method.series.title, _marked(method.series, " thin"))
    words = f"{method.series.title} ({RULE_NAMES[method.rule]})"
    return LegendEntry(words, stroke(f"curve dashed {method.series.ink}"))


def _rules(methods: Sequence[Bought]) -> str:
    """Return the rules that methods are read by, each with its methods if there are several."""
    found = {rule: [one.series.title for one in methods if one.rule == rule] for rule in RULE_NAMES}
    used = {rule: titles for rule, titles in found.items() if titles}
    if len(used) == 1:
        return f"by {RULE_NAMES[next(iter(used))]}"
    return " and ".join(f"by {RULE_NAMES[rule]} ({', '.join(titles)})" for rule, titles in used.items())


def _describe_methods(methods: Sequence[Bought], front: Sequence[Bought]) -> str:
    listed = "; ".join(
        f"{method.series.title}: {percent(method.accuracy)} by {RULE_NAMES[method.rule]} for "
        f"{size(method.payload_bytes)} in total"
        for method in methods
    )
    names = ", ".join(method.series.title for method in front)
    return f"Accuracy against payload bytes, logarithmic. {listed}. On the Pareto front: {names}."
