"""Types on the wire: the bytes and accuracy of each type and CPS dimension, beside float32 of Table 1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paper.experiments import AUTO_DIMS, BYTES_DIMS, CPS_DIM, TYPED_BASELINES
from paper.matching import PaperCell
from paper.page.curves import Curve, Point, accuracies, draw, sizes
from paper.page.figures import INKS
from paper.page.outcomes import Compared, Outcome, Records, cells_of, means, paper_cell
from paper.page.tables import NOT_RUN, NOTHING, signed, spread_cell, two_digits
from paper.page.verdicts import Claim, Fact
from paper.printed import Address
from tinyproto.algorithms import ALGORITHMS
from tinyproto.report.figures import Figure
from tinyproto.report.words import counted, size, times
from tinyproto.wire.values import VALUE_TYPES

STEM, STANDARD = "bytes_cifar100", "table1_cifar100"
DEAREST, RIVAL = Address(STANDARD, "fedproto"), Address(STANDARD, "fedtgp")
"""FedProto, whose bytes are to be saved, and FedTGP, whose accuracy is to be kept; both in float32."""

METHODS = (*TYPED_BASELINES, "tinyproto_ft")
WIRE_HEADER = (
    "method, s, type", "download", "rounds", "head", "global", "local", "Δ FedTGP", "training", "fewer",
    "with evaluation",
)  # fmt: skip
WANTED = {"int8": 55.0, "int4": 100.0}
"""The saving over FedProto that TinyProto-FT aims at, by type."""


@dataclass(frozen=True, kw_only=True)
class WireRow(Compared):
    """One cell, compared with FedTGP's accuracy and FedProto's bytes, both in float32."""

    cell: PaperCell
    dearest: Outcome | None  # FedProto in float32

    @property
    def wire(self) -> Mapping[str, Any]:
        """Return its types, rounding and download."""
        found: Mapping[str, Any] = self.cell.entry.get("wire", self.cell.config["wire"])
        return found

    @property
    def type(self) -> str:
        """Return its type up and down."""
        up, down, rounding = (self.wire[key] for key in ("up", "down", "rounding"))
        return (up if up == down else f"{up} up, {down} down") + (f" {rounding}" if rounding != "nearest" else "")

    @property
    def method(self) -> str:
        """Return the method's title."""
        return ALGORITHMS[self.cell.entry["name"]].title

    @property
    def cps_dim(self) -> int | None:
        """Return its CPS dimension; None if the method has no CPS."""
        found: int | None = self.cell.entry.get("cps_dim")
        return found

    @property
    def derived(self) -> bool:
        """Return True if μ is derived, False if it is the published constant."""
        return self.cell.entry.get("global_scale") == "auto"

    @property
    def setting(self) -> str:
        """Return the type, marked if μ is derived."""
        return self.type + (", auto μ" if self.derived else "")

    @property
    def name(self) -> str:
        """Return method, width and setting."""
        width = [] if self.cps_dim is None else [f"s={self.cps_dim}"]
        return ", ".join([self.method, *width, self.setting])

    @property
    def training_bytes(self) -> float | None:
        """Return bytes on the wire a round, up and down."""
        return None if self.variant is None else self.variant.wire_bytes()

    @property
    def all_bytes(self) -> float | None:
        """Return the same with the frames sent only to evaluate."""
        return None if self.variant is None else self.variant.wire_bytes() + self.variant.row.evaluation_bytes

    @property
    def dearest_bytes(self) -> float | None:
        """Return FedProto's bytes in float32, in frames of the version that the variant's are of."""
        if self.variant is None or self.dearest is None:
            return None
        return self.dearest.wire_bytes(self.variant.frame_version)

    @property
    def saving(self) -> float | None:
        """Return FedProto's bytes in float32 divided by its own."""
        if self.dearest_bytes is None or not self.training_bytes:
            return None
        return self.dearest_bytes / self.training_bytes

    def words(self) -> list[str]:
        """Return the cells of the row, under `WIRE_HEADER`."""
        download = str(self.wire["download"])
        if self.variant is None or self.read_rounds is None:
            return [self.name, download, NOT_RUN, *[NOTHING] * (len(WIRE_HEADER) - 3)]
        accuracy = self.accuracies()
        return [
            self.name, download, str(self.read_rounds),
            *(spread_cell(accuracy[rule]) for rule in ("head", "global", "local")),
            signed(self.difference("global")), self.variant.wire_words,
            NOTHING if self.saving is None else times(self.saving), size(self.all_bytes or 0),
        ]  # fmt: skip

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "method": self.method,
            "experiment": self.cell.address.stem,
            "label": self.cell.address.label,
            "cps_dim": self.cps_dim,
            "global_scale": self.cell.entry.get("global_scale"),
            "wire": dict(self.wire),
            "rounds": self.read_rounds,
            "seeds": self.seeds or ([] if self.variant is None else self.variant.seeds),
            "accuracy": means(self.accuracies()),
            "fedtgp": means(self.compared()),
            "difference": self.difference("global"),
            "training_bytes_per_round": self.training_bytes,
            "frame_version": None if self.variant is None else self.variant.frame_version,
            "all_bytes_per_round": self.all_bytes,
            "times_fewer_than_fedproto": self.saving,
        }


def wire_rows(records: Records) -> list[WireRow]:
    """Return the study's cells and those of Table 1 with the same seeds, at every number of rounds in the study."""
    study = [_row(records, cell) for cell in cells_of(STEM)]
    seeds = sorted({seed for row in study for seed in row.seeds}) or None
    standards = [replace(_row(records, paper_cell(Address(STANDARD, name))), among=seeds) for name in METHODS]
    rows = [
        replace(row, most=most)
        for row in [*study, *standards]
        for most in _lengths(study, row.read_rounds)
    ]  # fmt: skip
    return sorted(rows, key=_place)


def any_typed(rows: Sequence[WireRow]) -> bool:
    """Return True if a cell of the study itself was run."""
    return any(row.variant is not None and row.cell.address.stem == STEM for row in rows)


def wire_claims(rows: Sequence[WireRow]) -> list[Claim]:
    """Return the claims that the aims are reached without being worse than FedTGP."""
    return [_claim(rows, kind, least) for kind, least in WANTED.items()]


def _claim(rows: Sequence[WireRow], kind: str, least: float) -> Claim:
    words = (
        f"TinyProto-FT (s={CPS_DIM}, {kind}, held) trains with at least {least:g}× fewer bytes than FedProto in "
        "float32, at FedTGP's accuracy or better by global prototypes"
    )
    row = next(row for row in rows if _is_wanted(row, kind))
    found = {row.cell.address: row.variant, DEAREST: row.dearest, RIVAL: row.reference}
    facts = list(_facts(row, least))
    final = any(fact.final for fact in facts)
    needs = [
        address
        for address, outcome in found.items()
        if outcome is None or (outcome.shortened and not final and address != DEAREST)
    ]
    same_seed = row.variant is None or row.reference is None or row.seeds
    return Claim(words, facts, needs if same_seed else [*needs, "a common seed of both"])


def _facts(row: WireRow, least: float) -> Iterator[Fact]:
    """Yield one fact if bytes and accuracies are known."""
    accuracy, rival, change = row.accuracies()["global"], row.compared()["global"], row.difference("global")
    if row.saving is None or accuracy is None or rival is None or change is None:
        return
    early = row.rounds is not None and row.rounds < row.cell.rounds
    words = (
        f"{times(row.saving)} fewer on the wire ({size(row.training_bytes or 0)} against "
        f"{size(row.dearest_bytes or 0)} a round; {size(row.all_bytes or 0)} with frames sent only to "
        f"evaluate), {two_digits(accuracy.mean)} against FedTGP's {two_digits(rival.mean)} "
        f"after {counted(row.rounds or 0, 'round')} "
        f"({signed(change)}, {counted(accuracy.count, 'seed')})"
    )
    yield Fact(row.saving >= least and change >= 0, change, words, final=not early)


def _is_wanted(row: WireRow, kind: str) -> bool:
    wanted = {"up": kind, "down": kind, "download": "held", "rounding": "nearest"}
    ours = row.cell.entry["name"] == "tinyproto_ft" and row.cps_dim == CPS_DIM and not row.derived
    return ours and dict(row.wire) == wanted


def _row(records: Records, cell: PaperCell) -> WireRow:
    variant, rival, dearest = (records.find(one) for one in (cell.address, RIVAL, DEAREST))
    return WireRow(variant=variant, reference=rival, cell=cell, dearest=dearest)


def _lengths(study: Sequence[WireRow], longest: int | None) -> list[int | None]:
    """Return the study's numbers of rounds up to `longest`; [None] if nothing was run."""
    found = {row.read_rounds: None for row in study if row.read_rounds is not None}
    return [rounds for rounds in found if longest is not None and rounds <= longest] or [None]


def _place(row: WireRow) -> tuple[Any, ...]:
    """Sort by method and width, the widest type first, and the most rounds of one cell first."""
    kinds = list(VALUE_TYPES)
    return (
        METHODS.index(row.cell.entry["name"]),
        row.cps_dim or 0,
        *(kinds.index(row.wire[way]) for way in ("up", "down")),
        row.wire["rounding"],
        row.derived,
        row.wire["download"],
        -(row.read_rounds or 0),
    )


TYPE_INKS = {"float32": "c9", "float16": "c3", "bfloat16": "c3 hollow", "int8": "c8", "int4": "c1"}
"""Colours of TinyProto-FT, which no baseline has; hollow if rounding or download differ."""

DERIVED_INK = "c8 hollow"
"""The colour of TinyProto-FT with a derived μ, which is all in int4."""


def wire_figures(records: Records, rows: Sequence[WireRow]) -> list[Figure]:
    """Draw a figure for each number of rounds of the study, with all cells that have as many."""
    lengths = {row.read_rounds for row in rows if row.read_rounds is not None and row.cell.address.stem == STEM}
    return [_figure(records, rows, rounds) for rounds in sorted(lengths, reverse=True)]


def _figure(records: Records, rows: Sequence[WireRow], rounds: int) -> Figure:
    found: dict[tuple[str, str], dict[Address, Point]] = {}
    for row in rows:
        for point in _points(row, rounds):
            found.setdefault(_curve(row), {})[row.cell.address] = point
    curves = [Curve(*named, sorted(points.values(), key=lambda point: point.x)) for named, points in found.items()]
    curves += _alone(records, rounds)
    return draw(
        f"extension-bytes-{rounds}", f"Types on the wire, CIFAR-100, after {counted(rounds, 'round')}",
        f"Best round by global prototypes; methods without them by their head. TinyProto-FT type by type over s="
        f"{', '.join(map(str, BYTES_DIMS))} (auto μ: {', '.join(map(str, sorted(AUTO_DIMS)))}), baselines over "
        "their types, as far as they were run; “all”: every class is downloaded. Local, which sends nothing, is the "
        "dashed line. No dot is above or left of the shaded front. Frames sent only to evaluate are not counted; the "
        "table has them.",
        curves, sizes(curves, "training bytes on the wire a round, up and down"), accuracies(curves), with_front=True,
    )  # fmt: skip


def _points(row: WireRow, rounds: int) -> Iterator[Point]:
    """Yield the cell after these rounds; nothing if it has fewer."""
    if row.variant is None or row.variant.rounds < rounds or not row.training_bytes:
        return
    rule = row.variant.rule
    found = row.variant.best_after(rounds, row.seeds or None)[rule]
    if found is not None:
        width = "" if row.cps_dim is None else f"s={row.cps_dim}, "
        words = f"{width}{row.setting}: {two_digits(found.mean)} % for {size(row.training_bytes)}"
        yield Point(row.training_bytes, found.mean, words)


def _curve(row: WireRow) -> tuple[str, str]:
    """Return a curve's name and colour: TinyProto-FT has one per type, a baseline one over all types."""
    if row.cps_dim is None:
        by_head = row.variant is not None and row.variant.rule == "head"
        return row.method + (" (head)" if by_head else ""), INKS[row.cell.entry["name"]]
    plain = row.wire["rounding"] == "nearest" and row.wire["download"] == "held"
    scope = "" if row.wire["download"] == "held" else ", all"
    ink = DERIVED_INK if row.derived else TYPE_INKS[row.wire["up"]] + ("" if plain else " hollow")
    return f"{row.method} {row.setting}{scope}", ink


def _alone(records: Records, rounds: int) -> Iterator[Curve]:
    """Yield the accuracy of Local, by its better rule, as a horizontal line."""
    local = records.find(Address(STANDARD, "local"))
    if local is None or local.rounds < rounds:
        return
    best = max((found.mean for found in local.best_after(rounds).values() if found is not None), default=None)
    if best is not None:
        yield Curve("Local", INKS["local"], [Point(0, best, f"{two_digits(best)} % for nothing")], level=True)
