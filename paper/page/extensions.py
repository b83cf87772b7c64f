"""What goes beyond the paper, from the same records: types on the wire, a scale that needs no search, 100 classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paper.page.auto_scale import AUTO_HEADER, Search, any_derived, searches
from paper.page.claims import Claim
from paper.page.first_classes import FIRST_HEADER, FirstRow, any_of_the_first, first_rows
from paper.page.records import Records
from paper.page.wire_figures import wire_figures
from paper.page.wire_types import WIRE_HEADER, WireRow, any_typed, wire_claims, wire_rows
from tinyproto.report import html
from tinyproto.report.figures import Figure

TITLE, WIRE_TITLE, AUTO_TITLE = "Beyond the paper", "Types on the wire", "A scale that needs no search"
WIRE_WORDS = (
    "CIFAR-100, preset reference. Accuracy in %, best of as many rounds as the row says, of the same seeds as FedTGP; "
    "Δ: global points over FedTGP in float32 after as many rounds. Bytes are whole frames as measured, all clients, up "
    "and down: “training” is what a round of training sends, “fewer” how many times FedProto in float32 sends that, "
    "“with evaluation” adds the frames that bring all classes to clients that train on those they hold. Rows in "
    "float32 with all classes are those of Table 1."
)
AUTO_WORDS = (
    "With global_scale: auto the server derives μ from the counts of the hello; each row below it has a constant "
    "instead, and nothing else differs. Accuracy in %, after as many rounds: the best with the preset reference, the "
    "mean of the last 10 evaluations with sound. As good is what lies no further below the best constant than seeds of "
    "one cell lie apart; where no cell has a second seed, the difference is told and nothing decided."
)
FIRST_TITLE = "The first 100 classes of Tiny-ImageNet, of which the paper has all 200"
FIRST_WORDS = (
    "The methods of Table 1 on 100 classes, the first by sorted wnid, with all their 55 000 images; preset reference. "
    "The paper prints nothing that these numbers could be held against. Accuracy in %, best of all rounds: ours by "
    "nearest global prototype, of methods without them by head; then by each rule. Δ Local: points over Local's head, "
    "after as many rounds and of the same seeds. Parameters are those of the paper's formula; payload and wire are "
    "bytes a round as measured, up and down, all clients."
)
FIRST_MISSING = "Not run yet: `tinyproto reproduce tiny-imagenet-100` plays it."
WIRE_MISSING = "Not run yet: `tinyproto reproduce bytes` plays it."
AUTO_MISSING = "Not run yet: `tinyproto reproduce auto` plays it."


@dataclass(frozen=True)
class Beyond:
    """Everything that was found of it."""

    wire: Sequence[WireRow]
    searches: Sequence[Search]
    first: Sequence[FirstRow]
    claims: Sequence[Claim]
    figures: Sequence[Figure]

    @property
    def wire_cells(self) -> list[list[str]]:
        """Under `WIRE_HEADER`; none where no cell of the study was run."""
        return [row.words() for row in self.wire] if any_typed(self.wire) else []

    @property
    def auto_cells(self) -> list[list[str]]:
        """Under `AUTO_HEADER`; none where no cell has a derived scale."""
        return [cells for search in self.searches for cells in search.rows()] if any_derived(self.searches) else []

    @property
    def first_cells(self) -> list[list[str]]:
        """Under `FIRST_HEADER`: every method, run or not."""
        return [row.words() for row in self.first]

    @property
    def first_words(self) -> str:
        """What the table has, and whether it is still empty."""
        return FIRST_WORDS if any_of_the_first(self.first) else f"{FIRST_WORDS} {FIRST_MISSING}"

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "claims": [claim.plain() for claim in self.claims],
            "bytes": [row.plain() for row in self.wire],
            "auto": [search.plain() for search in self.searches],
            "tiny_imagenet_100": [row.plain() for row in self.first],
            "figures": [figure.slug for figure in self.figures],
        }


def go_beyond(records: Records) -> Beyond:
    """All studies; cells that were not run are there, empty."""
    rows, found = wire_rows(records), searches(records)
    claims = [*wire_claims(rows), *(search.claim() for search in found)]
    return Beyond(rows, found, first_rows(records), claims, wire_figures(records, rows))


def as_html(beyond: Beyond) -> Iterator[str]:
    """The verdicts first, then each study."""
    yield html.element("h2", TITLE)
    rows = [[claim.words, claim.tally, claim.evidence] for claim in beyond.claims]
    yield html.element("div", html.table(["aim", "verdict", "numbers"], rows), class_="told")
    yield html.element("h3", WIRE_TITLE)
    if beyond.figures:
        yield html.element("div", "".join(map(html.figure, beyond.figures)), class_="figures")
    yield from _study(WIRE_WORDS, WIRE_HEADER, beyond.wire_cells, WIRE_MISSING)
    yield html.element("h3", AUTO_TITLE)
    yield from _study(AUTO_WORDS, AUTO_HEADER, beyond.auto_cells, AUTO_MISSING)
    yield html.element("h3", FIRST_TITLE)
    yield html.paragraph(beyond.first_words, "quiet")
    yield html.table(FIRST_HEADER, beyond.first_cells)


def _study(words: str, header: Sequence[str], cells: Sequence[Sequence[str]], missing: str) -> Iterator[str]:
    if cells:
        yield html.paragraph(words, "quiet")
        yield html.table(header, cells)
    else:
        yield html.paragraph(missing)
