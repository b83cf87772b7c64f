"""Accuracy against the bytes that a round of training sends, types and CPS dimensions in one picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paper.experiments import AUTO_DIMS, BYTES_DIMS
from paper.page.curves import Curve, Point, accuracies, draw, sizes
from paper.page.figures import INKS
from paper.page.records import Records
from paper.page.tables import two_digits
from paper.page.wire_types import STANDARD, STEM, WireRow
from paper.printed import Address
from tinyproto.report.figures import Figure
from tinyproto.report.words import counted, size

TYPE_INKS = {"float32": "c9", "float16": "c3", "bfloat16": "c3 hollow", "int8": "c8", "int4": "c1"}
"""Of TinyProto-FT, colours that no baseline has; a curve that differs from one of these in something else is hollow."""

DERIVED_INK = "c8 hollow"
"""Of TinyProto-FT with a derived μ, all of it in int4."""


def wire_figures(records: Records, rows: Sequence[WireRow]) -> list[Figure]:
    """One for each number of rounds that cells of the study are read at: all that have as many."""
    lengths = {row.read_rounds for row in rows if row.read_rounds is not None and row.cell.address.stem == STEM}
    return [_figure(records, rows, rounds) for rounds in sorted(lengths, reverse=True)]


def _figure(records: Records, rows: Sequence[WireRow], rounds: int) -> Figure:
    found: dict[tuple[str, str], dict[Address, Point]] = {}
    for row in rows:
        for point in _points(row, rounds):
            found.setdefault(_curve(row), {})[row.cell.address] = point
    curves = [Curve(*named, sorted(own.values(), key=lambda point: point.x)) for named, own in found.items()]
    curves += _alone(records, rounds)
    return draw(
        f"beyond-bytes-{rounds}", f"Types on the wire, CIFAR-100, after {counted(rounds, 'round')}",
        f"Best round by global prototypes; methods without them by their head. TinyProto-FT type by type over s="
        f"{', '.join(map(str, BYTES_DIMS))} (auto μ: {', '.join(map(str, sorted(AUTO_DIMS)))}), baselines over "
        "their types, as far as they were run; “all”: every class is downloaded. Local, which sends "
        "nothing, is the dashed line. No dot lies above or left of the dotted front. "
        "Frames sent only to evaluate are not counted; the table has them.",
        curves, sizes(curves, "training bytes on the wire a round, up and down"), accuracies(curves), with_front=True,
    )  # fmt: skip


def _points(row: WireRow, rounds: int) -> Iterator[Point]:
    """The cell as it stood after so many rounds; none where it has fewer."""
    if row.variant is None or row.variant.rounds < rounds or not row.training_bytes:
        return
    rule = row.variant.rule
    found = row.variant.best_after(rounds, row.seeds or None)[rule]
    if found is not None:
        width = "" if row.cps_dim is None else f"s={row.cps_dim}, "
        words = f"{width}{row.setting}: {two_digits(found.mean)} % for {size(row.training_bytes)}"
        yield Point(row.training_bytes, found.mean, words)


def _curve(row: WireRow) -> tuple[str, str]:
    """Its name and its colour: TinyProto-FT type by type, a baseline over its types."""
    if row.cps_dim is None:
        by_head = row.variant is not None and row.variant.rule == "head"
        return row.method + (" (head)" if by_head else ""), INKS[row.cell.entry["name"]]
    plain = row.wire["rounding"] == "nearest" and row.wire["download"] == "held"
    scope = "" if row.wire["download"] == "held" else ", all"
    ink = DERIVED_INK if row.derived else TYPE_INKS[row.wire["up"]] + ("" if plain else " hollow")
    return f"{row.method} {row.setting}{scope}", ink


def _alone(records: Records, rounds: int) -> Iterator[Curve]:
    """What clients reach that never talk, by the better rule."""
    local = records.find(Address(STANDARD, "local"))
    if local is None or local.rounds < rounds:
        return
    best = max((found.mean for found in local.best_after(rounds).values() if found is not None), default=None)
    if best is not None:
        yield Curve("Local", INKS["local"], [Point(0, best, f"{two_digits(best)} % for nothing")], level=True)
