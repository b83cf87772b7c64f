"""Each table of the paper with our numbers beside the printed ones; rows that were not run are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paper.page.outcomes import REFERENCE, Outcome, Records, means, method_name, paper_cell
from paper.printed import Address, Printed, PrintedTable, printed_tables
from tinyproto.report.compare import RULE_NAMES, STATISTIC_NAMES, Spread, share_cell
from tinyproto.report.words import counted, number, size

HEADER = (
    "algorithm", "paper", "ours", "Δ", "seeds", "head", "local", "Comm. (M)", "formula", "payload", "wire",
)  # fmt: skip
NOT_RUN = "not run"
NOTHING = "–"


@dataclass(frozen=True)
class TableRow:
    """One method: the number that the paper prints, and ours."""

    name: str
    address: Address
    printed: Printed | None  # None: not in the paper
    outcome: Outcome | None  # None: not run

    @property
    def difference(self) -> float | None:
        """Return our accuracy minus the printed one."""
        if self.printed is None or self.outcome is None or self.outcome.accuracy is None:
            return None
        return self.outcome.accuracy.mean - self.printed.accuracy

    def words(self) -> list[str]:
        """Return the cells of the row, under `HEADER`."""
        printed = [NOTHING, NOTHING]
        if self.printed is not None:
            printed = [two_digits(self.printed.accuracy, self.printed.deviation), self.printed.communication or NOTHING]
        if self.outcome is None:
            return [self.name, printed[0], NOT_RUN, *[NOTHING] * 4, printed[1], *[NOTHING] * 3]
        row, ours = self.outcome.row, spread_cell(self.outcome.accuracy)
        marked = f"{ours} ({counted(self.outcome.rounds, 'round')})" if self.outcome.shortened else ours
        formula = NOTHING if row.formula_parameters is None else number(row.formula_parameters)
        return [
            self.name, printed[0], marked, signed(self.difference), str(len(self.outcome.seeds)),
            *(share_cell(self.outcome.accuracies[rule]) for rule in ("head", "local")),
            printed[1], formula, size(row.payload_bytes), size(row.wire_bytes),
        ]  # fmt: skip

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON; accuracies are fractions."""
        return {
            "name": self.name,
            "experiment": self.address.stem,
            "label": self.address.label,
            "printed": None if self.printed is None else _plain_printed(self.printed),
            "ours": None if self.outcome is None else plain_outcome(self.outcome),
            "difference": self.difference,
        }


@dataclass(frozen=True)
class Table:
    """One part of a table of the paper, with one preset."""

    printed: PrintedTable
    preset: str
    rows: Sequence[TableRow]

    @property
    def title(self) -> str:
        """Return the paper's title, with the preset unless it is that of the paper's tables."""
        return self.printed.title if self.preset == REFERENCE else f"{self.printed.title}, preset {self.preset}"

    @property
    def done(self) -> int:
        """Return the number of rows that were run."""
        return sum(row.outcome is not None for row in self.rows)

    @property
    def own_done(self) -> int:
        """Return how many of these belong to its own config, not to Table 1."""
        return sum(row.outcome is not None and row.address.stem == self.printed.stem for row in self.rows)

    @property
    def caption(self) -> str:
        """Return how our number is read."""
        evaluate = paper_cell(self.rows[0].address, self.preset).config["evaluate"]
        return (
            f"Ours: by {RULE_NAMES[evaluate['rule']]}, {STATISTIC_NAMES[evaluate['statistic']]}; methods without "
            "global prototypes: by their head."
        )

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        rows = [row.plain() for row in self.rows]
        return {"title": self.title, "target": self.printed.target, "preset": self.preset, "rows": rows}


def paper_tables(records: Records) -> list[Table]:
    """Return all tables with the preset reference, and with two other presets those with a cell that was run."""
    found = [_table(records, printed, REFERENCE) for printed in printed_tables()]
    others = [_table(records, printed, preset) for preset in ("published", "sound") for printed in printed_tables()]
    return [*found, *(table for table in others if table.own_done)]


def two_digits(fraction: float, deviation: float | None = None) -> str:
    """Return a percentage with two digits, as the paper prints it."""
    mean = f"{100 * fraction:.2f}"
    return mean if deviation is None else f"{mean} ± {100 * deviation:.2f}"


def spread_cell(spread: Spread | None) -> str:
    """Return a mean with two digits, with its sample deviation if there are several seeds."""
    return NOTHING if spread is None else two_digits(spread.mean, spread.deviation)


def signed(fraction: float | None) -> str:
    """Return a difference in points with two digits."""
    if fraction is None:
        return NOTHING
    text = f"{100 * fraction:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text.replace("-", "−")


def plain_outcome(outcome: Outcome) -> dict[str, Any]:
    """Return plain values for JSON."""
    row = outcome.row
    return {
        "rule": outcome.rule,
        "statistic": outcome.comparison.statistic,
        "mean": None if outcome.accuracy is None else outcome.accuracy.mean,
        "deviation": None if outcome.accuracy is None else outcome.accuracy.deviation,
        "seeds": outcome.seeds,
        "rounds": outcome.rounds,
        "accuracy": means(outcome.accuracies),
        "params_per_round": row.parameters,
        "params_per_round_formula": row.formula_parameters,
        "payload_bytes_per_round": row.payload_bytes,
        "wire_bytes_per_round": row.wire_bytes,
    }


def _plain_printed(printed: Printed) -> dict[str, Any]:
    return {"mean": printed.accuracy, "deviation": printed.deviation, "communication": printed.communication}


def _table(records: Records, printed: PrintedTable, preset: str) -> Table:
    return Table(printed, preset, list(_rows(records, printed, preset)))


def _rows(records: Records, printed: PrintedTable, preset: str) -> Iterator[TableRow]:
    if printed.target != "appendix":
        address = Address(printed.stem, "local")
        yield TableRow("Local (not in the paper)", address, None, records.find(address, preset))
    for row in printed.rows:
        name = method_name(paper_cell(row.address, preset).entry, ablation=printed.target == "appendix")
        yield TableRow(name, row.address, row, records.find(row.address, preset))
