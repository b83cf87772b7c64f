"""The comparison behind every table and verdict: one row per algorithm, over all its seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tinyproto.engine.measure import RULES
from tinyproto.tracking.summary import MEANT

RULE_NAMES = {"head": "own head", "global": "nearest global prototype", "local": "nearest local prototype"}
STATISTIC_NAMES = {"best": "best round", "last": "last round", "last10": "mean of the last 10 evaluations"}


@dataclass(frozen=True)
class Spread:
    """A mean over seeds with the population standard deviation."""

    mean: float
    deviation: float
    count: int


@dataclass(frozen=True)
class Row:
    """One algorithm."""

    algorithm: str
    label: str
    title: str
    accuracy: Mapping[str, Spread | None]  # by rule, fractions
    parameters: float
    formula_parameters: float | None  # the paper's Table 2; None where it has no formula
    payload_bytes: float  # up and down
    wire_bytes: float
    evaluation_bytes: float  # wire bytes of frames sent only to evaluate
    seconds: float
    socket_bytes: float | None = None  # on the network, where there was one
    derived: Mapping[str, Sequence[int | float]] = field(default_factory=dict)  # what the method chose, by seed
    absences: Mapping[str, float] = field(default_factory=dict)  # dropped, late, empty_rounds: means over seeds
    left_out: int = 0  # client-rounds whose answer was left out, over all seeds


@dataclass(frozen=True)
class Comparison:
    """All algorithms of a run, and which number is the headline."""

    rows: Sequence[Row]
    rule: str  # of prototype methods; the others are read by their head
    statistic: str
    evaluations: int = MEANT  # of trained networks, in the shortest of the runs

    @property
    def statistic_words(self) -> str:
        """What the accuracies are taken over: the mean of the last 10 is of fewer where there are fewer."""
        if self.statistic != "last10" or self.evaluations >= MEANT:
            return STATISTIC_NAMES[self.statistic]
        if self.evaluations == 1:
            return "the one evaluation after training"
        return f"mean of the {self.evaluations} evaluations after training"

    def row(self, algorithm: str) -> Row | None:
        """The first row of an algorithm."""
        return next((row for row in self.rows if row.algorithm == algorithm), None)

    def headline_rule(self, row: Row) -> str:
        """The rule a method is read by: methods without global prototypes are read by their head."""
        return self.rule if row.accuracy["global"] is not None else "head"

    def headline(self, row: Row) -> float | None:
        """The method's number."""
        found = row.accuracy[self.headline_rule(row)]
        return None if found is None else found.mean

    @property
    def baseline(self) -> tuple[str, float] | None:
        """What not federating reaches: Local's better rule and its accuracy; None where Local was not run."""
        local = self.row("local")
        if local is None:
            return None
        known = [(rule, spread.mean) for rule, spread in local.accuracy.items() if spread is not None]
        return max(known, key=lambda pair: pair[1], default=None)

    def over_local(self, row: Row, rule: str) -> float | None:
        """What federating brought by one rule, over what a client reaches alone."""
        own, baseline = row.accuracy[rule], self.baseline
        if baseline is None or row.algorithm == "local" or own is None:
            return None
        return own.mean - baseline[1]

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        baseline = self.baseline
        return {
            "rule": self.rule,
            "statistic": self.statistic,
            "local": None if baseline is None else {"rule": baseline[0], "accuracy": baseline[1]},
            "rows": [
                {**asdict(row), "rule": self.headline_rule(row), "headline": self.headline(row)} for row in self.rows
            ],
        }


def compare(
    results: Sequence[Mapping[str, Any]], titles: Mapping[str, str], rule: str, statistic: str, every: int = 1
) -> Comparison:
    """Rows in the order in which the algorithms first appear; several seeds become one row.

    `every` so many rounds there was an evaluation, and one after the last.
    """
    labels = list(dict.fromkeys(result["label"] for result in results))
    rows = [_row([r for r in results if r["label"] == label], titles, statistic) for label in labels]
    evaluations = min(((result["rounds"] - 1) // every + 1 for result in results), default=MEANT)
    return Comparison(rows, rule, statistic, evaluations)


def _row(results: Sequence[Mapping[str, Any]], titles: Mapping[str, str], statistic: str) -> Row:
    first = results[0]

    def both_ways(key: str) -> float:
        return statistics.fmean(result[key]["up"] + result[key]["down"] for result in results)

    return Row(
        algorithm=first["algorithm"],
        label=first["label"],
        title=titles.get(first["label"], first["label"]),
        accuracy={rule: spread([result["accuracy"][statistic][rule] for result in results]) for rule in RULES},
        parameters=statistics.fmean(result["params_per_round"] for result in results),
        formula_parameters=first.get("params_per_round_formula"),
        payload_bytes=both_ways("payload_bytes_per_round"),
        wire_bytes=both_ways("wire_bytes_per_round"),
        evaluation_bytes=both_ways("evaluation_bytes_per_round"),
        seconds=statistics.fmean(result["seconds_per_round"]["total"] for result in results),
        socket_bytes=both_ways("socket_bytes_per_round") if all(map(on_a_network, results)) else None,
        derived=_derived(results),
        absences=_absences(results),
        left_out=sum(result.get("left_out", 0) for result in results),
    )


def _absences(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean counts over the seeds; nothing where no client was ever absent."""
    said = [result.get("absences", {}) for result in results]
    names = dict.fromkeys(key for one in said for key in one)
    return {name: statistics.fmean(one.get(name, 0) for one in said) for name in names}


def _derived(results: Sequence[Mapping[str, Any]]) -> dict[str, list[int | float]]:
    """By name, the values of the seeds; older records do not say any."""
    said = [result.get("derived", {}) for result in results]
    return {
        name: [one[name] for one in said if name in one] for name in dict.fromkeys(key for one in said for key in one)
    }


def on_a_network(result: Mapping[str, Any]) -> bool:
    """Whether it is of a real federation, which counts what goes over the network."""
    return result.get("socket_bytes_per_round") is not None


def spread(values: Sequence[float | None]) -> Spread | None:
    """Of the values that are known; None where none is."""
    known = [value for value in values if value is not None]
    return Spread(statistics.fmean(known), statistics.pstdev(known), len(known)) if known else None
