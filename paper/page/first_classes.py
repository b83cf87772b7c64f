"""Table 1's methods on the first 100 classes of Tiny-ImageNet: what each reached, gained over Local, and sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paper.matching import PaperCell
from paper.page.comparisons import Pair
from paper.page.records import Records, cells_of, method_name
from paper.page.tables import NOT_RUN, NOTHING, plain_outcome, signed, spread_cell
from paper.printed import Address
from tinyproto.engine.measure import RULES
from tinyproto.report.words import counted, number, size

STEM = "tiny_imagenet_100"
FIRST_HEADER = (
    "algorithm", "ours", "Δ Local", "seeds", "head", "global", "local", "params, formula", "payload", "wire",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FirstRow(Pair):
    """One method, held against Local, which is read by its head."""

    cell: PaperCell

    @property
    def gain(self) -> float | None:
        """Over Local, each by the rule it is read by; None for Local itself, and where one of the two was not run."""
        if self.variant is None or self.reference is None or self.cell.label == self.reference.paper.label:
            return None
        own, other = self.accuracies()[self.variant.rule], self.compared()[self.reference.rule]
        return None if own is None or other is None else round(own.mean - other.mean, 9)

    def words(self) -> list[str]:
        """Under `FIRST_HEADER`."""
        name = method_name(self.cell.entry)
        if self.variant is None:
            return [name, NOT_RUN, *[NOTHING] * (len(FIRST_HEADER) - 2)]
        row, ours = self.variant.row, spread_cell(self.variant.accuracy)
        return [
            name,
            f"{ours} ({counted(self.variant.rounds, 'round')})" if self.variant.shortened else ours,
            signed(self.gain),
            str(len(self.variant.seeds)),
            *(spread_cell(row.accuracy[rule]) for rule in RULES),
            NOTHING if row.formula_parameters is None else number(row.formula_parameters),
            size(row.payload_bytes),
            size(row.wire_bytes),
        ]

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it; accuracies are fractions."""
        return {
            "name": method_name(self.cell.entry),
            "experiment": self.cell.stem,
            "label": self.cell.label,
            "ours": None if self.variant is None else plain_outcome(self.variant),
            "over_local": self.gain,
        }


def first_rows(records: Records) -> list[FirstRow]:
    """All nine, run or not."""
    local = records.find(Address(STEM, "local"))
    return [
        FirstRow(
            variant=records.find(cell.address),
            reference=local,
            statistic=cell.config["evaluate"]["statistic"],
            cell=cell,
        )
        for cell in cells_of(STEM)
    ]


def any_of_the_first(rows: Sequence[FirstRow]) -> bool:
    """Whether one of them was run."""
    return any(row.variant is not None for row in rows)
