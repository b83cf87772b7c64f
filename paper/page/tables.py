"""Each table of the paper with our numbers beside the printed ones; rows that were not run are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paper.page.outcomes import PUBLISHED, REFERENCE, Outcome, Records, means, method_name, paper_cell
from paper.printed import Address, Printed, PrintedTable, printed_tables
from tinyproto.report.compare import RULE_NAMES, STATISTIC_NAMES, Spread, share_cell
from tinyproto.report.words import counted, number, size

HEADER = (
    "algorithm", "paper", "ours", "Δ", "Δ / ±", "nearer than Local", "n", "rounds", "head", "local", "Comm. (M)",
    "formula", "payload", "wire",
)  # fmt: skip
NOT_RUN = "not run"
NOTHING = "–"
NEAR = 0.015
"""A number this near to the printed one counts as near."""


@dataclass(frozen=True)
class TableRow:
    """One method: the number that the paper prints, and ours."""

    name: str
    address: Address
    printed: Printed | None  # None: not in the paper
    outcome: Outcome | None  # None: not run
    local: Outcome | None = None  # Local in the same setting, with all rounds
    unplanned: Sequence[Outcome] = ()  # runs with other seeds than the planned ones, not in `outcome`

    @property
    def difference(self) -> float | None:
        """Return our accuracy minus the printed one."""
        return self._from_printed(self.outcome)

    @property
    def local_difference(self) -> float | None:
        """Return Local's accuracy minus the printed one of this method."""
        return self._from_printed(self.local)

    @property
    def deviations(self) -> float | None:
        """Return how many of print's own ± our number is off."""
        return None if self.printed is None or self.difference is None else self.difference / self.printed.deviation

    @property
    def nearer(self) -> bool | None:
        """Return True if our number is nearer to the printed one than Local's is; None if one of them is missing."""
        ours, local = self.difference, self.local_difference
        return None if ours is None or local is None else round(abs(ours), 9) < round(abs(local), 9)

    @property
    def complete(self) -> bool:
        """Return True if it was run with all rounds."""
        return self.outcome is not None and not self.outcome.shortened

    @property
    def near(self) -> bool:
        """Return True if it was run with all rounds and is near the printed number."""
        return self.complete and self.difference is not None and round(abs(self.difference), 9) <= NEAR

    @property
    def repeated(self) -> bool:
        """Return True if it is near and, where Local was run, nearer to the printed number than Local."""
        return self.near and self.nearer is not False

    def _from_printed(self, outcome: Outcome | None) -> float | None:
        if self.printed is None or outcome is None or outcome.accuracy is None:
            return None
        return outcome.accuracy.mean - self.printed.accuracy

    def words(self) -> list[str]:
        """Return the cells of the row, under `HEADER`."""
        printed = [NOTHING, NOTHING]
        if self.printed is not None:
            printed = [two_digits(self.printed.accuracy, self.printed.deviation), self.printed.communication or NOTHING]
        if self.outcome is None:
            return [self.name, printed[0], NOT_RUN, *[NOTHING] * 7, printed[1], *[NOTHING] * 3]
        row = self.outcome.row
        nearer = {True: "yes", False: "no", None: NOTHING if self.printed is None else "no Local run"}[self.nearer]
        rounds = self.outcome.rounds
        formula = NOTHING if row.formula_parameters is None else number(row.formula_parameters)
        return [
            self.name, printed[0], spread_cell(self.outcome.accuracy), signed(self.difference), times(self.deviations),
            nearer, str(len(self.outcome.seeds)),
            f"{rounds} of {self.outcome.cell.rounds}" if self.outcome.shortened else f"all {rounds}",
            *(share_cell(self.outcome.accuracies[rule]) for rule in ("head", "local")),
            printed[1], formula, size(row.payload_bytes), self.outcome.wire_words,
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
            "deviations": self.deviations,
            "nearer_than_local": self.nearer,
            "repeated": self.repeated,
            "unplanned": [plain_outcome(one) for one in self.unplanned],
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
        """Return how many of these belong to its own config and preset, not to Table 1 or to `reference`."""
        own = [row for row in self.rows if row.address.stem == self.printed.stem]
        return sum(row.outcome is not None and not self._is_borrowed(row) for row in own)

    @property
    def caption(self) -> str:
        """Return how our number is read."""
        evaluate = paper_cell(self.rows[0].address, self.preset).config["evaluate"]
        return (
            f"Ours: by {RULE_NAMES[evaluate['rule']]}, {STATISTIC_NAMES[evaluate['statistic']]}; methods without "
            "global prototypes: by their head."
        )

    @property
    def asides(self) -> list[str]:
        """Return a sentence for each run with a seed that was not planned, and one on records of another preset."""
        names = ", ".join(row.name.partition(" (")[0] for row in self.rows if self._is_borrowed(row))
        told = [f"{names}: records of the preset {REFERENCE}, which trains these methods alike."] if names else []
        return told + [
            f"{row.name}, seed {one.seeds[0]}, is not planned and not averaged in: "
            f"{spread_cell(one.accuracy)}{_early(one)}"
            f"{', a run that collapsed: its head lost over a quarter in one round' if one.collapsed else ''}."
            for row in self.rows
            for one in row.unplanned
        ]

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        rows = [row.plain() for row in self.rows]
        return {"title": self.title, "target": self.printed.target, "preset": self.preset, "rows": rows}

    def _is_borrowed(self, row: TableRow) -> bool:
        """Return True if a row has records of another preset, which trains its method alike."""
        return row.outcome is not None and row.outcome.cell.config["preset"] != self.preset


def paper_tables(records: Records) -> list[Table]:
    """Return all tables with the preset reference, and with two other presets those with a cell that was run."""
    found = [_table(records, printed, REFERENCE) for printed in printed_tables()]
    others = [_table(records, printed, preset) for preset in (PUBLISHED, "sound") for printed in printed_tables()]
    return [*found, *(table for table in others if table.own_done)]


def two_digits(fraction: float, deviation: float | None = None) -> str:
    """Return a percentage with two digits, as the paper prints it."""
    mean = f"{100 * fraction:.2f}"
    return mean if deviation is None else f"{mean} ± {100 * deviation:.2f}"


def spread_cell(spread: Spread | None) -> str:
    """Return a mean with two digits, with its sample deviation if there are several seeds."""
    return NOTHING if spread is None else two_digits(spread.mean, spread.deviation)


def times(count: float | None) -> str:
    """Return a signed multiple with one digit."""
    return NOTHING if count is None else f"{count:+.1f}×".replace("-", "−")


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
        "wire_bytes_per_round": outcome.wire_bytes(),
        "frame_version": outcome.frame_version,
    }


def _early(outcome: Outcome) -> str:
    return f" after {counted(outcome.rounds, 'round')}" if outcome.shortened else ""


def _plain_printed(printed: Printed) -> dict[str, Any]:
    return {"mean": printed.accuracy, "deviation": printed.deviation, "communication": printed.communication}


def _table(records: Records, printed: PrintedTable, preset: str) -> Table:
    return Table(printed, preset, list(_rows(records, printed, preset)))


def _rows(records: Records, printed: PrintedTable, preset: str) -> Iterator[TableRow]:
    ablation = printed.target == "appendix"
    address = Address(f"table1_{printed.part}" if ablation else printed.stem, "local")
    local = records.find(address, preset)
    if not ablation:
        yield TableRow("Local (not in the paper)", address, None, local)
    whole = None if local is None or local.shortened else local
    for row in printed.rows:
        name = method_name(paper_cell(row.address, preset).entry, ablation=ablation)
        found, others = records.find(row.address, preset), records.unplanned(row.address, preset)
        yield TableRow(name, row.address, row, found, whole, others)
