"""The findings as Markdown: the part of docs/reference/paper.md that is made from the records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from paper.page.chapter import READING_WORDS, RULE_WORDS, Findings, findings
from paper.page.extensions import TITLE
from paper.page.readings import READING_HEADER, RULE_HEADER, reading_rows
from paper.page.repeats import AGAIN_HEADER, AGAIN_TITLE, AGAIN_WORDS, told
from paper.page.summary import SUMMARY_HEADER
from paper.page.tables import HEADER
from paper.page.verdicts import Claim
from tinyproto.report.runs import find_runs, read_readable_runs

PAGE = Path("docs") / "reference" / "paper.md"
RECORDS = Path("paper") / "records"
BEGIN = "<!-- from here on made by `make docs` from paper/records -->"
END = "<!-- up to here made by `make docs` -->"


def from_records(records: Path) -> str:
    """Return claims, tables and readings as Markdown."""
    runs, _ = read_readable_runs(find_runs([records]))
    found = findings(runs)
    return "No cell of the paper is recorded yet.\n" if found is None else as_markdown(found)


def as_markdown(found: Findings) -> str:
    """Return the words and tables of the HTML page, without its figures."""
    return "\n\n".join(_blocks(found)) + "\n"


def renewed(page: str, made: str) -> str:
    """Return the page with the part between the markers replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{made}\n{END}{after}"


def _blocks(found: Findings) -> Iterator[str]:
    yield "## How many numbers are repeated"
    yield " ".join(found.verdict())
    yield _table(SUMMARY_HEADER, list(found.summary.rows()))
    yield "## The paper's claims"
    yield _claims("claim", found.claims)
    yield "## The paper's tables"
    yield found.table_words
    empty = [table.title for table in found.tables if not table.own_done]
    if empty:
        yield f"Left out, because nothing of their own was run: {'; '.join(empty)}."
    for table in found.tables:
        if table.own_done:
            yield f"### {table.title}"
            yield _table(HEADER, [row.words() for row in table.rows])
            yield " ".join([table.caption, *table.asides])
    yield "## Open readings"
    yield READING_WORDS
    yield _table(READING_HEADER, list(reading_rows(found.readings)))
    if found.rules:
        yield RULE_WORDS
        yield _table(RULE_HEADER, [row.words() for row in found.rules])
    if found.again:
        yield f"## {AGAIN_TITLE}"
        yield f"{AGAIN_WORDS} {told(found.again)}"
        yield _table(AGAIN_HEADER, [one.words() for one in found.again])
    yield f"## {TITLE}"
    yield _claims("aim", found.extensions.claims)
    for study in found.extensions.studies():
        yield f"### {study.title}"
        yield study.words
        if study.rows:
            yield _table(study.header, study.rows)


def _claims(name: str, found: Sequence[Claim]) -> str:
    rows = [[claim.words, claim.tally, "<br>".join(claim.sentences)] for claim in found]
    return _table((name, "verdict", "numbers"), rows, align="---")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str = "---:") -> str:
    lines = [header, ["---", *[align] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '¦') for cell in line)} |" for line in lines)


def write_page(root: Path) -> None:
    """Replace the generated part of the page below `root`."""
    page = root / PAGE
    page.write_text(renewed(page.read_text(encoding="utf-8"), from_records(root / RECORDS)), encoding="utf-8")
