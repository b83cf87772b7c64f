"""`tinyproto report`, and the table that a run ends with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from tinyproto.cli.terminal import Output, plain_table
from tinyproto.errors import RunFolderError
from tinyproto.report.compare import RULE_NAMES, SPREAD_WORDS, Comparison, accuracy_columns, table_cells
from tinyproto.report.figures.prototypes import Shown
from tinyproto.report.formats import FigureFormat, TableFormat
from tinyproto.report.page import FEW_SETTINGS, Chapter, Report, figure_style, make_report
from tinyproto.report.runs import Run, find_runs, read_readable_runs, read_runs
from tinyproto.report.standalone import converter, standalone
from tinyproto.report.studies import Setting, arrange
from tinyproto.report.tables import results_table
from tinyproto.report.verdict import derived_sentence, left_out_sentence
from tinyproto.report.words import counted, size
from tinyproto.storage.atomic import write_atomic

UNLIMITED_WIDTH = 1000

COSTS = (
    ("params", "payload", "wire", "evaluation", "s/round"),
    ("params", "payload", "wire", "s/round"),
    ("params", "payload", "s/round"),
    ("payload", "s/round"),
    ("payload",),
)
"""Cost columns by the width of the terminal, the widest first; summary.json has all costs."""


def report_runs(
    paths: Sequence[Path], out: Path | None, figures: Path | None, shown: Shown, output: Output,
    chapter_of: Callable[[Sequence[Run]], Chapter | None] | None = None, format_: FigureFormat = FigureFormat.SVG,
) -> None:  # fmt: skip
    """Write one page for all runs, by default beside a single run or in this folder for several.

    An extension may put a chapter before the studies: `chapter_of` makes it from the runs.
    """
    if figures is not None:
        converter(format_)  # a missing package is an error before anything is written
        if figures.is_file():
            raise RunFolderError(f"cannot write figures to {figures}: it is a file; name a folder")
    folders = find_runs(paths)
    runs, passed_over = read_readable_runs(folders)
    chapter = None if chapter_of is None else chapter_of(runs)
    page = make_report(runs, shown, passed_over, chapter)
    target = out or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    _write(target, page.html)
    if figures is not None:
        write_figures(page, figures, format_)
    settings = [setting for study in page.studies for setting in study.settings]
    for sentence in [*(() if chapter is None else chapter.verdict), *_verdicts(settings)]:
        output.console.print(f"• {sentence}", markup=False)
    for sentence in passed_over:
        output.say(f"Not in the report: {sentence}")
    output.say(f"Wrote {target} ({size(len(page.html.encode()))})")
    if figures is not None:
        output.say(f"Wrote {counted(len(page.figures), 'figure')} to {figures}, each as .{format_} and .csv")
    output.result(
        {
            "report": str(target),
            "figures": [figure.slug for figure in page.figures],
            "settings": [setting.plain() for setting in settings],
            "passed_over": passed_over,
            **({} if chapter is None else chapter.facts),
        }
    )


def print_table(paths: Sequence[Path], out: Path | None, format_: TableFormat, output: Output) -> None:
    """Print the table of results alone, or write it to a file."""
    runs, passed_over = read_readable_runs(find_runs(paths))
    table = results_table(arrange(runs), format_)
    for sentence in passed_over:
        output.say(f"Not in the table: {sentence}")
    if out is None:
        sys.stdout.write(table)
        return
    _write(out, table)
    output.say(f"Wrote {out}")


def _verdicts(settings: Sequence[Setting]) -> Iterator[str]:
    """Yield all sentences of few settings, the ranking of each of many."""
    for setting in settings:
        sentences = setting.verdict() if len(settings) <= FEW_SETTINGS else setting.verdict()[:1]
        yield from (f"{setting.name}: {one}" if len(settings) > 1 else one for one in sentences)


def write_report(folders: Sequence[Path], target: Path) -> Path:
    """Write the page of these runs and return its path."""
    _write(target, make_report(read_runs(folders)).html)
    return target


def write_figures(page: Report, folder: Path, format_: FigureFormat = FigureFormat.SVG) -> None:
    """Write every figure as a picture with its colours, and as data."""
    convert, style = converter(format_), figure_style()
    for figure in page.figures:
        _write(folder / f"{figure.slug}.{format_}", convert(standalone(figure.svg, style)))
        _write(folder / f"{figure.slug}.csv", figure.csv())


def _write(target: Path, content: str | bytes) -> None:
    if target.is_dir():
        raise RunFolderError(f"cannot write {target}: it is a folder; name a file")
    if target.parent.is_file():
        raise RunFolderError(f"cannot write {target}: {target.parent} is a file; name a folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, content)
    except OSError as error:
        raise RunFolderError(f"cannot write {target}: {error.strerror or error}") from error


def print_comparison(console: Console, comparison: Comparison, sentences: Sequence[str]) -> None:
    """Print the table, what was derived, what was left out, and the verdict."""
    console.print(comparison_table(comparison, console))
    notes = [note for note in (derived_sentence(comparison), left_out_sentence(comparison)) if note]
    for sentence in [*notes, *(f"• {sentence}" for sentence in sentences)]:
        console.print(sentence, markup=False)


def comparison_table(comparison: Comparison, console: Console) -> Table:
    """Return a table with a line per algorithm and as many columns as fit; the headline rule's column is bold."""
    for columns, deviations in _layouts(comparison):
        table = _table(comparison, columns, deviations)
        if Measurement.get(console, console.options.update(width=UNLIMITED_WIDTH), table).maximum <= console.width:
            break
    baseline = comparison.baseline
    over = "" if baseline is None else f" Δ: points over Local's better rule ({RULE_NAMES[baseline[0]]})."
    spread = f", {SPREAD_WORDS}" if comparison.has_deviations and deviations else ""
    table.caption = (
        f"Accuracy in %, {comparison.statistic_words}{spread}: by own head, nearest global and nearest local "
        f"prototype.{over} Parameters and bytes per round: measured, up and down, all participants."
        f" {comparison.seeds_note}".rstrip()
    )
    return table


def _layouts(comparison: Comparison) -> Iterator[tuple[list[str], bool]]:
    """Yield columns and whether they show ±, the widest first: costs go, then ±, then columns; no number is cut."""
    every = accuracy_columns(comparison)
    apart = any(row.evaluation_bytes for row in comparison.rows)
    for costs in COSTS if apart else COSTS[1:]:
        yield [*every, *costs], True
    yield [*every, *COSTS[-1]], False
    for columns in (every, RULE_NAMES, ("head", comparison.rule), (comparison.rule,)):
        yield list(dict.fromkeys(columns)), False


def _table(comparison: Comparison, columns: Sequence[str], deviations: bool) -> Table:
    table = plain_table()
    table.add_column("algorithm", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", style="bold" if name == comparison.rule else "", no_wrap=True)
    for row in comparison.rows:
        cells = table_cells(comparison, row)
        shown = [cells[name] if deviations else cells[name].partition(" ±")[0] for name in columns]
        table.add_row(escape(comparison.marked(row)), *shown)
    return table
