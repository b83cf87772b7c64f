"""Which runs can be compared: runs of one setting share a table, settings of one study share a figure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tinyproto.algorithms import ALGORITHMS
from tinyproto.config.load import differences
from tinyproto.config.schema import neutral_keys
from tinyproto.engine.measure import WAYS
from tinyproto.report.compare import Comparison, Row, compare
from tinyproto.report.runs import Run
from tinyproto.report.svg import SHAPES, marker
from tinyproto.report.verdict import verdict

INKS = 10
DASHES = ("", " again", " thrice")
"""Colours of figure.css, and its classes for the second and third line of a colour."""


@dataclass(frozen=True)
class Point:
    """One evaluation: the rounds trained, the bytes sent so far, and the accuracy by each rule."""

    rounds: int
    payload_bytes: int
    wire_bytes: int
    evaluation_bytes: int  # frames sent only to evaluate, not in the other two
    accuracy: Mapping[str, float | None]


@dataclass(frozen=True)
class Cell:
    """A completed cell: one algorithm with one seed."""

    run: Run
    result: Mapping[str, Any]

    @property
    def rounds(self) -> Sequence[Mapping[str, Any]]:
        """Return its records."""
        return self.run.rounds[self.result["label"], self.result["seed"]]

    @cached_property
    def points(self) -> list[Point]:
        """Return its evaluations; a download counts before the evaluation that uses it.

        The closing exchange counts as training, unless clients train on fewer rows than they are evaluated with.
        """
        wire_settings = self.run.entry(self.result["label"]).get("wire", self.run.config["wire"])
        held_only = wire_settings.get("download") == "held"
        spending = ["training"] if held_only else ["training", "closing"]
        apart = ["evaluation", "closing"] if held_only else ["evaluation"]
        points = []
        payload = wire = evaluation = 0
        for record in self.rounds:
            traffic = record["traffic"]
            evaluation += sum(traffic[kind][way]["wire"] for kind in apart if kind in traffic for way in WAYS)
            counted: Mapping[str, Any] = next((traffic[kind] for kind in spending if traffic.get(kind)), {})
            spent = {way: counted.get(way, {"payload": 0, "wire": 0}) for way in WAYS}
            payload, wire = payload + spent["down"]["payload"], wire + spent["down"]["wire"]
            if any(value is not None for value in record["accuracy"].values()):
                points.append(Point(record["round"] - 1, payload, wire, evaluation, record["accuracy"]))
            payload, wire = payload + spent["up"]["payload"], wire + spent["up"]["wire"]
        return points


@dataclass(frozen=True)
class Series:
    """One algorithm with one choice of hyper-parameters over all its seeds: a row, a curve, a colour."""

    name: str  # within its setting, where no other has it
    title: str  # within its study
    colour: int
    cells: Sequence[Cell]

    @property
    def algorithm(self) -> str:
        """Return the name of its algorithm."""
        return str(self.cells[0].result["algorithm"])

    @property
    def seeds(self) -> list[int]:
        """Return the seeds of its cells."""
        return [cell.result["seed"] for cell in self.cells]

    @property
    def ink(self) -> str:
        """Return the CSS class that colours it in every figure."""
        return f"c{self.colour % INKS}{DASHES[self.colour // INKS % len(DASHES)]}"

    def marker(self, x: float, y: float, tip: str) -> str:
        """Return its marker: one of five shapes, filled or hollow."""
        kind = "hollow" if self.colour // len(SHAPES) % 2 else "dot"
        return marker(x, y, f"{kind} {self.ink}", tip, shape=self.colour % len(SHAPES))

    def evaluations(self, rule: str) -> Iterator[tuple[int, Point, float]]:
        """Yield seed, point and accuracy of every evaluation that the rule applies to."""
        for seed, cell in zip(self.seeds, self.cells, strict=True):
            for point in cell.points:
                if (accuracy := point.accuracy[rule]) is not None:
                    yield seed, point, accuracy


@dataclass(frozen=True)
class Setting:
    """Runs that differ only in name, seeds, algorithms and result-neutral keys."""

    runs: Sequence[Run]
    series: Sequence[Series]
    comparison: Comparison

    @property
    def name(self) -> str:
        """Return the names of its runs."""
        return _joined(self.runs)

    def verdict(self) -> list[str]:
        """Return the verdict, with a sentence if methods have different seeds."""
        seeds = {series.name: ", ".join(map(str, sorted(series.seeds))) for series in self.series}
        sentences = verdict(self.comparison)
        if len(set(seeds.values())) > 1:
            listed = "; ".join(f"{name} {numbers}" for name, numbers in seeds.items())
            sentences.append(f"Not all methods have the same seeds: {listed}.")
        return sentences

    def plain(self) -> dict[str, Any]:
        """Return the setting as JSON values."""
        labels = {series.name: series.cells[0].result["label"] for series in self.series}
        plain = self.comparison.plain()
        rows = [{**row, "label": labels[row["label"]]} for row in plain["rows"]]
        return {"name": self.name, "verdict": self.verdict(), **plain, "rows": rows}

    def row(self, series: Series) -> Row:
        """Return the row of a series."""
        return next(row for row in self.comparison.rows if row.label == series.name)

    def headline_rule(self, series: Series) -> str:
        """Return the rule that a series is read by."""
        return self.comparison.headline_rule(self.row(series))


@dataclass(frozen=True)
class Study:
    """Settings on the same samples held by the same clients, whose accuracies can be compared."""

    settings: Sequence[Setting]

    @property
    def runs(self) -> list[Run]:
        """Return the runs of all settings."""
        return [run for setting in self.settings for run in setting.runs]

    @property
    def series(self) -> list[tuple[Setting, Series]]:
        """Return all series with their settings."""
        return [(setting, series) for setting in self.settings for series in setting.series]

    @property
    def dataset(self) -> str:
        """Return the name of the dataset."""
        return str(self.runs[0].results[0]["dataset"])

    @property
    def name(self) -> str:
        """Return the names of its settings."""
        return " + ".join(dict.fromkeys(setting.name for setting in self.settings))

    def differences(self) -> dict[str, list[Any]]:
        """Return the config keys in which its settings differ, with the value in each."""
        return differences([_setting(setting.runs[0]) for setting in self.settings])

    def panels(self) -> list[Study]:
        """Split the study into parts of at most `INKS` series with colours of their own; a group is never split."""
        if len(self.series) <= INKS:
            return [self]
        groups: dict[tuple[int, str], list[tuple[Setting, Series]]] = {}
        for setting, series in self.series:
            groups.setdefault((id(setting), series.cells[0].run.group), []).append((setting, series))
        packed: list[list[tuple[Setting, Series]]] = []
        for group in groups.values():
            if packed and len(packed[-1]) + len(group) <= INKS:
                packed[-1] += group
            else:
                packed.append(list(group))
        return [_panel(part) for part in packed]


def _panel(part: Sequence[tuple[Setting, Series]]) -> Study:
    """Return a study of some series, each with the name of its group if there are several groups."""
    groups = {series.cells[0].run.group for _, series in part}
    found: dict[int, tuple[Setting, list[Series]]] = {}
    for colour, (setting, series) in enumerate(part):
        title = series.name if len(groups) == 1 else f"{series.name}, {series.cells[0].run.group}"
        found.setdefault(id(setting), (setting, []))[1].append(replace(series, title=title, colour=colour))
    return Study([replace(setting, runs=_runs(chosen), series=chosen) for setting, chosen in found.values()])


def _runs(series: Sequence[Series]) -> list[Run]:
    return list({id(cell.run): cell.run for one in series for cell in one.cells}.values())


def arrange(runs: Sequence[Run]) -> list[Study]:
    """Group runs into studies, in the order of their first runs."""
    return [Study(list(_settings(same))) for same in grouped(runs, _federation)]


def _settings(runs: Sequence[Run]) -> Iterator[Setting]:
    groups = grouped(runs, _setting)
    colour = 0
    for group in groups:
        cells = _cells(group)
        names = _names(cells)
        suffix = f", {_joined(group)}" if len(groups) > 1 else ""
        series = [
            Series(names[key], names[key] + suffix, colour + index, found)
            for index, (key, found) in enumerate(cells.items())
        ]
        colour += len(series)
        results = [{**cell.result, "label": one.name} for one in series for cell in one.cells]
        evaluate = group[0].config["evaluate"]
        yield Setting(group, series, compare(results, {}, evaluate["rule"], evaluate["statistic"], evaluate["every"]))


def _cells(runs: Sequence[Run]) -> dict[tuple[str, str], list[Cell]]:
    """Group cells by label and hyper-parameters; a seed that two runs hold counts once."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for run in runs:
        for result in run.results:
            key = (result["label"], json.dumps(run.entry(result["label"]), sort_keys=True))
            cells = found.setdefault(key, [])
            if result["seed"] not in [cell.result["seed"] for cell in cells]:
                cells.append(Cell(run, result))
    return found


def _names(cells: Mapping[tuple[str, str], Sequence[Cell]]) -> dict[tuple[str, str], str]:
    """Name each series by its method, with the run's name if two series share a label."""
    names = {}
    for key, (first, *_) in cells.items():
        label, algorithm = first.result["label"], first.result["algorithm"]
        name = ALGORITHMS[algorithm].title if label == algorithm and algorithm in ALGORITHMS else label
        shared = sum(other == label for other, _ in cells) > 1
        names[key] = f"{name}, {first.run.name}" if shared else name
    taken = Counter(names.values())
    return {key: f"{name} ({key[0]})" if taken[name] > 1 else name for key, name in names.items()}


def _joined(runs: Sequence[Run]) -> str:
    return " + ".join(dict.fromkeys(run.group for run in runs))


def _federation(run: Run) -> Any:
    """Return the part of a config that must be equal for accuracies to be comparable."""
    first = run.results[0]
    known = first.get("federation") or {}
    if known.get("own_data"):  # equal as far as the coordinator can tell
        return {**{key: value for key, value in known.items() if key != "joined"}, "clients": first["num_clients"]}
    return {"data": first["dataset"], "partition": run.config["partition"]}


def _setting(run: Run) -> dict[str, Any]:
    """Return the part of a config that must be equal for runs to share a table."""
    unwanted = {"seeds", "algorithms", "federation", *neutral_keys()}
    return {
        key: {name: one for name, one in value.items() if f"{key}.{name}" not in unwanted}
        if isinstance(value, Mapping)
        else value
        for key, value in run.config.items()
        if key not in unwanted
    }


def grouped(runs: Sequence[Run], key: Callable[[Run], Any]) -> list[list[Run]]:
    """Return runs with equal keys together, in order of first appearance."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(key(run), sort_keys=True), []).append(run)
    return list(groups.values())
