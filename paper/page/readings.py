"""The open readings: how each changes a cell of the paper's tables, after the same number of rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paper.experiments import experiments
from paper.matching import PaperCell
from paper.page.auto_scale import same_scale
from paper.page.outcomes import REFERENCE, TABLES, Compared, Outcome, Records, cells_of, means, method_name, place_name
from paper.page.tables import NOT_RUN, NOTHING, signed, spread_cell, two_digits
from paper.printed import printed_tables
from tinyproto.config.load import differences
from tinyproto.engine.measure import RULES
from tinyproto.report.compare import Spread
from tinyproto.report.words import counted

METHODS = ("fedproto", "fedtgp", "tinyproto_fp", "tinyproto_ft")
READ_DATASETS = ("cifar100", "cifar10")
"""The datasets with readings; the one with most of them comes first."""

QUESTIONS = {
    "prototype_source": "where local prototypes come from",
    "proto_weight": "λ",
    "distance": "regulariser",
    "evaluate.rule": "headline rule",
    "aggregation": "sum or mean",
    "global_scale": "μ",
    "masks": "masks",
    "cps_dim": "s",
    "train.shuffle": "batches shuffled",
    "prototypes.counted_samples": "samples that n_ij counts",
    "prototypes.samples": "samples of local prototypes",
}
"""The meaning of a key in the paper's words."""

READING_HEADER = ("reading", "rounds", "seeds", "head", "global", "local")
RULE_HEADER = ("dataset, algorithm", "paper", "head", "global", "local", "nearest to print")


@dataclass(frozen=True, kw_only=True)
class Reading(Compared):
    """A variant of a method, compared with that method in a table of the paper."""

    name: str
    original: PaperCell  # the cell of a table
    cell: PaperCell

    @property
    def method(self) -> str:
        """Return the method's name in the table."""
        return method_name(self.original.entry, ablation=self.original.paper.target == "appendix")

    @property
    def original_name(self) -> str:
        """Return the name of the cell that it varies."""
        return f"{place_name(self.original)}, {self.method}{TABLES[self.original.paper.target]}"

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "reading": self.name,
            "method": self.method,
            "dataset": self.cell.config["data"]["name"],
            "num_clients": self.cell.config["partition"]["num_clients"],
            "experiment": self.cell.address.stem,
            "label": self.cell.address.label,
            "rounds": self.rounds,
            "seeds": self.seeds,
            "accuracy": means(self.accuracies()),
            "reference": means(self.compared()),
            "difference": {rule: self.difference(rule) for rule in RULES},
        }


@dataclass(frozen=True)
class RuleRow:
    """One prototype method of Table 1 or 3: the printed value beside ours by each rule."""

    name: str
    dataset: str  # with the setting of Table 3
    printed: float
    accuracy: Mapping[str, Spread | None]

    @property
    def nearest(self) -> str | None:
        """Return the rule whose number is nearest to the printed one."""
        known = {rule: abs(found.mean - self.printed) for rule, found in self.accuracy.items() if found is not None}
        return min(known, key=lambda rule: known[rule], default=None)

    def words(self) -> list[str]:
        """Return the cells of the row, under `RULE_HEADER`."""
        found = [self.accuracy[rule] for rule in RULES]
        cells = [
            NOTHING if one is None else f"{two_digits(one.mean)} ({signed(one.mean - self.printed)})" for one in found
        ]
        return [f"{self.dataset}, {self.name}", two_digits(self.printed), *cells, self.nearest or NOTHING]

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "name": self.name,
            "dataset": self.dataset,
            "printed": self.printed,
            "accuracy": means(self.accuracy),
            "nearest": self.nearest,
        }


def readings(records: Records) -> list[Reading]:
    """Return every variant by dataset and method, each followed by its longer runs."""
    cells = [cell for config in experiments() if config.target == "readings" for cell in cells_of(config.stem)]
    return [
        _reading(records, cell, variant)
        for cell in sorted(cells, key=_place)
        for variant in (*records.find_all(cell.address),) or (None,)
    ]


def rule_rows(records: Records) -> list[RuleRow]:
    """Return the three rules of every complete record: the evaluation rule needs no run of its own."""
    tables = {table.stem: table for table in printed_tables()}
    stems = [*map(_stem, READ_DATASETS), *(stem for stem, table in tables.items() if table.target == "table3")]
    return [
        RuleRow(method_name(outcome.cell.entry), place_name(outcome.cell), row.accuracy, outcome.accuracies)
        for stem in stems
        for row in tables[stem].rows
        if row.address.label in METHODS and (outcome := records.find(row.address)) is not None and not outcome.shortened
    ]


def reading_rows(found: Sequence[Reading]) -> Iterator[list[str]]:
    """Yield rows under `READING_HEADER`: each method of a table, then its variants with the difference."""
    for name in dict.fromkeys(reading.original_name for reading in found):
        variants = [reading for reading in found if reading.original_name == name]
        yield from _references(name, variants)
        for reading in variants:
            if reading.variant is None:
                yield [f"↳ {reading.name}", NOT_RUN, NOTHING, *[NOTHING] * len(RULES)]
                continue
            cells = [
                spread_cell(found)
                + (f" ({signed(change)})" if (change := reading.difference(rule)) is not None else "")
                for rule, found in reading.accuracies().items()
            ]
            seeds = reading.seeds or reading.variant.seeds
            yield [f"↳ {reading.name}", _counted(reading.read_rounds), _listed(seeds), *cells]


def _references(name: str, variants: Sequence[Reading]) -> Iterator[list[str]]:
    """Yield a method once for every number of rounds and set of seeds that its variants are compared at.

    Without a variant, yield it as it was run.
    """
    found = {(reading.rounds, tuple(reading.seeds)): reading for reading in variants if reading.seeds}
    for (rounds, seeds), reading in sorted(found.items(), key=lambda item: (item[0][0] or 0, len(item[0][1]), item[0])):
        yield [name, _counted(rounds), _listed(seeds), *map(spread_cell, reading.compared().values())]
    if not found and (alone := variants[0].reference) is not None:
        numbers = alone.best_after(alone.rounds).values()
        yield [name, _counted(alone.rounds), _listed(alone.seeds), *map(spread_cell, numbers)]
    elif not found:
        yield [name, NOT_RUN, NOTHING, *[NOTHING] * len(RULES)]


def reading_name(original: PaperCell, cell: PaperCell) -> str:
    """Return the keys in which a variant differs from its table's cell, with their values."""
    changed = differences([_decided(original), _decided(cell)])
    same = (original.address, cell.address) in {(one.address, other.address) for one, other in same_scale()}
    word = ", the same as" if same else " instead of"
    told = [f"{QUESTIONS.get(key, key)}: {_value(new)}{word} {_value(old)}" for key, (old, new) in changed.items()]
    preset = cell.config["preset"]
    return ", ".join(told) if preset == REFERENCE else f"preset {preset}, {len(told)} points at once: {', '.join(told)}"


def _reading(records: Records, cell: PaperCell, variant: Outcome | None) -> Reading:
    original = _original(cell)
    return Reading(
        variant=variant,
        reference=records.find(original.address),
        name=reading_name(original, cell),
        original=original,
        cell=cell,
    )


def _original(cell: PaperCell) -> PaperCell:
    """Return the cell of a table with the same design."""
    tables = (config.stem for config in experiments() if config.target in TABLES)
    return next(found for stem in tables for found in cells_of(stem) if _design(found) == _design(cell))


def _design(cell: PaperCell) -> list[Any]:
    """Return what distinguishes cells of the paper's tables."""
    keys = ("name", "cps_dim", "scaling")
    return [cell.paper.dataset, cell.config["partition"], *(cell.entry.get(key) for key in keys)]


def _stem(dataset: str) -> str:
    return f"table1_{dataset}"


def _place(cell: PaperCell) -> tuple[int, int]:
    return READ_DATASETS.index(cell.config["data"]["name"]), METHODS.index(cell.entry["name"])


def _decided(cell: PaperCell) -> dict[str, Any]:
    sections = {key: cell.config[key] for key in ("prototypes", "evaluate")}
    train = {key: value for key, value in cell.config["train"].items() if key != "rounds"}
    return {**{key: value for key, value in cell.entry.items() if key != "label"}, **sections, "train": train}


def _value(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def _counted(rounds: int | None) -> str:
    return NOT_RUN if rounds is None else counted(rounds, "round")
