"""`tinyproto report`: runs in, one HTML file out, and its figures as files where wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from tinyproto.cli.terminal import Output, plain_table
from tinyproto.errors import RunFolderError
from tinyproto.report.columns import accuracy_cells, accuracy_columns, cost_cells
from tinyproto.report.compare import RULE_NAMES, Comparison
from tinyproto.report.draw.svg import with_style
from tinyproto.report.figures.prototypes import Shown
from tinyproto.report.networks import network_rows
from tinyproto.report.page import FEW_SETTINGS, Chapter, Report, figure_style, make_report
from tinyproto.report.runs import Run, find_runs, read_readable_runs, read_runs
from tinyproto.report.studies import Setting
from tinyproto.report.words import derived_sentence, left_out_sentence, size
from tinyproto.tracking.run_folder import write_atomic


class Added(NamedTuple):
    """What an extension adds to a report: a chapter of the page, sentences of the verdict, facts of the JSON."""

    chapter: Chapter
    verdict: Sequence[str]
    facts: Mapping[str, Any]


Extension = Callable[[Sequence[Run]], Added | None]


def report_runs(
    paths: Sequence[Path], out: Path | None, figures: Path | None, shown: Shown, output: Output,
    extension: Extension | None = None,
) -> None:  # fmt: skip
    """Write one page for all these runs, by default beside the run, or in this folder for several."""
    folders = find_runs(paths)
    runs, passed_over = read_readable_runs(folders)
    added = None if extension is None else extension(runs)
    page = make_report(runs, shown, passed_over, None if added is None else added.chapter)
    target = out or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    _write(target, page.html)
    if figures is not None:
        write_figures(page, figures)
    settings = [setting for study in page.studies for setting in study.settings]
    for sentence in [*([] if added is None else added.verdict), *_verdicts(settings)]:
        output.console.print(f"• {sentence}", markup=False)
    for sentence in passed_over:
        output.say(f"Not in the report: {sentence}")
    output.say(f"Written to {target} ({size(len(page.html.encode()))})")
    if figures is not None:
        output.say(f"{len(page.figures)} figures, each as .svg and .csv, in {figures}")
    output.result(
        {
            "report": str(target),
            "figures": [figure.slug for figure in page.figures],
            "settings": [_setting(setting) for setting in settings],
            "passed_over": passed_over,
            **({} if added is None else added.facts),
        }
    )


def _setting(setting: Setting) -> dict[str, Any]:
    return {**setting.plain(), "networks": [row.plain() for row in network_rows(setting)]}


def _verdicts(settings: Sequence[Setting]) -> Iterator[str]:
    """All sentences while settings are few, else the ranking of each."""
    for setting in settings:
        sentences = setting.verdict() if len(settings) <= FEW_SETTINGS else setting.verdict()[:1]
        yield from (f"{setting.name}: {one}" if len(settings) > 1 else one for one in sentences)


def write_report(folders: Sequence[Path], target: Path) -> Path:
    """The page of these runs."""
    _write(target, make_report(read_runs(folders)).html)
    return target


def write_figures(page: Report, folder: Path) -> None:
    """Every figure as a picture with its colours, and as data."""
    for figure in page.figures:
        _write(folder / f"{figure.slug}.svg", with_style(figure.svg, figure_style()))
        _write(folder / f"{figure.slug}.csv", figure.csv())


def _write(target: Path, text: str) -> None:
    if target.is_dir():
        raise RunFolderError(f"cannot write {target}: it is a folder; name a file")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, text)
    except OSError as error:
        raise RunFolderError(f"cannot write {target}: {error.strerror or error}") from error


ROOMY = 1000
COSTS = (
    ("params", "payload", "wire", "evaluation", "s/round"),
    ("params", "payload", "wire", "s/round"),
    ("params", "payload", "s/round"),
    ("payload", "s/round"),
    ("payload",),
)
"""Which costs are shown, by how much room there is; summary.json has them all."""


def print_comparison(console: Console, comparison: Comparison, sentences: Sequence[str]) -> None:
    """What a run ends with: the table, what was derived, the verdict."""
    console.print(comparison_table(comparison, console))
    if derived := derived_sentence(comparison):
        console.print(derived, markup=False)
    if left_out := left_out_sentence(comparison):
        console.print(left_out, markup=False)
    for sentence in sentences:
        console.print(f"• {sentence}", markup=False)


def comparison_table(comparison: Comparison, console: Console) -> Table:
    """One line per algorithm, as many columns as fit; the headline rule's column is bold."""
    for layout in _layouts(comparison):
        table = _table(comparison, layout)
        if Measurement.get(console, console.options.update(width=ROOMY), table).maximum <= console.width:
            break
    table.caption = _caption(comparison)
    return table


class _Layout(NamedTuple):
    """What is shown."""

    accuracies: Sequence[str]
    costs: Sequence[str]
    deviations: bool = True


def _layouts(comparison: Comparison) -> Iterator[_Layout]:
    """From the widest on: costs go first, then ±, then columns; a number is never cut."""
    every = accuracy_columns(comparison)
    apart = any(row.evaluation_bytes for row in comparison.rows)
    for costs in COSTS if apart else COSTS[1:]:
        yield _Layout(every, costs)
    yield _Layout(every, COSTS[-1], deviations=False)
    yield _Layout(every, (), deviations=False)
    yield _Layout([name for name in every if name in RULE_NAMES], (), deviations=False)
    yield _Layout(list(dict.fromkeys(("head", comparison.rule))), (), deviations=False)
    yield _Layout([comparison.rule], (), deviations=False)


def _table(comparison: Comparison, layout: _Layout) -> Table:
    table = plain_table()
    table.add_column("algorithm", no_wrap=True)
    for name in layout.accuracies:
        table.add_column(name, justify="right", style="bold" if name == comparison.rule else "", no_wrap=True)
    for name in layout.costs:
        table.add_column(name, justify="right", no_wrap=True)
    for row in comparison.rows:
        cells = dict(zip(accuracy_columns(comparison), accuracy_cells(comparison, row), strict=True))
        accuracies = (
            cells[name] if layout.deviations else cells[name].partition(" ±")[0] for name in layout.accuracies
        )
        table.add_row(escape(row.title), *accuracies, *(cost_cells(row)[name] for name in layout.costs))
    return table


def _caption(comparison: Comparison) -> str:
    baseline = comparison.baseline
    over = "" if baseline is None else f" Δ: points over Local's better rule ({RULE_NAMES[baseline[0]]})."
    return (
        f"Accuracy in %, {comparison.statistic_words}: by own head, nearest global, nearest local prototype."
        f"{over} "
        "Parameters and bytes per round: measured, up and down, all participants."
    )
