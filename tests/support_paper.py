"""Records of cells of the paper, made by hand: as small as a test wants them, with accuracies that are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paper.page.chapter import paper_chapter
from paper.page.outcomes import REFERENCE, paper_cell
from paper.printed import Address
from support_report import SAMPLES, Made
from tinyproto.data.sources import part_name
from tinyproto.report.page import Report, make_report
from tinyproto.report.runs import Run


def report_with_paper(runs: Sequence[Run]) -> Report:
    """Return the report of `python -m paper report`."""
    return make_report(runs, chapter=paper_chapter(runs))


WITHOUT_GLOBAL = ("local", "lg_fedavg", "fml", "fedkd", "feddistill")
CLIENTS = 20


@dataclass(frozen=True)
class PaperRecord:
    """One cell with one seed; at its end so many of the 200 test samples are correct by each rule."""

    stem: str
    label: str
    correct: int = 100
    seed: int = 0
    rounds: int = 300
    preset: str = REFERENCE
    payload: int = 100
    evaluation: int = 0  # bytes of a frame sent only to evaluate
    formula: int | None = 1000
    head: int | None = None  # correct by the head, where that is not the same
    local: int | None = None
    early: Mapping[int, int] = field(default_factory=dict)  # correct after so many rounds of training
    prototypes: bool = False

    def write(self, records: Path) -> Path:
        """Write it as `python -m paper` does below a folder of records."""
        place = self.stem + ("" if self.preset == REFERENCE else f"@{self.preset}")
        folder = records / place / f"{self.label}-{self.seed}-{self.rounds}"
        cell = paper_cell(Address(self.stem, self.label), self.preset)
        config: dict[str, Any] = {**cell.config, "algorithms": [cell.entry], "seeds": [self.seed]}
        config["train"] = {**config["train"], "rounds": self.rounds}
        config["data"] = {**config["data"], "root": "data"}
        made = Made(
            seeds=(self.seed,), rounds=self.rounds, clients=CLIENTS, payload={self.label: self.payload},
            evaluation={self.label: self.evaluation},
            dataset=part_name(config["data"]["name"], config["data"]["first_classes"]), formula=self.formula,
            whole=config, correct=self._correct, prototypes=self.prototypes, federation=False,
        )  # fmt: skip
        return made.write(folder)

    def _correct(self, label: str, seed: int, round_: int, client: int, rule: str) -> int | None:
        """Spread over the clients; a tenth of it before the end, unless told."""
        name = label.partition("(")[0]
        if (rule == "global" and name in WITHOUT_GLOBAL) or (rule != "head" and round_ == 1):
            return None
        total = {"head": self.head, "local": self.local}.get(rule)
        total = self.correct if total is None else total
        trained = round_ - 1
        if trained < self.rounds:
            total = self.early.get(trained, total // 10)
        return min(SAMPLES, total // CLIENTS + (client < total % CLIENTS))
