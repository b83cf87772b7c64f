"""The chapter of a report that compares our results with the paper's, as HTML and as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from paper.page.claims import claims
from paper.page.extensions import TITLE, Extensions, extensions
from paper.page.figures import PaperFigure, paper_figures
from paper.page.frames import explained
from paper.page.outcomes import Records, planned
from paper.page.readings import (
    READING_HEADER,
    RULE_HEADER,
    Reading,
    RuleRow,
    reading_rows,
    readings,
    rule_rows,
)
from paper.page.repeats import AGAIN_HEADER, AGAIN_TITLE, AGAIN_WORDS, Again, repeats, told
from paper.page.summary import SUMMARY_HEADER, Summary, summary
from paper.page.tables import HEADER, NOT_RUN, Table, paper_tables
from paper.page.verdicts import Claim
from tinyproto.report import html
from tinyproto.report.page import Chapter
from tinyproto.report.runs import Run

VERBS = {
    "holds": ("holds", "hold"),
    "holds in part": ("holds in part", "hold in part"),
    "does not hold": ("does not hold", "do not hold"),
    "undecided": ("is undecided", "are undecided"),
}
"""Verdicts after the number of claims, one or several."""

TABLE_WORDS = (
    "Accuracy in %, mean over the planned seeds 0, 1 and 2 that were run (n of them). Our ± is the sample deviation "
    "(n − 1) over seeds; one seed has none. Δ: ours minus the printed value, in points; Δ / ±: the same in the printed "
    "±. “nearer than Local”: our number is nearer to the printed one than that of Local in the same setting. “head” "
    "and “local”: the same runs by their head and by the nearest local prototype. “Comm.” is the paper's column in "
    "millions of parameters a round, “formula” its Table 2; payload and wire are measured bytes a round, up and down, "
    "all clients. The best round is chosen on the test samples, as in the paper."
)
READING_WORDS = (
    "Each row changes one or two things that the paper and the published code leave open. In parentheses: the change "
    "in points from the cell of Table 1, Table 3 or the ablation above it, after as many rounds and over the same "
    "seeds. Best round by each rule, in %; ± is the sample deviation (n − 1) over seeds."
)
RULE_WORDS = (
    "The evaluation rule behind the tables needs no run of its own, because every record has all three. In "
    "parentheses: ours minus the printed value."
)


@dataclass(frozen=True)
class Findings:
    """All results that concern the paper."""

    tables: Sequence[Table]
    drawn: Sequence[PaperFigure]
    readings: Sequence[Reading]
    rules: Sequence[RuleRow]
    claims: Sequence[Claim]
    again: Sequence[Again]
    extensions: Extensions

    @property
    def summary(self) -> Summary:
        """Return the counts over the paper's tables."""
        return summary(self.tables)

    def verdict(self) -> list[str]:
        """Return how many of the paper's numbers were run and repeated, and which claims hold."""
        made = [claim for claim in self.claims if claim.printed]
        counts = Counter(claim.verdict for claim in made)
        words = [f"{count} {VERBS[verdict][count > 1]}" for verdict, count in counts.items()]
        return [*self.summary.told(), f"Of the paper's {len(made)} claims below, {', '.join(words)}."]

    @property
    def table_words(self) -> str:
        """Return what the columns of the tables mean."""
        outcomes = [row.outcome for table in self.tables for row in table.rows if row.outcome is not None]
        return TABLE_WORDS + explained(outcome.frame_version for outcome in outcomes)

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "verdict": self.verdict(),
            "summary": self.summary.plain(),
            "tables": [table.plain() for table in self.tables],
            "readings": [reading.plain() for reading in self.readings],
            "rules": [row.plain() for row in self.rules],
            "again": [one.plain() for one in self.again],
            "claims": [claim.plain() for claim in self.claims],
            "figures": {
                drawn.title: [figure.slug for figure in drawn.figures] or drawn.missing for drawn in self.drawn
            },
            "extensions": self.extensions.plain(),
        }


def findings(runs: Sequence[Run]) -> Findings | None:
    """Compare runs with the paper; return None if no run is a cell of it."""
    records = Records(runs)
    if not records.any_of_the_paper:
        return None
    return Findings(
        paper_tables(records), paper_figures(records), readings(records), rule_rows(records), claims(records),
        repeats(records), extensions(records),
    )  # fmt: skip


def paper_chapter(runs: Sequence[Run]) -> Chapter | None:
    """Return what the paper adds to a report: a chapter, sentences and JSON; None if no run is a cell of it."""
    found = findings(runs)
    if found is None:
        return None
    figures = [*(figure for drawn in found.drawn for figure in drawn.figures), *found.extensions.figures]
    judged = [f"{claim.words}: {claim.tally}" for claim in (*found.claims, *found.extensions.claims)]
    verdict, facts = [*found.verdict(), *judged], {"paper": found.plain()}
    return Chapter("".join(as_html(found)), figures, verdict, facts, planned(runs) or None)


def as_html(found: Findings) -> Iterator[str]:
    """Yield the verdict and the claims, then tables, figures and readings, then the extensions."""
    yield html.element("h2", "The paper")
    yield html.element("section", html.bullets(found.verdict()), class_="verdict", aria_label="The paper")
    yield html.table(SUMMARY_HEADER, list(found.summary.rows()))
    yield html.element("h3", "Claims")
    yield _claims("claim", found.claims)
    yield html.element("h3", "Tables")
    yield html.paragraph(found.table_words, "quiet")
    for table in found.tables:
        yield from _table(table)
    yield html.element("h3", "Figures")
    figures = (html.figure(figure) for drawn in found.drawn for figure in drawn.figures)
    yield html.element("div", "".join(figures), class_="figures")
    yield html.bullets(f"{drawn.title}: not drawn, {drawn.missing}." for drawn in found.drawn if drawn.missing)
    yield html.element("h3", "Open readings")
    yield html.paragraph(READING_WORDS)
    yield html.table(READING_HEADER, list(reading_rows(found.readings)))
    if found.rules:
        yield html.paragraph(RULE_WORDS)
        yield html.table(RULE_HEADER, [row.words() for row in found.rules])
    if found.again:
        yield html.element("h3", AGAIN_TITLE)
        yield html.paragraph(f"{AGAIN_WORDS} {told(found.again)}")
        yield html.table(AGAIN_HEADER, [one.words() for one in found.again])
    yield html.element("h2", TITLE)
    yield _claims("aim", found.extensions.claims)
    for study in found.extensions.studies():
        yield html.element("h3", study.title)
        if study.figures:
            yield html.element("div", "".join(map(html.figure, study.figures)), class_="figures")
        yield html.paragraph(study.words, "quiet") if study.rows else html.paragraph(study.words)
        if study.rows:
            yield html.table(study.header, study.rows)


def _claims(name: str, found: Sequence[Claim]) -> str:
    rows = [[claim.words, claim.tally, claim.evidence] for claim in found]
    return html.element("div", html.table([name, "verdict", "numbers"], rows), class_="told")


def _table(table: Table) -> Iterator[str]:
    """Yield a table with its heading; it is folded if none of its rows was run."""
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
    yield html.paragraph(" ".join([table.caption + rest, *table.asides]), "quiet")
