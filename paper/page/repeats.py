"""Cells that were run twice with the same seed: how far two runs on a GPU lie apart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from paper.experiments import experiments
from paper.matching import PaperCell, paper_cells
from paper.page.auto_scale import same_scale
from paper.page.outcomes import TABLES, Outcome, Records, cells_of, method_name, place_name
from paper.page.tables import signed, spread_cell
from tinyproto.engine.measure import RULES
from tinyproto.report.studies import Cell

AGAIN_TITLE = "The same seed twice"
AGAIN_HEADER = ("cell", "rounds", "seed", "commits", "head", "global", "local")
AGAIN_WORDS = (
    "Cells with two runs of the same seed, each by its best round of as many rounds. In parentheses: the second minus "
    "the first, in points. With the preset reference, TinyProto-FP's derived μ is the published one, so its two cells "
    "are such a pair. So are two cells that differ in the classes that a client downloads, since it trains with those "
    "it holds."
)


@dataclass(frozen=True)
class Again:
    """Two runs of one cell with one seed."""

    name: str
    runs: tuple[Outcome, Outcome]

    @property
    def rounds(self) -> int:
        """Return the number of rounds that both have."""
        return min(one.rounds for one in self.runs)

    @property
    def commits(self) -> tuple[str, str]:
        """Return the commits that they were run at; empty if unknown."""
        first, second = (str(one.found[0].run.environment.get("commit") or "") for one in self.runs)
        return first, second

    @property
    def of_one_commit(self) -> bool:
        """Return True if both were run at the same known commit."""
        first, second = self.commits
        return bool(first) and first == second

    def differences(self) -> dict[str, float]:
        """Return the second's best accuracy minus the first's, by each rule that applies."""
        first, second = (one.best_after(self.rounds) for one in self.runs)
        pairs = {rule: (first[rule], second[rule]) for rule in RULES}
        return {rule: round(b.mean - a.mean, 9) for rule, (a, b) in pairs.items() if a is not None and b is not None}

    def words(self) -> list[str]:
        """Return the cells of its row, under `AGAIN_HEADER`."""
        second, changed = self.runs[1].best_after(self.rounds), self.differences()
        cells = [
            spread_cell(second[rule]) + (f" ({signed(changed[rule])})" if rule in changed else "") for rule in RULES
        ]
        told = "one" if self.of_one_commit else " and ".join(commit[:7] or "unknown" for commit in self.commits)
        return [self.name, str(self.rounds), str(self.runs[0].seeds[0]), told, *cells]

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "cell": self.name, "rounds": self.rounds, "seed": self.runs[0].seeds[0], "commits": list(self.commits),
            "difference": self.differences(),
        }  # fmt: skip


def repeats(records: Records) -> list[Again]:
    """Return all pairs among the cells of the paper, and those of two cells with the same training."""
    known: dict[str, PaperCell] = {}
    for config in experiments():
        for cell in paper_cells(config):
            known.setdefault(cell.key, cell)
    found = [_again(known[key], pair) for key, pair in records.again() if key in known]
    for one, cell in [*same_scale(), *same_training()]:
        constant, derived = records.find(one.address), records.find(cell.address)
        if constant is not None and derived is not None:
            pairs = product(constant.found, derived.found)
            found += [_again(cell, (a, b)) for a, b in pairs if a.result["seed"] == b.result["seed"]]
    return found


def told(found: Sequence[Again]) -> str:
    """Return a sentence on runs of one commit: what a repeat gives, or that none is recorded."""
    same = [again for again in found if again.of_one_commit]
    if not same:
        return "No pair was run at one commit, so what the code changed is not separated from noise."
    apart = max(abs(change) for again in same for change in again.differences().values())
    cells = len({(again.name, again.runs[0].seeds[0]) for again in same})
    count = f"{cells} cells were" if cells > 1 else "One cell was"
    return f"{count} run again at one commit; their best rounds differ by at most {100 * apart:.2f} points."


def same_training() -> list[tuple[PaperCell, PaperCell]]:
    """Return the cells of the tables, each with a cell that downloads other classes and differs in nothing else."""
    tables = {
        _trained(cell): cell for config in experiments() if config.target in TABLES for cell in cells_of(config.stem)
    }
    study = [cell for config in experiments() if config.target == "bytes" for cell in cells_of(config.stem)]
    return [(tables[_trained(cell)], cell) for cell in study if _trained(cell) in tables]


def _trained(cell: PaperCell) -> str:
    """Return the cell's key without what it downloads."""
    key = json.loads(cell.key)
    del key["wire"]["download"]
    return json.dumps(key, sort_keys=True)


def _again(cell: PaperCell, pair: tuple[Cell, Cell]) -> Again:
    first, second = (Outcome(cell, [one]) for one in pair)
    label = "" if cell.label == cell.entry["name"] else f", {cell.label}"
    return Again(f"{place_name(cell)}, {method_name(cell.entry)}{label}", (first, second))
