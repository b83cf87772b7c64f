"""The paper repeated, as Markdown: the part of docs/reproduction.md that is made from the records under results/."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from paper.page.auto_scale import AUTO_HEADER
from paper.page.extensions import (
    AUTO_MISSING,
    AUTO_TITLE,
    AUTO_WORDS,
    FIRST_TITLE,
    TITLE,
    WIRE_MISSING,
    WIRE_TITLE,
    WIRE_WORDS,
    Beyond,
)
from paper.page.first_classes import FIRST_HEADER
from paper.page.readings import READING_HEADER, RULE_HEADER, reading_rows
from paper.page.section import READING_WORDS, RULE_WORDS, TABLE_WORDS, Paper, repeat_paper
from paper.page.tables import HEADER, Table
from paper.page.wire_types import WIRE_HEADER
from tinyproto.report.runs import find_runs, read_readable_runs

PAGE = Path("docs") / "reproduction.md"
RESULTS = Path("results")
BEGIN = "<!-- from here on made by `make docs` from results/ -->"
END = "<!-- up to here made by `make docs` -->"


def from_records(results: Path) -> str:
    """Checklist, tables and readings."""
    runs, _ = read_readable_runs(find_runs([results]))
    paper = repeat_paper(runs)
    return "No cell of the paper is recorded yet.\n" if paper is None else as_markdown(paper)


def as_markdown(paper: Paper) -> str:
    """The same words as on the page; figures are drawn there alone."""
    return "\n\n".join(_blocks(paper)) + "\n"


def renewed(page: str, made: str) -> str:
    """The page with the part between the markers made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{made}\n{END}{after}"


def _blocks(paper: Paper) -> Iterator[str]:
    yield " ".join(paper.verdict())
    yield "## The paper's claims"
    yield _table(("claim", "verdict", "numbers"), [[c.words, c.tally, c.evidence] for c in paper.claims], align="---")
    yield "## The paper's tables"
    yield TABLE_WORDS
    for table in paper.tables:
        yield f"### {table.title}"
        yield from _paper_table(table)
    yield "## Open readings"
    yield READING_WORDS
    yield _table(READING_HEADER, list(reading_rows(paper.readings)))
    if paper.rules:
        yield RULE_WORDS
        yield _table(RULE_HEADER, [row.words() for row in paper.rules])
    yield from _beyond(paper.beyond)


def _beyond(beyond: Beyond) -> Iterator[str]:
    yield f"## {TITLE}"
    yield _table(("aim", "verdict", "numbers"), [[c.words, c.tally, c.evidence] for c in beyond.claims], align="---")
    yield f"### {WIRE_TITLE}"
    yield from (WIRE_WORDS, _table(WIRE_HEADER, beyond.wire_cells)) if beyond.wire_cells else (WIRE_MISSING,)
    yield f"### {AUTO_TITLE}"
    yield from (AUTO_WORDS, _table(AUTO_HEADER, beyond.auto_cells)) if beyond.auto_cells else (AUTO_MISSING,)
    yield f"### {FIRST_TITLE}"
    yield from (beyond.first_words, _table(FIRST_HEADER, beyond.first_cells))


def _paper_table(table: Table) -> Iterator[str]:
    if not table.done:
        yield "Not run yet. The paper prints:"
        rows = [row.words() for row in table.rows if row.printed is not None]
        chosen = [HEADER.index(name) for name in ("algorithm", "paper", "Comm. (M)")]
        yield _table([HEADER[index] for index in chosen], [[row[index] for index in chosen] for row in rows])
        return
    yield _table(HEADER, [row.words() for row in table.rows])
    yield table.caption


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str = "---:") -> str:
    lines = [header, ["---", *[align] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '¦') for cell in line)} |" for line in lines)


def write(root: Path) -> None:
    """Renew the page below `root`."""
    page = root / PAGE
    page.write_text(renewed(page.read_text(encoding="utf-8"), from_records(root / RESULTS)), encoding="utf-8")


if __name__ == "__main__":
    write(Path())
