"""The open readings: what each changes against a cell of the paper's tables, both after as many rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paper.experiments import experiments
from paper.matching import PaperCell
from paper.page.comparisons import Pair, means
from paper.page.records import TABLES, Outcome, Records, cells_of, method_name, place_name
from paper.page.tables import NOT_RUN, NOTHING, signed, spread_cell, two_digits
from paper.printed import printed_tables
from tinyproto.config.load import differences
from tinyproto.engine.evaluate import RULES
from tinyproto.report.compare import Spread
from tinyproto.report.words import counted

METHODS = ("fedproto", "fedtgp", "tinyproto_fp", "tinyproto_ft")
READ_DATASETS = ("cifar100", "cifar10")
"""Those with readings, the one on which most were tried first."""

QUESTIONS = {
    "prototype_source": "where local prototypes come from",
    "proto_weight": "λ",
    "aggregation": "sum or mean",
    "global_scale": "μ",
    "masks": "masks",
    "train.shuffle": "batches shuffled",
    "prototypes.counted_samples": "samples that n_ij counts",
}
"""What a key decides, in the paper's words."""

READING_HEADER = ("reading", "rounds", "seeds", "head", "global", "local")
RULE_HEADER = ("dataset, algorithm", "paper", "head", "global", "local", "nearest to print")


@dataclass(frozen=True, kw_only=True)
class Reading(Pair):
    """A variant of a method, held against that method as a table of the paper has it."""

    name: str
    original: PaperCell  # what it is a variant of
    cell: PaperCell

    @property
    def method(self) -> str:
        """As the table has it that it is held against."""
        return method_name(self.original.entry, ablation=self.original.paper.target == "appendix")

    @property
    def original_name(self) -> str:
        """What it is a variant of, in words."""
        return f"{place_name(self.original)}, {self.method}{TABLES[self.original.paper.target]}"

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
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
    """One prototype method of Table 1 or 3: the printed value beside ours by each rule of the same record."""

    name: str
    dataset: str  # as the paper writes it, with the setting of Table 3
    printed: float
    accuracy: Mapping[str, Spread | None]

    @property
    def nearest(self) -> str | None:
        """The rule whose number lies nearest to the printed one."""
        known = {rule: abs(found.mean - self.printed) for rule, found in self.accuracy.items() if found is not None}
        return min(known, key=lambda rule: known[rule], default=None)

    def words(self) -> list[str]:
        """Under `RULE_HEADER`."""
        found = [self.accuracy[rule] for rule in RULES]
        cells = [
            NOTHING if one is None else f"{two_digits(one.mean)} ({signed(one.mean - self.printed)})" for one in found
        ]
        return [f"{self.dataset}, {self.name}", two_digits(self.printed), *cells, self.nearest or NOTHING]

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "name": self.name,
            "dataset": self.dataset,
            "printed": self.printed,
            "accuracy": means(self.accuracy),
            "nearest": self.nearest,
        }


def readings(records: Records) -> list[Reading]:
    """Every variant of the paper's experiments, dataset after dataset, method after method; longer runs after it."""
    cells = [cell for config in experiments() if config.target == "readings" for cell in cells_of(config.stem)]
    return [
        _reading(records, cell, variant)
        for cell in sorted(cells, key=_place)
        for variant in (*records.find_all(cell.address),) or (None,)
    ]


def rule_rows(records: Records) -> list[RuleRow]:
    """The evaluation rule needs no run of its own: every record has all three, and it counts when it is whole."""
    tables = {table.stem: table for table in printed_tables()}
    stems = [*map(_stem, READ_DATASETS), *(stem for stem, table in tables.items() if table.target == "table3")]
    return [
        RuleRow(method_name(outcome.paper.entry), place_name(outcome.paper), row.accuracy, outcome.row.accuracy)
        for stem in stems
        for row in tables[stem].rows
        if row.address.label in METHODS and (outcome := records.find(row.address)) is not None and not outcome.shortened
    ]


def reading_rows(found: Sequence[Reading]) -> Iterator[list[str]]:
    """Under `READING_HEADER`: each method as its table has it, then its variants with the difference in parentheses."""
    for name in dict.fromkeys(reading.original_name for reading in found):
        own = [reading for reading in found if reading.original_name == name]
        yield from _references(name, own)
        for reading in own:
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


def _references(name: str, own: Sequence[Reading]) -> Iterator[list[str]]:
    """A method as its variants are held against it: after as many rounds and of the same seeds, each once.

    Where none is held against it yet, as it was run.
    """
    found = {(reading.rounds, tuple(reading.seeds)): reading for reading in own if reading.seeds}
    for (rounds, seeds), reading in sorted(found.items(), key=lambda item: (item[0][0] or 0, len(item[0][1]), item[0])):
        yield [name, _counted(rounds), _listed(seeds), *map(spread_cell, reading.compared().values())]
    if not found and (alone := own[0].reference) is not None:
        numbers = alone.best_after(alone.rounds).values()
        yield [name, _counted(alone.rounds), _listed(alone.seeds), *map(spread_cell, numbers)]
    elif not found:
        yield [name, NOT_RUN, NOTHING, *[NOTHING] * len(RULES)]


def _reading_name(original: PaperCell, cell: PaperCell) -> str:
    """The keys in which a variant differs from what it is held against, with their values."""
    if cell.config["preset"] != "reference":
        return "all as printed (preset paper)"
    changed = differences([_decided(original), _decided(cell)])
    return ", ".join(
        f"{QUESTIONS.get(key, key)}: {_value(new)} instead of {_value(old)}" for key, (old, new) in changed.items()
    )


def _reading(records: Records, cell: PaperCell, variant: Outcome | None) -> Reading:
    original = _original(cell)
    return Reading(
        variant=variant,
        reference=records.find(original.address),
        name=_reading_name(original, cell),
        original=original,
        cell=cell,
    )


def _original(cell: PaperCell) -> PaperCell:
    """The method as a table of the paper has it, of the same design."""
    tables = (config.stem for config in experiments() if config.target in TABLES)
    return next(found for stem in tables for found in cells_of(stem) if _design(found) == _design(cell))


def _design(cell: PaperCell) -> list[Any]:
    """What tells cells of the paper's tables apart."""
    own = [cell.entry.get(key) for key in ("name", "cps_dim", "scaling")]
    return [cell.paper.dataset, cell.config["partition"], *own]


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
