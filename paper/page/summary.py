"""How many of the printed numbers are repeated: near the printed value, and nearer to it than Local."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paper.page.outcomes import REFERENCE
from paper.page.tables import NEAR, NOTHING, Table, TableRow, signed

POINTS = f"{100 * NEAR:g} points"
SUMMARY_HEADER = (
    "part of the paper", "numbers", "run", f"within {POINTS}", "repeated", "within print's ±",
    f"Local within {POINTS}", "further away", "near, but Local is nearer",
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """One table of the paper, without the numbers that stand in an earlier one."""

    title: str
    rows: Sequence[TableRow]

    @property
    def run(self) -> list[TableRow]:
        """Return the numbers that were run with all rounds."""
        return [row for row in self.rows if row.complete]

    @property
    def local_near(self) -> list[TableRow]:
        """Return the numbers that Local alone is near to."""
        found = [(row, row.local_difference) for row in self.rows]
        return [row for row, difference in found if difference is not None and round(abs(difference), 9) <= NEAR]

    @property
    def compared(self) -> list[TableRow]:
        """Return the numbers in whose setting Local was run."""
        return [row for row in self.rows if row.local is not None]

    def words(self) -> list[str]:
        """Return the cells of its row, under `SUMMARY_HEADER`."""
        off = [f"{row.name} {_exactly(row.difference)}" for row in self.run if not row.near]
        local = [row.name for row in self.run if row.near and not row.repeated]
        return [
            self.title,
            *(str(len(rows)) for rows in (self.rows, self.run, near(self.run), repeated(self.run), inside(self.run))),
            f"{len(self.local_near)} of {len(self.compared)}" if self.compared else NOTHING,
            ", ".join(off) or NOTHING,
            ", ".join(local) or NOTHING,
        ]


@dataclass(frozen=True)
class Summary:
    """The counts over all parts."""

    parts: Sequence[Part]

    def told(self) -> list[str]:
        """Return sentences: how many were run and repeated, and how near Local alone comes to Table 1."""
        rows = [row for part in self.parts for row in part.rows]
        run = [row for row in rows if row.complete]
        short = sum(row.outcome is not None for row in rows) - len(run)
        single = sum(row.outcome is not None and len(row.outcome.seeds) == 1 for row in run)
        alone = "; where Local was not run, the distance alone decides" if any(row.local is None for row in run) else ""
        told = [
            f"Of the {len(rows)} numbers in the paper's tables, {len(run)} were run with all rounds"
            f"{f' and {short} with fewer' if short else ''}, {single} of the {len(run)} with one seed.",
            f"{len(near(run))} of the {len(run)} are within {POINTS} of the printed value. {len(repeated(run))} of "
            f"these are also nearer to it than Local, and only they count as repeated{alone}. {len(inside(run))} are "
            "within print's own ±.",
        ]
        found = [row.outcome for row in run if row.outcome is not None]
        ranges = [one.seeds_apart(one.rule, one.rounds, one.comparison.statistic) for one in found]
        apart = max((one for one in ranges if one is not None), default=None)
        if apart is not None:
            told.append(f"Seeds of one number differ by up to {100 * apart:.1f} points.")
        first = [part for part in self.parts if part.title.startswith("Table 1")]
        compared, local = (sum(len(part.compared) for part in first), sum(len(part.local_near) for part in first))
        if compared:
            told.append(
                f"Local alone is within {POINTS} of {local} of the {compared} numbers of Table 1 in whose "
                "setting it was run."
            )
        return told

    def rows(self) -> Iterator[list[str]]:
        """Yield a row for each part, under `SUMMARY_HEADER`."""
        yield from (part.words() for part in self.parts)

    def plain(self) -> list[dict[str, Any]]:
        """Return plain values for JSON."""
        return [
            {
                "part": part.title, "numbers": len(part.rows), "run": len(part.run), "near": len(near(part.run)),
                "repeated": len(repeated(part.run)), "within_deviation": len(inside(part.run)),
                "local_near": len(part.local_near), "local_run": len(part.compared),
            }
            for part in self.parts
        ]  # fmt: skip


def summary(tables: Sequence[Table]) -> Summary:
    """Return the counts of the paper's tables with their own preset; a number in two tables counts in the first."""
    known: set[Any] = set()
    parts = []
    for table in tables:
        if table.preset == REFERENCE:
            own = [row for row in table.rows if row.printed is not None and row.address not in known]
            known |= {row.address for row in own}
            parts.append(Part(table.title, own))
    return Summary(parts)


def _exactly(difference: float | None) -> str:
    """Return a difference in points, with a third digit if two do not tell it from the limit."""
    if difference is None or round(abs(difference), 4) != NEAR:
        return signed(difference)
    return f"{100 * difference:+.3f}".replace("-", "−")


def near(rows: Sequence[TableRow]) -> list[TableRow]:
    """Return the rows near the printed value."""
    return [row for row in rows if row.near]


def repeated(rows: Sequence[TableRow]) -> list[TableRow]:
    """Return the rows that count as repeated."""
    return [row for row in rows if row.repeated]


def inside(rows: Sequence[TableRow]) -> list[TableRow]:
    """Return the rows within print's own ±."""
    return [row for row in rows if row.deviations is not None and round(abs(row.deviations), 9) <= 1]
