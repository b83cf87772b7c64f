"""The cells of the paper found among runs: what each reached over its seeds, and how two of them compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import combinations, pairwise
from typing import Any

from paper.experiments import SAME_AS_PUBLISHED, SEEDS, experiments
from paper.matching import PaperCell, paper_cells, record_key
from paper.page.frames import marked, oldest_version, wire_bytes
from paper.printed import DATASET_NAMES, SETTINGS, Address
from tinyproto.algorithms import ALGORITHMS
from tinyproto.config.presets import PRESETS
from tinyproto.engine.measure import RULES
from tinyproto.report.compare import Comparison, Row, Spread, compare, spread
from tinyproto.report.runs import Run
from tinyproto.report.studies import Cell
from tinyproto.tracking.summary import over_rounds

REFERENCE = "reference"
"""The preset of the paper's tables."""

PUBLISHED = "published"
"""The preset of the released code."""

LOST = 0.25
"""The share of its accuracy that a head loses at once in a run that collapsed."""

TABLES = {"table1": " as in Table 1", "table3": " as in Table 3", "appendix": ", as in the ablation"}
"""Words for a cell of the paper's tables, by target."""


@dataclass(frozen=True)
class Outcome:
    """The results of one cell of the paper over the planned seeds it has, all after the same number of rounds."""

    cell: PaperCell
    found: Sequence[Cell]  # one per seed

    @cached_property
    def comparison(self) -> Comparison:
        """Return a comparison of this cell alone, by the rule and statistic of its preset."""
        evaluate = self.cell.config["evaluate"]
        results = [{**one.result, "label": self.cell.label} for one in self.found]
        return compare(results, {}, evaluate["rule"], evaluate["statistic"])

    @property
    def row(self) -> Row:
        """Return the comparison's row, which has parameters and bytes."""
        return self.comparison.rows[0]

    @property
    def accuracies(self) -> Mapping[str, Spread | None]:
        """Return the accuracy by every rule; None where a rule does not apply."""
        return self.row.accuracy

    @property
    def rule(self) -> str:
        """Return the rule that its number is read by."""
        return self.comparison.headline_rule(self.row)

    @property
    def accuracy(self) -> Spread | None:
        """Return the accuracy by that rule; None if no client has test samples."""
        return self.accuracies[self.rule]

    @property
    def rounds(self) -> int:
        """Return the number of rounds of every seed."""
        return int(self.found[0].result["rounds"])

    @property
    def shortened(self) -> bool:
        """Return True if it did not run for as many rounds as its config asks for."""
        return self.rounds != self.cell.rounds

    @property
    def seeds(self) -> list[int]:
        """Return its seeds in order."""
        return [one.result["seed"] for one in self.found]

    @property
    def collapsed(self) -> bool:
        """Return True if in one of its runs the head lost more than a quarter from one evaluation to the next.

        The first evaluation is of untrained networks and does not count.
        """
        heads = [[point.accuracy["head"] or 0.0 for point in one.points if point.rounds] for one in self.found]
        return any(after < (1 - LOST) * before - 1e-9 for curve in heads for before, after in pairwise(curve))

    @property
    def frame_version(self) -> int:
        """Return the version of frames that its bytes on the wire are told in: the oldest of its runs."""
        return oldest_version(self.found)

    def wire_bytes(self, version: int | None = None) -> float:
        """Return bytes on the wire of a training round, up and down, in frames of a version, by default its own."""
        return wire_bytes(self.found, self.frame_version if version is None else version)

    @property
    def wire_words(self) -> str:
        """Return these bytes, marked if their frames are of an older version."""
        return marked(self.wire_bytes(), self.frame_version)

    def seeds_shared(self, other: Outcome) -> list[int]:
        """Return the seeds that both have."""
        return [seed for seed in self.seeds if seed in other.seeds]

    def best_after(self, rounds: int, seeds: Sequence[int] | None = None) -> dict[str, Spread | None]:
        """Return the best evaluation of the first rounds by each rule, over some seeds or over all."""
        return self.read_after(rounds, seeds, "best")

    def read_after(self, rounds: int, seeds: Sequence[int] | None, statistic: str) -> dict[str, Spread | None]:
        """Return a statistic of the first rounds by each rule, over some seeds or over all."""
        return {rule: spread(self.by_seed(rule, rounds, seeds, statistic)) for rule in RULES}

    def by_seed(self, rule: str, rounds: int, seeds: Sequence[int] | None, statistic: str) -> list[float | None]:
        """Return a statistic seed by seed, as if the runs had ended after these rounds."""
        chosen = [one for one in self.found if seeds is None or one.result["seed"] in seeds]
        curves = [[(p.rounds, p.accuracy[rule]) for p in one.points if p.rounds <= rounds] for one in chosen]
        return [over_rounds(curve)[statistic] for curve in curves]

    def seeds_apart(self, rule: str, rounds: int, statistic: str) -> float | None:
        """Return the range of a statistic over all seeds; None for one seed."""
        known = [value for value in self.by_seed(rule, rounds, None, statistic) if value is not None]
        return max(known) - min(known) if len(known) > 1 else None


class Records:
    """Finished cells by key."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._cells: dict[str, list[Cell]] = {}
        for run in runs:
            for result in run.results:
                self._cells.setdefault(_key(run, result), []).append(Cell(run, result))

    def find(self, address: Address, preset: str = REFERENCE) -> Outcome | None:
        """Return the results of a cell of the paper; None if it was not run.

        Of a method that `published` does not change, the records of `reference` count there as well.
        """
        cell = paper_cell(address, preset)
        found = self._by_rounds(cell)
        if not found and preset == PUBLISHED and cell.entry["name"] in SAME_AS_PUBLISHED:
            return self.find(address)
        return found[max(found, key=lambda count: _fit(count, cell.rounds))] if found else None

    def find_all(self, address: Address) -> list[Outcome]:
        """Return the same results, followed by those of runs with more rounds."""
        first = self.find(address)
        if first is None:
            return []
        found = self._by_rounds(first.cell)
        return [first, *(found[rounds] for rounds in sorted(found) if rounds > first.rounds)]

    def unplanned(self, address: Address, preset: str = REFERENCE) -> list[Outcome]:
        """Return the runs of a cell with other seeds than the planned ones, each alone: no mean has them."""
        cell = paper_cell(address, preset)
        runs = [one for one in self._cells.get(cell.key, []) if one.result["seed"] not in SEEDS]
        runs.sort(key=lambda one: (one.result["seed"], one.result["rounds"]))
        return [Outcome(cell, [one]) for one in runs]

    def again(self) -> list[tuple[str, tuple[Cell, Cell]]]:
        """Return the key and two runs of each cell that was run twice with the same seed, the shorter first.

        If some of its runs are of one length, only these are pairs.
        """
        found: dict[tuple[str, int], list[Cell]] = {}
        for key, runs in self._cells.items():
            for one in runs:
                found.setdefault((key, one.result["seed"]), []).append(one)
        ordered = {same: sorted(runs, key=lambda one: int(one.result["rounds"])) for same, runs in found.items()}
        pairs = {same: list(combinations(runs, 2)) for same, runs in ordered.items()}
        equal = {same: [pair for pair in found if _as_long(*pair)] for same, found in pairs.items()}
        return [(key, pair) for (key, seed), found in pairs.items() for pair in equal[key, seed] or found]

    def _by_rounds(self, cell: PaperCell) -> dict[int, Outcome]:
        """Return a cell's runs with planned seeds by number of rounds; one run per seed counts."""
        found: dict[int, dict[int, Cell]] = {}
        for one in self._cells.get(cell.key, []):
            if one.result["seed"] in SEEDS:
                found.setdefault(one.result["rounds"], {}).setdefault(one.result["seed"], one)
        return {rounds: Outcome(cell, [seeds[seed] for seed in sorted(seeds)]) for rounds, seeds in found.items()}

    @property
    def any_of_the_paper(self) -> bool:
        """Return True if a run is a cell of the paper."""
        return bool(_known_keys() & self._cells.keys())


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A variant and the cell it is compared with, after the same number of rounds and over the same seeds."""

    variant: Outcome | None  # None: not run
    reference: Outcome | None
    statistic: str = "best"
    most: int | None = None  # read neither after more rounds than these
    among: Sequence[int] | None = None  # read only these seeds

    @property
    def rounds(self) -> int | None:
        """Return the number of rounds after which both are read."""
        if self.variant is None or self.reference is None:
            return None
        return self._at_most(min(self.variant.rounds, self.reference.rounds))

    @property
    def read_rounds(self) -> int | None:
        """Return the number of rounds after which the variant is read: its own if there is no reference."""
        return self.rounds or (None if self.variant is None else self._at_most(self.variant.rounds))

    @property
    def seeds(self) -> list[int]:
        """Return the seeds that both have."""
        if self.variant is None or self.reference is None:
            return []
        shared = self.variant.seeds_shared(self.reference)
        return shared if self.among is None else [seed for seed in shared if seed in self.among]

    def accuracies(self) -> Mapping[str, Spread | None]:
        """Return the variant's accuracy by every rule: over common seeds and rounds, or its own without a reference."""
        if self.variant is None or self.read_rounds is None:
            return dict.fromkeys(RULES)
        return self.variant.read_after(self.read_rounds, self.seeds or None, self.statistic)

    def compared(self) -> Mapping[str, Spread | None]:
        """Return the reference's accuracy by every rule, after as many rounds."""
        if self.reference is None or self.rounds is None or not self.seeds:
            return dict.fromkeys(RULES)
        return self.reference.read_after(self.rounds, self.seeds, self.statistic)

    def difference(self, rule: str) -> float | None:
        """Return variant minus reference, as a fraction."""
        first, second = self.accuracies()[rule], self.compared()[rule]
        return None if first is None or second is None else round(first.mean - second.mean, 9)

    def _at_most(self, rounds: int) -> int:
        return rounds if self.most is None else min(rounds, self.most)


def means(accuracy: Mapping[str, Spread | None]) -> dict[str, float | None]:
    """Return means by rule, as plain values for JSON."""
    return {rule: None if found is None else found.mean for rule, found in accuracy.items()}


def paper_cell(address: Address, preset: str = REFERENCE) -> PaperCell:
    """Return the definition of a cell; `reference` leaves every config the preset it has."""
    return _resolved(None if preset == REFERENCE else preset)[address]


def cells_of(stem: str) -> list[PaperCell]:
    """Return the cells of one config in order, with the preset it has."""
    return [cell for address, cell in _resolved(None).items() if address.stem == stem]


def method_name(entry: Mapping[str, Any], *, ablation: bool = False) -> str:
    """Return the name in the paper's tables, with CPS dimensions; for an ablation also with scaling."""
    title = ALGORITHMS[entry["name"]].title
    if "cps_dim" not in entry:
        return title
    width = "no CPS" if entry["cps_dim"] is None else entry["cps_dim"]
    scaled = ", scaled" if entry["scaling"] == "count" else ", not scaled"
    return f"{title} ({width}){scaled if ablation else ''}"


def place_name(cell: PaperCell) -> str:
    """Return the dataset as the paper writes it, with the setting of Table 3 if the cell has one."""
    partition = cell.config["partition"]
    settings = [
        words for part, words in SETTINGS.items() if cells_of(f"table3_{part}")[0].config["partition"] == partition
    ]
    return ", ".join([DATASET_NAMES[cell.config["data"]["name"]], *settings])


def planned(runs: Sequence[Run]) -> list[Run]:
    """Return runs without the cells of the paper whose seed was not planned."""
    kept = [replace(run, results=[one for one in run.results if not _is_beside(run, one)]) for run in runs]
    return [run for run in kept if run.results]


def _is_beside(run: Run, result: Mapping[str, Any]) -> bool:
    return result["seed"] not in SEEDS and _key(run, result) in _known_keys()


def _key(run: Run, result: Mapping[str, Any]) -> str:
    return record_key(run.config, run.entry(result["label"]), result["dataset"])


@cache
def _known_keys() -> frozenset[str]:
    return frozenset(cell.key for preset in (None, *PRESETS) for cell in _resolved(preset).values())


@cache
def _resolved(preset: str | None) -> dict[Address, PaperCell]:
    return {cell.address: cell for config in experiments() for cell in paper_cells(config, preset)}


def _as_long(one: Cell, other: Cell) -> bool:
    return bool(one.result["rounds"] == other.result["rounds"])


def _fit(rounds: int, wanted: int) -> tuple[bool, int]:
    """Rank numbers of rounds: the wanted one is best, then the nearest below it, then the nearest above."""
    return rounds <= wanted, rounds if rounds <= wanted else -rounds
