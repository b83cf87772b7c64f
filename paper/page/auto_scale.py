"""The scale μ that a server derives from the clients' counts, compared with constants found by search."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paper.experiments import DATASETS, OURS, experiments
from paper.matching import PaperCell
from paper.page.outcomes import TABLES, Compared, Outcome, Records, cells_of, means, method_name, place_name
from paper.page.tables import NOT_RUN, NOTHING, signed, spread_cell, two_digits
from paper.page.verdicts import Claim, Fact
from paper.printed import Address
from tinyproto.config.presets import PRESETS
from tinyproto.core.cps import derived_sum_scale
from tinyproto.data.sources import SOURCES
from tinyproto.report.words import counted

TARGETS = ("table1", "table3", "readings", "auto")
KEY, AUTO = "global_scale", "auto"
SAMPLES = {"cifar10": 60_000, "cifar100": 60_000}
"""Σ n_i of all clients where n_ij counts all samples."""

AUTO_HEADER = ("method and scale", "rounds", "seeds", "head", "global", "local", "auto minus this, global")


@dataclass(frozen=True, kw_only=True)
class Constant(Compared):
    """The derived scale compared with one constant."""

    cell: PaperCell  # with the constant

    @property
    def name(self) -> str:
        """Return its value, marked if it is the published one."""
        return f"μ = {self.cell.entry[KEY]:g}{TABLES.get(self.cell.paper.target, '')}"

    @property
    def noise(self) -> float | None:
        """Return the larger range over seeds of the two, by global prototypes; None if both have one seed."""
        if self.rounds is None:
            return None
        cells = [outcome for outcome in (self.variant, self.reference) if outcome is not None]
        found = [outcome.seeds_apart("global", self.rounds, self.statistic) for outcome in cells]
        return max((apart for apart in found if apart is not None), default=None)

    def words(self) -> list[str]:
        """Return the constant's row under `AUTO_HEADER`, after the rounds that both have."""
        if self.reference is None:
            return [f"↳ {self.name}", NOT_RUN, *[NOTHING] * (len(AUTO_HEADER) - 2)]
        alone = Compared(variant=self.reference, reference=self.variant, statistic=self.statistic)
        seeds = self.seeds or self.reference.seeds
        cells = [spread_cell(found) for found in alone.accuracies().values()]
        change = signed(self.difference("global"))
        return [f"↳ {self.name}", str(alone.read_rounds), ", ".join(map(str, seeds)), *cells, change]

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "global_scale": self.cell.entry[KEY],
            "experiment": self.cell.address.stem,
            "label": self.cell.address.label,
            "rounds": self.rounds,
            "seeds": self.seeds,
            "auto": means(self.accuracies()),
            "constant": means(self.compared()),
            "difference": self.difference("global"),
            "seeds_apart": self.noise,
        }


@dataclass(frozen=True)
class Search:
    """One method on one dataset with one preset: the derived scale and the constants."""

    cell: PaperCell  # with the derived scale
    derived: Sequence[Outcome]  # the shortest runs first
    constants: Sequence[Constant]  # each compared with every run of the derived scale

    @property
    def name(self) -> str:
        """Return what the derived scale and the constants have in common."""
        preset, entry = self.cell.config["preset"], self.cell.entry
        aggregation = entry.get("aggregation")
        usual = PRESETS[preset].hyper_of(entry["name"])["aggregation"]
        other = "" if aggregation in (None, usual) else f", aggregation {aggregation}"
        return f"{method_name(entry)}, {place_name(self.cell)}, preset {preset}{other}"

    @property
    def hardest(self) -> Constant | None:
        """Return the constant that the derived scale does worst against, each after the most rounds of both."""
        longest: dict[Address, Constant] = {}
        for one in sorted(self.constants, key=lambda one: one.rounds or 0):
            if one.difference("global") is not None:
                longest[one.cell.address] = one
        return min(longest.values(), key=lambda one: one.difference("global") or 0, default=None)

    def claim(self) -> Claim:
        """Return the claim that it is as good; undecided if no cell has a second seed."""
        best = self.hardest
        missing = [] if self.derived else [self.cell.address]
        missing += dict.fromkeys(one.cell.address for one in self.constants if one.reference is None)
        needs: list[Address | str] = [*missing]
        if best is not None and best.noise is None:
            needs.append("a second seed, to separate a difference from noise")
        facts = [] if best is None else [_fact(best, self.cell.rounds)]
        return Claim(f"With global_scale: auto as good as with the best constant tried: {self.name}", facts, needs)

    def rows(self) -> Iterator[list[str]]:
        """Yield rows under `AUTO_HEADER`: the derived scale at each number of rounds compared, then the constants."""
        if not self.derived:
            yield [f"{self.name}: auto", NOT_RUN, *[NOTHING] * (len(AUTO_HEADER) - 2)]
            yield from (one.words() for one in self.constants)
        for derived in self.derived:
            constants = [one for one in self.constants if one.variant is derived]
            for rounds in sorted({one.rounds for one in constants if one.rounds is not None}) or [derived.rounds]:
                accuracy = derived.read_after(rounds, None, self.statistic)
                cells = [spread_cell(found) for found in accuracy.values()]
                yield [f"{self.name}: auto", str(rounds), ", ".join(map(str, derived.seeds)), *cells, NOTHING]
            yield from (one.words() for one in constants)

    @property
    def statistic(self) -> str:
        """Return the statistic of the preset."""
        return str(self.cell.config["evaluate"]["statistic"])

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "method": self.cell.entry["name"],
            "dataset": self.cell.config["data"]["name"],
            "num_clients": self.cell.config["partition"]["num_clients"],
            "preset": self.cell.config["preset"],
            "statistic": self.statistic,
            "experiment": self.cell.address.stem,
            "label": self.cell.address.label,
            "constants": [one.plain() for one in self.constants],
        }


def searches(records: Records) -> list[Search]:
    """Return every cell with a derived scale, with the cells that differ from it only in a constant.

    A constant that the rule derives itself is no comparison.
    """
    found = []
    for cell, constants in _groups():
        others = [one for one in constants if not _is_derived(cell, one)]
        found += [_search(records, cell, others)] if others else []
    return sorted(found, key=_place)


def same_scale() -> list[tuple[PaperCell, PaperCell]]:
    """Return the cells with a constant that the rule derives, each with the cell that derives it: the same run."""
    return [(one, cell) for cell, constants in _groups() for one in constants if _is_derived(cell, one)]


def _groups() -> Iterator[tuple[PaperCell, list[PaperCell]]]:
    """Yield every cell with a derived scale, and the cells that differ from it only in the scale."""
    groups: dict[str, dict[str, PaperCell]] = {}
    for config in experiments():
        for cell in cells_of(config.stem) if config.target in TARGETS else []:
            if cell.entry.get("scaling") == "count":
                groups.setdefault(_without_scale(cell), {}).setdefault(cell.key, cell)
    for cells in groups.values():
        for cell in cells.values():
            if cell.entry[KEY] == AUTO:
                yield cell, [one for one in cells.values() if one is not cell]


def _is_derived(cell: PaperCell, constant: PaperCell) -> bool:
    """Return True if the rule of TinyProto-FP's sum gives this constant; over all samples no partition changes it."""
    samples, source = SAMPLES.get(cell.paper.dataset), SOURCES[cell.config["data"]["name"]]
    whole = cell.config["prototypes"]["counted_samples"] == "all" and cell.entry.get("aggregation") == "sum"
    if samples is None or not whole or source.always is None:
        return False
    return math.isclose(derived_sum_scale(source.always[0], samples), constant.entry[KEY])


def any_derived(found: Sequence[Search]) -> bool:
    """Return True if a cell with a derived scale was run."""
    return any(search.derived for search in found)


def _search(records: Records, cell: PaperCell, others: Sequence[PaperCell]) -> Search:
    """Compare each constant's run with the most common rounds; longer derived runs skip shorter constants."""
    derived = records.find_all(cell.address)
    statistic = cell.config["evaluate"]["statistic"]
    constants = []
    for run in (*derived,) or (None,):
        for one in sorted(others, key=lambda one: float(one.entry[KEY])):
            found = records.find_all(one.address)
            if run is not None and run is not derived[0]:
                found = [reference for reference in found if reference.rounds >= run.rounds]
            if found or run is None or run is derived[0]:
                reference = _sharing_most(found, 0 if run is None else run.rounds)
                constants.append(Constant(variant=run, reference=reference, statistic=statistic, cell=one))
    return Search(cell, derived, constants)


def _sharing_most(found: Sequence[Outcome], rounds: int) -> Outcome | None:
    """Return the first of a cell's runs with as many rounds, or the longest."""
    return max(found, key=lambda one: min(one.rounds, rounds), default=None)


def _place(search: Search) -> tuple[str, int, int]:
    """Sort by preset, dataset and method, in the paper's order."""
    config = search.cell.config
    return config["preset"], DATASETS.index(config["data"]["name"]), OURS.index(search.cell.entry["name"])


def _fact(best: Constant, wanted: int) -> Fact:
    derived, other, change = best.accuracies()["global"], best.compared()["global"], best.difference("global")
    assert derived is not None
    assert other is not None
    assert change is not None
    rounds, noise = best.rounds or 0, best.noise
    spread = "" if noise is None else f"; seeds of one cell differ by up to {100 * noise:.2f}"
    words = (
        f"{two_digits(derived.mean)} against {two_digits(other.mean)} with {best.name} "
        f"after {counted(rounds, 'round')} "
        f"({signed(change)}, {counted(derived.count, 'seed')}{spread})"
    )
    return Fact(change >= -(noise or 0.0), change, words, final=noise is not None and rounds >= wanted)


def _without_scale(cell: PaperCell) -> str:
    """Return the cell's key without its scale."""
    key = json.loads(cell.key)
    del key["algorithm"][KEY]
    return json.dumps(key, sort_keys=True)
