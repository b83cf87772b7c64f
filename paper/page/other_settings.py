"""Two studies of other settings: 50 clients as in the released scripts, and other draws of the partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paper.experiments import experiments
from paper.matching import PaperCell
from paper.page.outcomes import Compared, Outcome, Records, cells_of, method_name, paper_cell, place_name
from paper.page.readings import reading_name
from paper.page.tables import NOT_RUN, NOTHING, plain_outcome, signed, spread_cell, two_digits
from paper.printed import Address, printed_numbers

SCRIPT_STEM = "published_clients50"
SCRIPT_TITLE = "50 clients as in the released scripts"
SCRIPT_WORDS = (
    "TinyProto-FT on CIFAR-100 with 50 clients: the cell of Table 3, and the scripts' commented loop. “ours” is the "
    "best round of all, by the nearest global prototype; Δ: ours minus the printed value, in points. Accuracy in %."
)
SCRIPT_HEADER = ("cell", "paper", "ours", "Δ", "rounds", "seeds", "head", "local")

PARTITIONS_TARGET = "partitions"
PARTITIONS_TITLE = "Other partitions"
PARTITIONS_WORDS = (
    "CIFAR-100 as in Table 1, with other seeds of the draw of the partition; the paper's is the first. Accuracy in %, "
    "best round. Δ Local: points over Local's head on the same partition, after as many rounds and over the same "
    "seeds; prototype methods are read by the nearest global prototype."
)
PARTITIONS_HEADER = ("partition seed", "algorithm", "rounds", "seeds", "head", "global", "local", "Δ Local")


@dataclass(frozen=True, kw_only=True)
class OverLocal(Compared):
    """One method compared with Local in the same setting, which is read by its head."""

    cell: PaperCell

    @property
    def gain(self) -> float | None:
        """Return the gain over Local, each by its own rule; None for Local itself, and if one of them was not run."""
        if self.variant is None or self.reference is None or self.cell.label == self.reference.cell.label:
            return None
        method, local = self.accuracies()[self.variant.rule], self.compared()[self.reference.rule]
        return None if method is None or local is None else round(method.mean - local.mean, 9)

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON; accuracies are fractions."""
        return {
            "name": method_name(self.cell.entry),
            "experiment": self.cell.stem,
            "label": self.cell.label,
            "ours": None if self.variant is None else plain_outcome(self.variant),
            "over_local": self.gain,
        }


@dataclass(frozen=True, kw_only=True)
class PartitionRow(OverLocal):
    """One method on one draw of the partition."""

    @property
    def seed(self) -> int:
        """Return the seed of the draw."""
        return int(self.cell.config["partition"]["seed"])

    def words(self) -> list[str]:
        """Return the cells of the row, under `PARTITIONS_HEADER`."""
        head = [str(self.seed), method_name(self.cell.entry)]
        if self.variant is None:
            return [*head, NOT_RUN, *[NOTHING] * (len(PARTITIONS_HEADER) - 3)]
        seeds = ", ".join(map(str, self.seeds or self.variant.seeds))
        cells = [spread_cell(found) for found in self.accuracies().values()]
        return [*head, str(self.read_rounds), seeds, *cells, signed(self.gain)]

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON; accuracies are fractions."""
        return {"partition_seed": self.seed, **super().plain()}


@dataclass(frozen=True)
class ScriptRow:
    """One cell with 50 clients beside the printed number."""

    name: str
    cell: PaperCell
    printed: float
    outcome: Outcome | None  # None: not run

    @property
    def difference(self) -> float | None:
        """Return our accuracy minus the printed one."""
        found = None if self.outcome is None else self.outcome.accuracy
        return None if found is None else found.mean - self.printed

    def words(self) -> list[str]:
        """Return the cells of the row, under `SCRIPT_HEADER`."""
        if self.outcome is None:
            return [self.name, two_digits(self.printed), NOT_RUN, *[NOTHING] * (len(SCRIPT_HEADER) - 3)]
        rounds, wanted = self.outcome.rounds, self.cell.rounds
        return [
            self.name, two_digits(self.printed), spread_cell(self.outcome.accuracy), signed(self.difference),
            f"{rounds} of {wanted}" if self.outcome.shortened else f"all {rounds}",
            ", ".join(map(str, self.outcome.seeds)),
            *(spread_cell(self.outcome.accuracies[rule]) for rule in ("head", "local")),
        ]  # fmt: skip

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON; accuracies are fractions."""
        return {
            "name": self.name, "experiment": self.cell.stem, "label": self.cell.label, "printed": self.printed,
            "ours": None if self.outcome is None else plain_outcome(self.outcome), "difference": self.difference,
        }  # fmt: skip


def script_rows(records: Records) -> list[ScriptRow]:
    """Return the cell of Table 3 and those of the scripts' loop, run or not."""
    table = paper_cell(Address("table3_clients50", "tinyproto_ft"))
    printed = printed_numbers()[table.address].accuracy
    names = {table.address: f"{place_name(table)}, {method_name(table.entry)} as in Table 3"}
    names |= {cell.address: f"↳ {reading_name(table, cell)}" for cell in cells_of(SCRIPT_STEM)}
    cells = [table, *cells_of(SCRIPT_STEM)]
    return [ScriptRow(names[cell.address], cell, printed, records.find(cell.address)) for cell in cells]


def partition_rows(records: Records) -> list[PartitionRow]:
    """Return the methods of the study on the paper's partition and on the others, run or not."""
    stems = [config.stem for config in experiments() if config.target == PARTITIONS_TARGET]
    labels = [cell.label for cell in cells_of(stems[0])]
    return [
        PartitionRow(
            variant=records.find(Address(stem, label)),
            reference=records.find(Address(stem, "local")),
            cell=paper_cell(Address(stem, label)),
        )
        for stem in ("table1_cifar100", *stems)
        for label in labels
    ]


def any_own(rows: Sequence[ScriptRow | PartitionRow]) -> bool:
    """Return True if a cell of the study itself was run, not only those of the paper's tables."""
    found = [row.outcome if isinstance(row, ScriptRow) else row.variant for row in rows]
    return any(one is not None and not one.cell.paper.target.startswith("table") for one in found)
