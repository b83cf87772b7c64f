"""Types on the wire: what each type and CPS dimension costs in bytes and in accuracy, beside float32 of Table 1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paper.experiments import CPS_DIM, TYPED_BASELINES
from paper.matching import PaperCell
from paper.page.claims import Claim, Fact
from paper.page.comparisons import Pair, means
from paper.page.records import Outcome, Records, cells_of, paper_cell
from paper.page.tables import NOT_RUN, NOTHING, signed, spread_cell, two_digits
from paper.printed import Address
from tinyproto.algorithms import ALGORITHMS
from tinyproto.report.words import counted, size, times
from tinyproto.wire.values import VALUE_TYPES

STEM, STANDARD = "bytes_cifar100", "table1_cifar100"
DEAREST, RIVAL = Address(STANDARD, "fedproto"), Address(STANDARD, "fedtgp")
"""Whose bytes are to be saved, and whose accuracy is to be kept; both in float32."""

METHODS = (*TYPED_BASELINES, "tinyproto_ft")
WIRE_HEADER = (
    "method, s, type", "download", "rounds", "head", "global", "local", "Δ FedTGP", "training", "fewer",
    "with evaluation",
)  # fmt: skip
WANTED = {"int8": 55.0, "int4": 100.0}
"""How many times fewer bytes than FedProto's TinyProto-FT is to train with, by type."""


@dataclass(frozen=True, kw_only=True)
class WireRow(Pair):
    """One cell, held against FedTGP's accuracy and FedProto's bytes, both in float32."""

    cell: PaperCell
    dearest: Outcome | None  # FedProto in float32

    @property
    def wire(self) -> Mapping[str, Any]:
        """Types, rounding and what is downloaded."""
        found: Mapping[str, Any] = self.cell.entry.get("wire", self.cell.config["wire"])
        return found

    @property
    def type(self) -> str:
        """Up and down."""
        up, down, rounding = (self.wire[key] for key in ("up", "down", "rounding"))
        return (up if up == down else f"{up} up, {down} down") + (f" {rounding}" if rounding != "nearest" else "")

    @property
    def method(self) -> str:
        """Its title."""
        return ALGORITHMS[self.cell.entry["name"]].title

    @property
    def cps_dim(self) -> int | None:
        """None where the method has no CPS."""
        found: int | None = self.cell.entry.get("cps_dim")
        return found

    @property
    def derived(self) -> bool:
        """Whether μ is derived instead of the published one."""
        return self.cell.entry.get("global_scale") == "auto"

    @property
    def setting(self) -> str:
        """The type, and where it is not the published one, μ."""
        return self.type + (", auto μ" if self.derived else "")

    @property
    def name(self) -> str:
        """All in a line."""
        width = [] if self.cps_dim is None else [f"s={self.cps_dim}"]
        return ", ".join([self.method, *width, self.setting])

    @property
    def training_bytes(self) -> float | None:
        """On the wire a round, up and down."""
        return None if self.variant is None else self.variant.row.wire_bytes

    @property
    def all_bytes(self) -> float | None:
        """With those of frames sent only to evaluate."""
        return None if self.variant is None else self.variant.row.wire_bytes + self.variant.row.evaluation_bytes

    @property
    def saving(self) -> float | None:
        """How many times fewer bytes than FedProto in float32."""
        if self.dearest is None or not self.training_bytes:
            return None
        return self.dearest.row.wire_bytes / self.training_bytes

    def words(self) -> list[str]:
        """Under `WIRE_HEADER`."""
        download = str(self.wire["download"])
        if self.variant is None or self.read_rounds is None:
            return [self.name, download, NOT_RUN, *[NOTHING] * (len(WIRE_HEADER) - 3)]
        accuracy = self.accuracies()
        return [
            self.name, download, str(self.read_rounds),
            *(spread_cell(accuracy[rule]) for rule in ("head", "global", "local")),
            signed(self.difference("global")), size(self.training_bytes or 0),
            NOTHING if self.saving is None else times(self.saving), size(self.all_bytes or 0),
        ]  # fmt: skip

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
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
            "all_bytes_per_round": self.all_bytes,
            "times_fewer_than_fedproto": self.saving,
        }


def wire_rows(records: Records) -> list[WireRow]:
    """The study's cells and those of Table 1 of the same seeds, each after every number of rounds that others have."""
    own = [_row(records, cell) for cell in cells_of(STEM)]
    seeds = sorted({seed for row in own for seed in row.seeds}) or None
    standards = [replace(_row(records, paper_cell(Address(STANDARD, name))), among=seeds) for name in METHODS]
    rows = [
        replace(row, most=most)
        for row in [*own, *standards]
        for most in _lengths(own, row.read_rounds)
    ]  # fmt: skip
    return sorted(rows, key=_place)


def any_typed(rows: Sequence[WireRow]) -> bool:
    """Whether a cell of the study itself was run."""
    return any(row.variant is not None and row.cell.address.stem == STEM for row in rows)


def wire_claims(rows: Sequence[WireRow]) -> list[Claim]:
    """As many times fewer bytes as were aimed at, without being worse than FedTGP."""
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
    return Claim(words, facts, needs if same_seed else [*needs, "the same seed of both"])


def _facts(row: WireRow, least: float) -> Iterator[Fact]:
    """One, where bytes and accuracies are known."""
    own, rival, change = row.accuracies()["global"], row.compared()["global"], row.difference("global")
    if row.dearest is None or row.saving is None or own is None or rival is None or change is None:
        return
    early = row.rounds is not None and row.rounds < row.cell.rounds
    words = (
        f"{times(row.saving)} fewer on the wire ({size(row.training_bytes or 0)} against "
        f"{size(row.dearest.row.wire_bytes)} a round; {size(row.all_bytes or 0)} with what is sent only to evaluate), "
        f"{two_digits(own.mean)} against FedTGP's {two_digits(rival.mean)} after {counted(row.rounds or 0, 'round')} "
        f"({signed(change)}, {counted(own.count, 'seed')})"
    )
    yield Fact(row.saving >= least and change >= 0, change, words, final=not early)


def _is_wanted(row: WireRow, kind: str) -> bool:
    wanted = {"up": kind, "down": kind, "download": "held", "rounding": "nearest"}
    ours = row.cell.entry["name"] == "tinyproto_ft" and row.cps_dim == CPS_DIM and not row.derived
    return ours and dict(row.wire) == wanted


def _row(records: Records, cell: PaperCell) -> WireRow:
    own, rival, dearest = (records.find(one) for one in (cell.address, RIVAL, DEAREST))
    return WireRow(variant=own, reference=rival, cell=cell, dearest=dearest)


def _lengths(own: Sequence[WireRow], longest: int | None) -> list[int | None]:
    """Numbers of rounds, up to as many as a cell has; None, which is what there is, where nothing was run."""
    found = {row.read_rounds: None for row in own if row.read_rounds is not None}
    return [rounds for rounds in found if longest is not None and rounds <= longest] or [None]


def _place(row: WireRow) -> tuple[Any, ...]:
    """Method by method, the widest type first; of one cell the longest first."""
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
