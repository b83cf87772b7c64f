"""The part of a report that holds the paper's numbers against ours: as HTML, and as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from paper.page.claims import Claim, claims
from paper.page.extensions import Beyond, go_beyond
from paper.page.extensions import as_html as beyond_as_html
from paper.page.figures import Drawn, paper_figures
from paper.page.readings import (
    READING_HEADER,
    RULE_HEADER,
    Reading,
    RuleRow,
    reading_rows,
    readings,
    rule_rows,
)
from paper.page.records import REFERENCE, Records
from paper.page.tables import HEADER, NOT_RUN, Table, paper_tables
from tinyproto.report import html
from tinyproto.report.figures import Figure
from tinyproto.report.runs import Run

NEAR = 0.015
TABLE_WORDS = (
    "Accuracy in %, ± standard deviation over seeds. Δ: ours less the printed value, in points. “head” and “local”: "
    "the same runs read by their head and by the nearest local prototype. “Comm.” is the paper's column in millions "
    "of parameters a round, “formula” its Table 2 in full; payload and wire are bytes a round as measured, up and "
    "down, all clients. A number of rounds behind our value: it is of a run shorter than the paper's."
)
READING_WORDS = (
    "Each row changes one thing that paper and published code leave open, or two; in parentheses, the points that it "
    "adds to the cell of Table 1, of Table 3 or of the ablation above it, read after as many rounds and of the same "
    "seeds. Best round by each rule, in %."
)
RULE_WORDS = (
    "Which rule the tables were made with needs no run of its own, since every record has all three. In "
    "parentheses ours less the printed value."
)


@dataclass(frozen=True)
class Paper:
    """Everything that was found of it."""

    tables: Sequence[Table]
    drawn: Sequence[Drawn]
    readings: Sequence[Reading]
    rules: Sequence[RuleRow]
    claims: Sequence[Claim]
    beyond: Beyond

    @property
    def figures(self) -> list[Figure]:
        """Those that could be drawn."""
        return [figure for drawn in self.drawn for figure in drawn.figures]

    def verdict(self) -> list[str]:
        """How much of the paper was repeated, how near it came, and what of its claims holds."""
        rows = {row.address: row for table in self.tables if table.preset == REFERENCE for row in table.rows}
        printed = [row for row in rows.values() if row.printed is not None]
        whole = [row for row in printed if row.outcome is not None and not row.outcome.shortened]
        short = sum(row.outcome is not None for row in printed) - len(whole)
        near = sum(row.difference is not None and abs(row.difference) <= NEAR for row in whole)
        told = [f"{words}: {count}" for words, count in Counter(claim.verdict for claim in self.claims).items()]
        return [
            f"Of {len(printed)} numbers that the paper's tables print, {len(whole)} were repeated with all rounds"
            f"{f' and {short} with fewer' if short else ''}; {near} of the {len(whole)} lie within "
            f"{100 * NEAR:g} points of print.",
            f"Its {len(self.claims)} claims. {'; '.join(told).capitalize()}.",
        ]

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "verdict": self.verdict(),
            "tables": [table.plain() for table in self.tables],
            "readings": [reading.plain() for reading in self.readings],
            "rules": [row.plain() for row in self.rules],
            "claims": [claim.plain() for claim in self.claims],
            "figures": {
                drawn.title: [figure.slug for figure in drawn.figures] or drawn.missing for drawn in self.drawn
            },
            "beyond": self.beyond.plain(),
        }


def repeat_paper(runs: Sequence[Run]) -> Paper | None:
    """None where no run is a cell of the paper."""
    records = Records(runs)
    if not records.any_of_the_paper:
        return None
    return Paper(
        paper_tables(records), paper_figures(records), readings(records), rule_rows(records), claims(records),
        go_beyond(records),
    )  # fmt: skip


def as_html(paper: Paper) -> Iterator[str]:
    """The checklist first, since it is the verdict; then tables, figures, readings; then what the paper has not."""
    yield html.element("h2", "The paper, repeated")
    yield html.element("section", html.bullets(paper.verdict()), class_="verdict", aria_label="The paper, repeated")
    yield html.element("h3", "Its claims")
    rows = [[claim.words, claim.tally, claim.evidence] for claim in paper.claims]
    yield html.element("div", html.table(["claim", "verdict", "numbers"], rows), class_="told")
    yield html.element("h3", "Its tables")
    yield html.paragraph(TABLE_WORDS, "quiet")
    for table in paper.tables:
        yield from _table(table)
    yield html.element("h3", "Its figures")
    yield html.element("div", "".join(map(html.figure, paper.figures)), class_="figures")
    yield html.bullets(f"{drawn.title}: not drawn, {drawn.missing}." for drawn in paper.drawn if drawn.missing)
    yield html.element("h3", "Open readings")
    yield html.paragraph(READING_WORDS)
    yield html.table(READING_HEADER, list(reading_rows(paper.readings)))
    if paper.rules:
        yield html.paragraph(RULE_WORDS)
        yield html.table(RULE_HEADER, [row.words() for row in paper.rules])
    yield from beyond_as_html(paper.beyond)


def _table(table: Table) -> Iterator[str]:
    """With its heading; one of which nothing was run is folded."""
    strong = [None if row.outcome is None else HEADER.index("ours") for row in table.rows]
    shown = html.table(HEADER, [row.words() for row in table.rows], strong)
    left = len(table.rows) - table.done
    if not table.done:
        summary = html.element("summary", escape(f"{table.title}: {NOT_RUN}"))
        yield html.element("details", summary + shown, class_="empty")
        return
    yield html.element("h4", escape(table.title))
    yield shown
    rest = f" {left} of {len(table.rows)} rows: {NOT_RUN}." if left else ""
    yield html.paragraph(table.caption + rest, "quiet")
