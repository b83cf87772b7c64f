"""The comparison behind every table and verdict: one row per algorithm, averaged over its seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tinyproto.engine.measure import RULES
from tinyproto.report.words import number, points, size
from tinyproto.tracking.summary import MEANT

RULE_NAMES = {"head": "own head", "global": "nearest global prototype", "local": "nearest local prototype"}
STATISTIC_NAMES = {"best": "best round", "last": "last round", "last10": "mean of the last 10 evaluations"}
SPREAD_WORDS = "mean ± sample standard deviation (n − 1) over seeds"


@dataclass(frozen=True)
class Spread:
    """A mean over seeds with the sample standard deviation (n − 1), which a single seed does not have."""

    mean: float
    deviation: float | None
    count: int


@dataclass(frozen=True)
class Row:
    """The accuracy and the cost of one algorithm; costs are means over its seeds."""

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
    socket_bytes: float | None = None  # on the network; None in a simulation
    derived: Mapping[str, Sequence[int | float]] = field(default_factory=dict)  # hyper-parameters it chose, by seed
    absences: Mapping[str, float] = field(default_factory=dict)  # dropped, late, empty_rounds: means over seeds
    left_out: int = 0  # client-rounds left out, over all seeds
    real: bool = False  # of a federation whose clients are elsewhere
    seeds: Sequence[int] = ()


@dataclass(frozen=True)
class Comparison:
    """All algorithms of a run, with the rule and the statistic that give the headline number."""

    rows: Sequence[Row]
    rule: str  # for prototype methods; the others are read by their head
    statistic: str
    evaluations: int = MEANT  # after training started, in the shortest of the runs

    @property
    def statistic_words(self) -> str:
        """Name the statistic; with fewer than 10 evaluations, say how many were averaged."""
        if self.statistic != "last10" or self.evaluations >= MEANT:
            return STATISTIC_NAMES[self.statistic]
        if self.evaluations == 1:
            return "the one evaluation after training"
        return f"mean of the {self.evaluations} evaluations after training"

    @property
    def has_deviations(self) -> bool:
        """Return True if any row has more than one seed."""
        return any(spread and spread.count > 1 for row in self.rows for spread in row.accuracy.values())

    @property
    def most_seeds(self) -> int:
        """Return the number of seeds of the method with the most."""
        return max((len(row.seeds) for row in self.rows), default=0)

    def has_fewer(self, row: Row) -> bool:
        """Return True if a method has fewer seeds than another one."""
        return len(row.seeds) < self.most_seeds

    def marked(self, row: Row) -> str:
        """Return the title of a method, with a dagger if it has fewer seeds."""
        return f"{row.title}†" if self.has_fewer(row) else row.title

    @property
    def seeds_note(self) -> str:
        """Explain the dagger; empty if all methods have as many seeds."""
        return f"† fewer than {self.most_seeds} seeds." if any(map(self.has_fewer, self.rows)) else ""

    def row(self, algorithm: str) -> Row | None:
        """Return the first row of an algorithm, or None."""
        return next((row for row in self.rows if row.algorithm == algorithm), None)

    def headline_rule(self, row: Row) -> str:
        """Return the rule a method is read by: its head if it has no global prototypes."""
        return self.rule if row.accuracy["global"] is not None else "head"

    def headline(self, row: Row) -> float | None:
        """Return the accuracy of a method by its headline rule."""
        found = row.accuracy[self.headline_rule(row)]
        return None if found is None else found.mean

    @property
    def baseline(self) -> tuple[str, float] | None:
        """Return the better rule of Local and its accuracy; None if Local was not run."""
        local = self.row("local")
        return None if local is None else better_rule(local)

    def over_local(self, row: Row, rule: str) -> float | None:
        """Return the accuracy of a row by one rule minus the baseline; None where either is missing."""
        reached, baseline = row.accuracy[rule], self.baseline
        if baseline is None or row.algorithm == "local" or reached is None:
            return None
        return reached.mean - baseline[1]

    def plain(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
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
    """Build one row per label, in order of first appearance, from results in the form of summary.json.

    There was an evaluation `every` so many rounds, and one after the last round.
    """
    labels = list(dict.fromkeys(result["label"] for result in results))
    rows = [_row([r for r in results if r["label"] == label], titles, statistic) for label in labels]
    evaluations = min(((result["rounds"] - 1) // every + 1 for result in results), default=MEANT)
    return Comparison(rows, rule, statistic, evaluations)


def _row(results: Sequence[Mapping[str, Any]], titles: Mapping[str, str], statistic: str) -> Row:
    first = results[0]

    def both_ways(key: str) -> float:
        return statistics.fmean(result[key]["up"] + result[key]["down"] for result in results)

    derived = [result.get("derived", {}) for result in results]  # older records have none
    absences = [result.get("absences", {}) for result in results]
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
        derived={name: [one[name] for one in derived if name in one] for name in _keys(derived)},
        absences={name: statistics.fmean(one.get(name, 0) for one in absences) for name in _keys(absences)},
        left_out=sum(result.get("left_out", 0) for result in results),
        real=any(map(is_real, results)),
        seeds=[result["seed"] for result in results],
    )


def _keys(mappings: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for mapping in mappings for key in mapping))


def on_a_network(result: Mapping[str, Any]) -> bool:
    """Return True for a result of a real federation, which counts the bytes on its sockets."""
    return result.get("socket_bytes_per_round") is not None


def is_real(result: Mapping[str, Any]) -> bool:
    """Return True for a result of a real federation, whose clients choose their own data and networks."""
    return result.get("federation") is not None or on_a_network(result)


def spread(values: Sequence[float | None]) -> Spread | None:
    """Return the spread of the known values, or None if none is known."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))


def better_rule(row: Row) -> tuple[str, float] | None:
    """Return the rule with the highest accuracy and that accuracy; None if no rule applies."""
    known = [(rule, found.mean) for rule, found in row.accuracy.items() if found is not None]
    return max(known, key=lambda pair: pair[1], default=None)


def accuracy_columns(comparison: Comparison) -> list[str]:
    """Return the names of the accuracy columns: three rules and, with Local, points over it by one or two of them."""
    return [*RULES, *(f"Δ {rule}" for rule in _compared_rules(comparison))]


def table_cells(comparison: Comparison, row: Row) -> dict[str, str]:
    """Return the cells of a row by column name, the same for the terminal and the page."""
    gains = {f"Δ {rule}": comparison.over_local(row, rule) for rule in _compared_rules(comparison)}
    cells = {
        **{rule: share_cell(row.accuracy[rule]) for rule in RULES},
        **{name: "–" if gain is None else points(gain) for name, gain in gains.items()},
        "params": number(row.parameters),
        "formula": "–" if row.formula_parameters is None else number(row.formula_parameters),
        "payload": size(row.payload_bytes),
        "wire": size(row.wire_bytes),
        "evaluation": size(row.evaluation_bytes),
        "socket": "–" if row.socket_bytes is None else size(row.socket_bytes),
        "s/round": f"{row.seconds:.3f}",
    }
    if all(one.socket_bytes is None for one in comparison.rows):
        del cells["socket"]
    if all(one.formula_parameters is None for one in comparison.rows):
        del cells["formula"]
    return cells


def share_cell(found: Spread | None) -> str:
    """Return a share in %, with its sample deviation if there are several seeds."""
    if found is None:
        return "–"
    text = f"{100 * found.mean:.1f}"
    return text if found.deviation is None else f"{text} ± {100 * found.deviation:.1f}"


def _compared_rules(comparison: Comparison) -> list[str]:
    if comparison.baseline is None:
        return []
    return ["head"] if comparison.rule == "head" else ["head", comparison.rule]
