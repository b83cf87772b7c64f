"""A comparison's columns and cells, the same in the terminal and on the page."""

from __future__ import annotations

from tinyproto.engine.measure import RULES
from tinyproto.report.compare import Comparison, Row, Spread
from tinyproto.report.words import number, points, size

COSTS = ("params", "formula", "payload", "wire", "evaluation", "socket", "s/round")
_OF_FEDERATIONS = ("socket",)


def columns(comparison: Comparison) -> list[str]:
    """Every column right of the algorithm's name."""
    return [*accuracy_columns(comparison), *cost_columns(comparison)]


def cost_columns(comparison: Comparison) -> list[str]:
    """Those that any of the algorithms has something to say in."""
    counted = any(row.socket_bytes is not None for row in comparison.rows)
    return [name for name in COSTS if counted or name not in _OF_FEDERATIONS]


def accuracy_columns(comparison: Comparison) -> list[str]:
    """The three rules, and the points over Local by head and by the headline rule."""
    return [*RULES, *(f"Δ {rule}" for rule in _compared_rules(comparison))]


def accuracy_cells(comparison: Comparison, row: Row) -> list[str]:
    """A row's cells under `accuracy_columns`."""
    gains = [comparison.over_local(row, rule) for rule in _compared_rules(comparison)]
    return [
        *(share_cell(row.accuracy[rule]) for rule in RULES),
        *("–" if gain is None else points(gain) for gain in gains),
    ]


def cost_cells(row: Row) -> dict[str, str]:
    """A row's cells under `COSTS`."""
    return {
        "params": number(row.parameters),
        "formula": "–" if row.formula_parameters is None else number(row.formula_parameters),
        "payload": size(row.payload_bytes),
        "wire": size(row.wire_bytes),
        "evaluation": size(row.evaluation_bytes),
        "socket": "–" if row.socket_bytes is None else size(row.socket_bytes),
        "s/round": f"{row.seconds:.3f}",
    }


def share_cell(spread: Spread | None) -> str:
    """A share in %, with its deviation where there are several seeds."""
    if spread is None:
        return "–"
    text = f"{100 * spread.mean:.1f}"
    return text if spread.count == 1 else f"{text} ± {100 * spread.deviation:.1f}"


def _compared_rules(comparison: Comparison) -> list[str]:
    return ["head"] if comparison.rule == "head" else ["head", comparison.rule]
