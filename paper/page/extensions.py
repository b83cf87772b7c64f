"""Studies that extend the paper, from the same records: wire types, a derived scale, 100 classes, other settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paper.page.auto_scale import AUTO_HEADER, Search, any_derived, searches
from paper.page.frames import explained
from paper.page.other_settings import (
    PARTITIONS_HEADER,
    PARTITIONS_TARGET,
    PARTITIONS_TITLE,
    PARTITIONS_WORDS,
    SCRIPT_HEADER,
    SCRIPT_STEM,
    SCRIPT_TITLE,
    SCRIPT_WORDS,
    OverLocal,
    PartitionRow,
    ScriptRow,
    any_own,
    partition_rows,
    script_rows,
)
from paper.page.outcomes import Compared, Records, cells_of, method_name
from paper.page.tables import NOT_RUN, NOTHING, signed, spread_cell
from paper.page.verdicts import Claim
from paper.page.wire_types import WIRE_HEADER, WireRow, any_typed, wire_claims, wire_figures, wire_rows
from paper.printed import Address
from tinyproto.engine.measure import RULES
from tinyproto.report.figures import Figure
from tinyproto.report.words import counted, number, size

TITLE = "Extensions"
WIRE_TITLE, AUTO_TITLE = "Types on the wire", "A scale that needs no search"
WIRE_WORDS = (
    "CIFAR-100, preset reference. Accuracy in % is the best of the first rounds, over the same seeds as FedTGP. "
    "Δ: points over FedTGP in float32 by global prototypes, after as many rounds. Bytes are whole frames as measured, "
    "all clients, up and down. “training”: bytes of a training round. “fewer”: FedProto's bytes in float32, in frames "
    "of the same version, divided by these. “with evaluation” adds the frames that bring all classes to clients that "
    "download only those they hold. Rows in float32 with all classes are those of Table 1. Which classes a client "
    "downloads changes no training, so the two rows of s=50 in float32 repeat one training."
)
AUTO_WORDS = (
    "With global_scale: auto the server derives μ from the clients' counts; each row below it has a constant μ, and "
    "nothing else differs. Accuracy in %, after the same number of rounds: the best with the preset reference, the "
    "mean of the last 10 evaluations with sound. ± is the sample deviation (n − 1) over seeds. The derived scale is as "
    "good if it is no further below the best constant tried than the seeds of one cell differ; without a second seed "
    "the claim is undecided."
)
FIRST_TITLE = "The first 100 classes of Tiny-ImageNet"
FIRST_WORDS = (
    "The methods of Table 1 on the first 100 of 200 classes by sorted wnid, with all their 55 000 images; preset "
    "reference. The paper has no numbers for it. Accuracy in %, best of all rounds: “ours” by the nearest global "
    "prototype, without global prototypes by the head; then by each rule. Δ Local: points over Local's head, after as "
    "many rounds and over the same seeds. Parameters are those of the paper's formula; payload and wire are measured "
    "bytes a round, up and down, all clients."
)
NOT_RUN_YET = "Not run yet: `python -m paper {}` runs it."

FIRST_STEM = "tiny_imagenet_100"
FIRST_HEADER = (
    "algorithm", "ours", "Δ Local", "seeds", "head", "global", "local", "params, formula", "payload", "wire",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FirstRow(OverLocal):
    """One method on the first classes."""

    def words(self) -> list[str]:
        """Return the cells of the row, under `FIRST_HEADER`."""
        name = method_name(self.cell.entry)
        if self.variant is None:
            return [name, NOT_RUN, *[NOTHING] * (len(FIRST_HEADER) - 2)]
        row, ours = self.variant.row, spread_cell(self.variant.accuracy)
        return [
            name,
            f"{ours} ({counted(self.variant.rounds, 'round')})" if self.variant.shortened else ours,
            signed(self.gain),
            str(len(self.variant.seeds)),
            *(spread_cell(self.variant.accuracies[rule]) for rule in RULES),
            NOTHING if row.formula_parameters is None else number(row.formula_parameters),
            size(row.payload_bytes),
            self.variant.wire_words,
        ]


def first_rows(records: Records) -> list[FirstRow]:
    """Return a row for each of the nine methods, run or not."""
    local = records.find(Address(FIRST_STEM, "local"))
    return [
        FirstRow(
            variant=records.find(cell.address),
            reference=local,
            statistic=cell.config["evaluate"]["statistic"],
            cell=cell,
        )
        for cell in cells_of(FIRST_STEM)
    ]


@dataclass(frozen=True)
class Study:
    """One study as a table with a title, an explanation and figures."""

    title: str
    words: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]  # empty: not run
    figures: Sequence[Figure] = ()


@dataclass(frozen=True)
class Extensions:
    """The results of all studies."""

    wire: Sequence[WireRow]
    searches: Sequence[Search]
    first: Sequence[FirstRow]
    scripts: Sequence[ScriptRow]
    partitions: Sequence[PartitionRow]
    claims: Sequence[Claim]
    figures: Sequence[Figure]

    def studies(self) -> Iterator[Study]:
        """Yield each study; of the first classes, the table is shown even if none was run."""
        if any_typed(self.wire):
            rows = [row.words() for row in self.wire]
            yield Study(WIRE_TITLE, WIRE_WORDS + _versions(self.wire), WIRE_HEADER, rows, self.figures)
        else:
            yield Study(WIRE_TITLE, NOT_RUN_YET.format("bytes"), WIRE_HEADER, [])
        if any_derived(self.searches):
            yield Study(AUTO_TITLE, AUTO_WORDS, AUTO_HEADER, [row for one in self.searches for row in one.rows()])
        else:
            yield Study(AUTO_TITLE, NOT_RUN_YET.format("auto"), AUTO_HEADER, [])
        was_run = any(row.variant is not None for row in self.first)
        missing = "" if was_run else f" {NOT_RUN_YET.format('tiny-imagenet-100')}"
        words = FIRST_WORDS + _versions(self.first) + missing
        yield Study(FIRST_TITLE, words, FIRST_HEADER, [row.words() for row in self.first])
        if any_own(self.scripts):
            yield Study(SCRIPT_TITLE, SCRIPT_WORDS, SCRIPT_HEADER, [row.words() for row in self.scripts])
        else:
            yield Study(SCRIPT_TITLE, NOT_RUN_YET.format(f"published --configs {SCRIPT_STEM}"), SCRIPT_HEADER, [])
        if any_own(self.partitions):
            rows = [row.words() for row in self.partitions]
            yield Study(PARTITIONS_TITLE, PARTITIONS_WORDS, PARTITIONS_HEADER, rows)
        else:
            yield Study(PARTITIONS_TITLE, NOT_RUN_YET.format(PARTITIONS_TARGET), PARTITIONS_HEADER, [])

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "claims": [claim.plain() for claim in self.claims],
            "bytes": [row.plain() for row in self.wire],
            "auto": [search.plain() for search in self.searches],
            "tiny_imagenet_100": [row.plain() for row in self.first],
            "clients50": [row.plain() for row in self.scripts],
            "partitions": [row.plain() for row in self.partitions],
            "figures": [figure.slug for figure in self.figures],
        }


def _versions(rows: Sequence[Compared]) -> str:
    return explained(row.variant.frame_version for row in rows if row.variant is not None)


def extensions(records: Records) -> Extensions:
    """Return all studies; cells that were not run are included, empty."""
    rows, found = wire_rows(records), searches(records)
    claims = [*wire_claims(rows), *(search.claim() for search in found)]
    return Extensions(
        rows, found, first_rows(records), script_rows(records), partition_rows(records), claims,
        wire_figures(records, rows),
    )  # fmt: skip
