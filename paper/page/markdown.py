"""The findings as Markdown: the part of docs/reference/paper.md that is made from the records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from paper.page.chapter import READING_WORDS, RULE_WORDS, TABLE_WORDS, Findings, findings
from paper.page.extensions import TITLE
from paper.page.readings import READING_HEADER, RULE_HEADER, reading_rows
from paper.page.repeats import AGAIN_HEADER, AGAIN_TITLE, AGAIN_WORDS, told
from paper.page.summary import SUMMARY_HEADER
from paper.page.tables import HEADER, Table
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
    yield _table(("claim", "verdict", "numbers"), [[c.words, c.tally, c.evidence] for c in found.claims], align="---")
    yield "## The paper's tables"
    yield TABLE_WORDS
    for table in found.tables:
        yield f"### {table.title}"
        yield from _paper_table(table)
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
    aims = [[c.words, c.tally, c.evidence] for c in found.extensions.claims]
    yield _table(("aim", "verdict", "numbers"), aims, align="---")
    for study in found.extensions.studies():
        yield f"### {study.title}"
        yield study.words
        if study.rows:
            yield _table(study.header, study.rows)


def _paper_table(table: Table) -> Iterator[str]:
    if not table.done:
        yield "Not run yet. The paper prints:"
        rows = [row.words() for row in table.rows if row.printed is not None]
        chosen = [HEADER.index(name) for name in ("algorithm", "paper", "Comm. (M)")]
        yield _table([HEADER[index] for index in chosen], [[row[index] for index in chosen] for row in rows])
        return
    yield _table(HEADER, [row.words() for row in table.rows])
    yield " ".join([table.caption, *table.asides])


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str = "---:") -> str:
    lines = [header, ["---", *[align] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '¦') for cell in line)} |" for line in lines)


def write_page(root: Path) -> None:
    """Replace the generated part of the page below `root`."""
    page = root / PAGE
    page.write_text(renewed(page.read_text(encoding="utf-8"), from_records(root / RECORDS)), encoding="utf-8")
