"""The cells of the paper that are among the runs, and what each came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from paper.experiments import experiments
from paper.matching import PaperCell, paper_cells, record_key
from paper.printed import DATASET_NAMES, SETTINGS, Address
from tinyproto.algorithms import ALGORITHMS
from tinyproto.engine.measure import RULES
from tinyproto.report.compare import Comparison, Row, Spread, compare, spread
from tinyproto.report.runs import Run
from tinyproto.report.studies import Cell
from tinyproto.tracking.summary import over_rounds

REFERENCE = "reference"
"""The preset that the paper's tables are repeated with."""

TABLES = {"table1": " as in Table 1", "table3": " as in Table 3", "appendix": ", as in the ablation"}
"""How a cell of the paper's own tables is told, by its target."""


@dataclass(frozen=True)
class Outcome:
    """One cell of the paper over its seeds, all played for as many rounds."""

    paper: PaperCell
    cells: Sequence[Cell]

    @cached_property
    def comparison(self) -> Comparison:
        """Its one row, read by the rule and the statistic of its preset."""
        evaluate = self.paper.config["evaluate"]
        results = [{**cell.result, "label": self.paper.label} for cell in self.cells]
        return compare(results, {}, evaluate["rule"], evaluate["statistic"])

    @property
    def row(self) -> Row:
        """Accuracy by every rule, parameters and bytes."""
        return self.comparison.rows[0]

    @property
    def rule(self) -> str:
        """The one it is read by."""
        return self.comparison.headline_rule(self.row)

    @property
    def accuracy(self) -> Spread | None:
        """By that rule; None where no client has test samples."""
        return self.row.accuracy[self.rule]

    @property
    def rounds(self) -> int:
        """Of every seed."""
        return int(self.cells[0].result["rounds"])

    @property
    def shortened(self) -> bool:
        """Whether it was not played for as many rounds as the experiment asks for."""
        return self.rounds != self.paper.rounds

    @property
    def seeds(self) -> list[int]:
        """In order."""
        return [cell.result["seed"] for cell in self.cells]

    def seeds_shared(self, other: Outcome) -> list[int]:
        """Those that both were played with."""
        return [seed for seed in self.seeds if seed in other.seeds]

    def best_after(self, rounds: int, seeds: Sequence[int] | None = None) -> dict[str, Spread | None]:
        """By each rule the best evaluation of the first so many rounds; over some seeds only, where they are named."""
        return self.read_after(rounds, seeds, "best")

    def read_after(self, rounds: int, seeds: Sequence[int] | None, statistic: str) -> dict[str, Spread | None]:
        """The same by any statistic."""
        return {rule: spread(self.by_seed(rule, rounds, seeds, statistic)) for rule in RULES}

    def by_seed(self, rule: str, rounds: int, seeds: Sequence[int] | None, statistic: str) -> list[float | None]:
        """Seed by seed, as if the runs had ended after so many rounds."""
        cells = [cell for cell in self.cells if seeds is None or cell.result["seed"] in seeds]
        curves = [[(p.rounds, p.accuracy[rule]) for p in cell.points if p.rounds <= rounds] for cell in cells]
        return [over_rounds(curve)[statistic] for curve in curves]


class Records:
    """Finished cells by what decides their numbers."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._cells: dict[str, list[Cell]] = {}
        for run in runs:
            entries = {entry["label"]: entry for entry in run.config["algorithms"]}
            for result in run.results:
                key = record_key(run.config, entries[result["label"]], result["dataset"])
                self._cells.setdefault(key, []).append(Cell(run, result))

    def find(self, address: Address, preset: str = REFERENCE) -> Outcome | None:
        """What a cell of the paper came to; None where it was not run."""
        paper = paper_cell(address, preset)
        found = self._by_rounds(paper)
        return found[max(found, key=lambda count: _fit(count, paper.rounds))] if found else None

    def find_all(self, address: Address) -> list[Outcome]:
        """The same, and after it what runs of more rounds came to."""
        first = self.find(address)
        if first is None:
            return []
        found = self._by_rounds(first.paper)
        return [first, *(found[rounds] for rounds in sorted(found) if rounds > first.rounds)]

    def _by_rounds(self, paper: PaperCell) -> dict[int, Outcome]:
        """A cell's runs, apart by how long they are; of one seed one counts."""
        found: dict[int, dict[int, Cell]] = {}
        for cell in self._cells.get(paper.key, []):
            found.setdefault(cell.result["rounds"], {}).setdefault(cell.result["seed"], cell)
        return {rounds: Outcome(paper, [cells[seed] for seed in sorted(cells)]) for rounds, cells in found.items()}

    @property
    def any_of_the_paper(self) -> bool:
        """Whether there is a cell of the paper at all."""
        known = {cell.key for preset in (None, "sound", "paper") for cell in _resolved(preset).values()}
        return bool(known & self._cells.keys())


def paper_cell(address: Address, preset: str = REFERENCE) -> PaperCell:
    """The definition of a cell; `reference` leaves every experiment the preset it has."""
    return _resolved(None if preset == REFERENCE else preset)[address]


def cells_of(stem: str) -> list[PaperCell]:
    """The cells of one experiment in order, with the preset it has."""
    return [cell for address, cell in _resolved(None).items() if address.stem == stem]


def method_name(entry: Mapping[str, Any], *, ablation: bool = False) -> str:
    """As the paper's tables name it, with CPS dimensions; in an ablation also whether prototypes are scaled."""
    title = ALGORITHMS[entry["name"]].title
    if "cps_dim" not in entry:
        return title
    width = "no CPS" if entry["cps_dim"] is None else entry["cps_dim"]
    scaled = ", scaled" if entry["scaling"] == "count" else ", not scaled"
    return f"{title} ({width}){scaled if ablation else ''}"


def place_name(cell: PaperCell) -> str:
    """Its dataset as the paper writes it, with the setting of Table 3 that it is played in, if it is one of them."""
    own = cell.config["partition"]
    settings = [words for part, words in SETTINGS.items() if cells_of(f"table3_{part}")[0].config["partition"] == own]
    return ", ".join([DATASET_NAMES[cell.config["data"]["name"]], *settings])


@cache
def _resolved(preset: str | None) -> dict[Address, PaperCell]:
    return {
        cell.address: cell for config in experiments() for cell in paper_cells(config, preset)
    }  # fmt: skip


def _fit(rounds: int, wanted: int) -> tuple[bool, int]:
    """As many as wanted are best, then nearly as many, then more."""
    return rounds <= wanted, rounds if rounds <= wanted else -rounds
