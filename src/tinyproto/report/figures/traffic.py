"""Accuracy over the bytes that bought it, and the methods that nothing else beats on both."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeVar

from tinyproto.report.compare import RULE_NAMES
from tinyproto.report.draw import svg
from tinyproto.report.draw.axes import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    LegendEntry,
    Linear,
    Logarithmic,
    Scale,
    frame,
    legend,
    span,
    stroke,
)
from tinyproto.report.figures.figure import Figure, Value
from tinyproto.report.studies import Series, Setting, Study
from tinyproto.report.words import percent, size


@dataclass(frozen=True)
class Bought:
    """One method: what it sent in all, and its headline number."""

    series: Series
    rule: str
    payload_bytes: float
    evaluation_bytes: float  # of frames sent only to evaluate, beside
    accuracy: float
    path: Sequence[tuple[float, float]]  # payload bytes so far, accuracy; means over seeds

    @property
    def price(self) -> float:
        """Payload bytes of the whole run."""
        return self.payload_bytes


class Priced(Protocol):
    """What costs bytes and brings accuracy."""

    @property
    def price(self) -> float:
        """In bytes."""
        ...

    @property
    def accuracy(self) -> float:
        """As a fraction."""
        ...


Offer = TypeVar("Offer", bound=Priced)


def pareto_front(offers: Sequence[Offer]) -> list[Offer]:
    """Those that no other beats: a higher accuracy than all that sent as much or less, cheapest first."""
    front: list[Offer] = []
    for offer in sorted(offers, key=lambda one: (one.price, -one.accuracy)):
        if not front or offer.accuracy > front[-1].accuracy:
            front.append(offer)
    return front


def stairs(front: Sequence[Priced], x: Scale, y: Scale) -> list[tuple[float, float]]:
    """The front drawn: an accuracy holds until more bytes buy a better one."""
    places = [(x(offer.price) if offer.price else LEFT, y(offer.accuracy)) for offer in front]
    steps = [place for before, after in pairwise(places) for place in (before, (after[0], before[1]))]
    return [*steps, places[-1], (RIGHT, places[-1][1])]


def accuracy_over_bytes(study: Study, slug: str) -> Figure | None:
    """None where no method sends anything."""
    methods = [found for setting, series in study.series if (found := _bought(setting, series)) is not None]
    sending = [method for method in methods if method.payload_bytes]
    if not sending:
        return None
    counts = [count for method in sending for count, _ in method.path if count]
    low, high = min(counts), max(counts)
    x = Logarithmic(low / 1.3, max(high, 2 * low) * 1.1, LEFT, RIGHT)
    shown = [accuracy for method in methods for _, accuracy in method.path] + [method.accuracy for method in methods]
    y = Linear(*span(shown, 0.1, 0.0, 1.0), BOTTOM, TOP)
    front = pareto_front(methods)
    parts = frame(x, y, "payload bytes sent so far, up and down, all clients", "Accuracy in %", size)
    parts += [svg.path(stairs(front, x, y), "front")]
    for method in methods:
        parts += _draw(method, x, y)
    explained, bottom = legend([*[_entry(method) for method in methods], LegendEntry("Pareto front", stroke("front"))])
    return Figure(
        slug=slug,
        title="Accuracy over bytes sent",
        caption=(
            "Lines: while training. Dots: the number in the table, at all bytes of the run. No dot lies above or left "
            "of the dotted front. A method that sends nothing is a dashed line. Values only; frames add to it."
            f"{_beside(methods)}"
        ),
        alternative=_in_words(methods, front),
        svg=svg.figure(bottom, parts + explained, "Accuracy over payload bytes sent"),
        columns=(
            "method",
            "rule",
            "seed",
            "rounds_trained",
            "payload_bytes",
            "wire_bytes",
            "evaluation_bytes",
            "accuracy",
        ),
        rows=[row for method in methods for row in _rows(method)],
    )


def _bought(setting: Setting, series: Series) -> Bought | None:
    rule, headline = _read_by(setting, series)
    if headline is None:
        return None
    by_round: dict[int, list[tuple[int, float]]] = {}
    for _, point, accuracy in series.evaluations(rule):
        by_round.setdefault(point.rounds, []).append((point.payload_bytes, accuracy))
    path = [
        (statistics.fmean(count for count, _ in seeds), statistics.fmean(accuracy for _, accuracy in seeds))
        for _, seeds in sorted(by_round.items())
    ]
    beside = statistics.fmean(cell.points[-1].evaluation_bytes for cell in series.cells if cell.points)
    return Bought(series, rule, path[-1][0], beside, headline, path)


def _read_by(setting: Setting, series: Series) -> tuple[str, float | None]:
    """The headline rule; for Local the better one, which is what federating has to beat."""
    row = setting.row(series)
    if series.algorithm != "local":
        return setting.headline_rule(series), setting.comparison.headline(row)
    known = [(rule, spread.mean) for rule, spread in row.accuracy.items() if spread is not None]
    return max(known, key=lambda pair: pair[1], default=("head", None))


def _draw(method: Bought, x: Logarithmic, y: Linear) -> list[str]:
    colour = method.series.ink
    if not method.payload_bytes:
        return [svg.line(LEFT, y(method.accuracy), RIGHT, y(method.accuracy), f"curve dashed {colour}")]
    path = [(x(count), y(accuracy)) for count, accuracy in method.path if count]
    tip = f"{method.series.title}: {percent(method.accuracy)} for {size(method.payload_bytes)}"
    return [
        svg.path(svg.thinned(path), f"curve thin {colour}"),
        svg.marker(x(method.payload_bytes), y(method.accuracy), f"dot {colour}", tip),
    ]


def _beside(methods: Sequence[Bought]) -> str:
    """What is sent only to evaluate, where anything is."""
    told = [f"{method.series.title} {size(method.evaluation_bytes)}" for method in methods if method.evaluation_bytes]
    return f" Not counted: frames sent only to evaluate, in all {', '.join(told)}." if told else ""


def _entry(method: Bought) -> LegendEntry:
    dashed = "" if method.payload_bytes else " dashed"
    words = method.series.title if method.payload_bytes else f"{method.series.title} ({RULE_NAMES[method.rule]})"
    return LegendEntry(words, stroke(f"curve{dashed} {method.series.ink}"))


def _in_words(methods: Sequence[Bought], front: Sequence[Bought]) -> str:
    listed = "; ".join(
        f"{method.series.title}: {percent(method.accuracy)} by {RULE_NAMES[method.rule]} for "
        f"{size(method.payload_bytes)} in all"
        for method in methods
    )
    names = ", ".join(method.series.title for method in front)
    return f"Accuracy against payload bytes, logarithmic. {listed}. On the Pareto front: {names}."


def _rows(method: Bought) -> list[list[Value]]:
    series, rule = method.series, method.rule
    return [
        [
            series.title,
            rule,
            seed,
            point.rounds,
            point.payload_bytes,
            point.wire_bytes,
            point.evaluation_bytes,
            accuracy,
        ]
        for seed, point, accuracy in series.evaluations(rule)
    ]
