"""The comparison as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from tinyproto.engine.evaluate import RULES
from tinyproto.report.compare import RULE_NAMES, STATISTIC_NAMES, Comparison, Row, Spread
from tinyproto.report.words import number, points, size

ROOMY = 1000
COSTS = (
    ("params", "payload", "wire", "s/round"),
    ("params", "payload", "s/round"),
    ("payload", "s/round"),
    ("payload",),
)
"""Which costs are shown, by how much room there is; summary.json has them all."""


def comparison_table(comparison: Comparison, console: Console) -> Table:
    """One line per algorithm, as many columns as fit; the headline rule's column is bold."""
    for costs in COSTS:
        table = _table(comparison, costs)
        if Measurement.get(console, console.options.update(width=ROOMY), table).maximum <= console.width:
            break
    table.caption = _caption(comparison)
    return table


def _table(comparison: Comparison, costs: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, caption_justify="left", padding=(0, 1, 0, 0))
    table.add_column("algorithm", no_wrap=True)
    for rule in RULES:
        table.add_column(rule, justify="right", style="bold" if rule == comparison.rule else "", no_wrap=True)
    for rule in _compared_rules(comparison):
        table.add_column(f"Δ {rule}", justify="right", no_wrap=True)
    for name in costs:
        table.add_column(name, justify="right", no_wrap=True)
    for row in comparison.rows:
        table.add_row(*_results(comparison, row), *(_costs(row)[name] for name in costs))
    return table


def _compared_rules(comparison: Comparison) -> list[str]:
    return ["head"] if comparison.rule == "head" else ["head", comparison.rule]


def _results(comparison: Comparison, row: Row) -> list[str]:
    gains = [comparison.over_local(row, rule) for rule in _compared_rules(comparison)]
    return [
        escape(row.title),
        *(_accuracy(row.accuracy[rule]) for rule in RULES),
        *("–" if gain is None else points(gain) for gain in gains),
    ]


def _costs(row: Row) -> dict[str, str]:
    return {
        "params": number(row.parameters),
        "payload": size(row.payload_bytes),
        "wire": size(row.wire_bytes),
        "s/round": f"{row.seconds:.3f}",
    }


def _accuracy(spread: Spread | None) -> str:
    if spread is None:
        return "–"
    text = f"{100 * spread.mean:.1f}"
    return text if spread.count == 1 else f"{text} ± {100 * spread.deviation:.1f}"


def _caption(comparison: Comparison) -> str:
    baseline = comparison.baseline
    over = "" if baseline is None else f" Δ: points over Local's better rule ({RULE_NAMES[baseline[0]]})."
    return (
        f"Accuracy in %, {STATISTIC_NAMES[comparison.statistic]}: by own head, nearest global, nearest local prototype."
        f"{over} "
        "Parameters and bytes per round: measured, up and down, all participants."
    )
