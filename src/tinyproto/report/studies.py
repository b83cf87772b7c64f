"""What of several runs can be held against what: runs of one setting share a table, settings of one study a figure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tinyproto.algorithms import ALGORITHMS
from tinyproto.engine.measure import WAYS
from tinyproto.report.compare import Comparison, Row, compare
from tinyproto.report.runs import Run
from tinyproto.report.verdict import verdict
from tinyproto.tracking.checkpoints import differences

NOT_THE_SETTING = ("name", "seeds", "algorithms", "checkpoint", "federation", "keep_models")
INKS = 10
DASHES = ("", " again", " thrice")
"""What a stylesheet knows: colours, and how a colour's second and third line are told from its first."""

NOT_THE_TRAINING = ("parallel_cells", "workers", "device")


@dataclass(frozen=True)
class Point:
    """One evaluation: after how many rounds, for how many bytes, and the accuracy by each rule."""

    rounds: int
    payload_bytes: int
    wire_bytes: int
    evaluation_bytes: int  # of frames sent only to evaluate, which the others do not count
    accuracy: Mapping[str, float | None]


@dataclass(frozen=True)
class Cell:
    """One algorithm with one seed, finished."""

    run: Run
    result: Mapping[str, Any]

    @property
    def rounds(self) -> Sequence[Mapping[str, Any]]:
        """Its records."""
        return self.run.rounds[self.result["label"], self.result["seed"]]

    @cached_property
    def points(self) -> list[Point]:
        """Every evaluation; what is evaluated has just arrived, so its bytes are spent.

        The closing exchange brings what another round of training would, unless clients train on fewer rows than they
        are evaluated by.
        """
        points = []
        payload = wire = evaluation = 0
        spending, apart = ["training", "closing"], ["evaluation"]
        if self._trains_on_held:
            apart.append(spending.pop())
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

    @property
    def _trains_on_held(self) -> bool:
        wire = self.run.entry(self.result["label"]).get("wire", self.run.config["wire"])
        return bool(wire.get("download") == "held")


@dataclass(frozen=True)
class Series:
    """One algorithm with one choice of hyper-parameters, over all its seeds: a row, a curve, a colour."""

    key: str
    name: str  # within its setting
    title: str  # within its study
    colour: int
    cells: Sequence[Cell]

    @property
    def algorithm(self) -> str:
        """Its id."""
        return str(self.cells[0].result["algorithm"])

    @property
    def seeds(self) -> list[int]:
        """Of its cells."""
        return [cell.result["seed"] for cell in self.cells]

    @property
    def ink(self) -> str:
        """The class that colours it in every figure."""
        return f"c{self.colour % INKS}{DASHES[self.colour // INKS % len(DASHES)]}"

    def evaluations(self, rule: str) -> Iterator[tuple[int, Point, float]]:
        """Every evaluation that the rule applies to: the seed, the point, and the accuracy by this rule."""
        for seed, cell in zip(self.seeds, self.cells, strict=True):
            for point in cell.points:
                if (accuracy := point.accuracy[rule]) is not None:
                    yield seed, point, accuracy


@dataclass(frozen=True)
class Setting:
    """Runs that differ in nothing but name, seeds and algorithms."""

    runs: Sequence[Run]
    series: Sequence[Series]
    comparison: Comparison

    @property
    def name(self) -> str:
        """The names of its runs."""
        return _joined(self.runs)

    def verdict(self) -> list[str]:
        """In words; where seeds differ between methods, that too."""
        seeds = {series.name: ", ".join(map(str, sorted(series.seeds))) for series in self.series}
        unequal = len(set(seeds.values())) > 1
        note = f"Not all have the same seeds: {'; '.join(f'{name} {listed}' for name, listed in seeds.items())}."
        return [*verdict(self.comparison), *([note] if unequal else []), *self._contradictions()]

    def _contradictions(self) -> Iterator[str]:
        """A cell that two runs hold, with different outcomes, has to be explained by whoever ran them."""
        for series in self.series:
            for cell in series.cells:
                label, seed = cell.result["label"], cell.result["seed"]
                for run in self.runs:
                    again = run.result(label, seed)
                    same = again is not None and run.entry(label) == cell.run.entry(label)
                    if again is not None and same and again["accuracy"] != cell.result["accuracy"]:
                        yield (
                            f"{series.name}, seed {seed}, is in {cell.run.name} and in {run.name} with different "
                            f"accuracies; shown is {cell.run.name}."
                        )

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        labels = {series.key: series.cells[0].result["label"] for series in self.series}
        plain = self.comparison.plain()
        rows = [{**row, "label": labels[row["label"]]} for row in plain["rows"]]
        return {"name": self.name, "verdict": self.verdict(), **plain, "rows": rows}

    def row(self, series: Series) -> Row:
        """The series' line of the table."""
        return next(row for row in self.comparison.rows if row.label == series.key)

    def headline_rule(self, series: Series) -> str:
        """The rule it is read by."""
        return self.comparison.headline_rule(self.row(series))


@dataclass(frozen=True)
class Study:
    """Settings on the same samples held by the same clients, so that their accuracies speak of the same thing."""

    settings: Sequence[Setting]

    @property
    def runs(self) -> list[Run]:
        """All of them."""
        return [run for setting in self.settings for run in setting.runs]

    @property
    def series(self) -> list[tuple[Setting, Series]]:
        """All curves."""
        return [(setting, series) for setting in self.settings for series in setting.series]

    @property
    def dataset(self) -> str:
        """What it was trained on."""
        return str(self.runs[0].results[0]["dataset"])

    def panels(self) -> list[Study]:
        """The study in parts that a figure has room for, unless a single group of runs is larger; coloured afresh."""
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

    @property
    def name(self) -> str:
        """The names of its settings."""
        return " + ".join(dict.fromkeys(setting.name for setting in self.settings))

    def differences(self) -> dict[str, list[Any]]:
        """The config keys in which its settings differ, with the value in each."""
        return differences([_setting(setting.runs[0]) for setting in self.settings])


def _panel(part: Sequence[tuple[Setting, Series]]) -> Study:
    """A study of some series, each called after its group where there are several."""
    groups = {series.cells[0].run.group for _, series in part}
    found: dict[int, tuple[Setting, list[Series]]] = {}
    for colour, (setting, series) in enumerate(part):
        title = series.name if len(groups) == 1 else f"{series.name}, {series.cells[0].run.group}"
        _, own = found.setdefault(id(setting), (setting, []))
        own.append(replace(series, title=title, colour=colour))
    return Study([replace(setting, runs=_runs(own), series=own) for setting, own in found.values()])


def _runs(series: Sequence[Series]) -> list[Run]:
    return list({id(cell.run): cell.run for one in series for cell in one.cells}.values())


def arrange(runs: Sequence[Run]) -> list[Study]:
    """Studies in the order in which their first run was named."""
    return [Study(list(_settings(list(same)))) for same in _grouped(runs, _federation)]


def _settings(runs: Sequence[Run]) -> Iterator[Setting]:
    groups = list(_grouped(runs, _setting))
    colour = 0
    for group in groups:
        cells = _cells(group)
        names = _names(cells)
        suffix = f", {_joined(group)}" if len(groups) > 1 else ""
        series = [
            Series(str(colour + index), names[key], names[key] + suffix, colour + index, found)
            for index, (key, found) in enumerate(cells.items())
        ]
        colour += len(series)
        yield Setting(group, series, _comparison(group[0], series))


def _comparison(run: Run, series: Sequence[Series]) -> Comparison:
    results = [{**cell.result, "label": one.key} for one in series for cell in one.cells]
    evaluate = run.config["evaluate"]
    return compare(
        results, {one.key: one.name for one in series}, evaluate["rule"], evaluate["statistic"], evaluate["every"]
    )


def _cells(runs: Sequence[Run]) -> dict[tuple[str, str], list[Cell]]:
    """By label and hyper-parameters; a seed that stands in two runs counts once."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for run in runs:
        for result in run.results:
            key = (result["label"], json.dumps(run.entry(result["label"]), sort_keys=True))
            cells = found.setdefault(key, [])
            if result["seed"] not in [cell.result["seed"] for cell in cells]:
                cells.append(Cell(run, result))
    return found


def _names(cells: Mapping[tuple[str, str], Sequence[Cell]]) -> dict[tuple[str, str], str]:
    """The method's name, with the run's where that alone tells two apart."""
    names = {}
    for key, (first, *_) in cells.items():
        label, algorithm = first.result["label"], first.result["algorithm"]
        known = label == algorithm and algorithm in ALGORITHMS
        name = ALGORITHMS[algorithm].title if known else label
        repeated = sum(other == label for other, _ in cells) > 1
        names[key] = f"{name}, {first.run.name}" if repeated else name
    return names


def _joined(runs: Sequence[Run]) -> str:
    return " + ".join(dict.fromkeys(run.group for run in runs))


def _federation(run: Run) -> Any:
    """What has to be equal for accuracies to be comparable."""
    return {"data": run.results[0]["dataset"], "partition": run.config["partition"]}


def _setting(run: Run) -> dict[str, Any]:
    """The config less what may differ between runs that share a table."""
    kept = {key: value for key, value in run.config.items() if key not in NOT_THE_SETTING}
    kept["train"] = {key: value for key, value in run.config["train"].items() if key not in NOT_THE_TRAINING}
    return kept


def _grouped(runs: Sequence[Run], key: Any) -> Iterator[list[Run]]:
    """Runs with equal keys together, in order of first appearance."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(key(run), sort_keys=True), []).append(run)
    yield from groups.values()
