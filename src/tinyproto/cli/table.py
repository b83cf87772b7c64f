"""The comparison as a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from tinyproto.cli.terminal import plain_table
from tinyproto.report.columns import accuracy_cells, accuracy_columns, cost_cells
from tinyproto.report.compare import RULE_NAMES, Comparison
from tinyproto.report.derived import derived_sentence
from tinyproto.report.left_out import left_out_sentence

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
