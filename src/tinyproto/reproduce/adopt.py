"""Runs made with `tinyproto run` as records: their finished cells, as far as they are cells of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tinyproto.config.presets import PRESETS
from tinyproto.reproduce.experiments import PaperConfig, experiments
from tinyproto.reproduce.heatmaps import drawn_of
from tinyproto.reproduce.matching import paper_cells
from tinyproto.reproduce.plan import stem_of
from tinyproto.reproduce.records import FOLDER, Finished, by_cell, find_finished, finished_cells, write_record
from tinyproto.tracking.run_folder import cell_name


@dataclass(frozen=True)
class Adoption:
    """What became of a finished cell of a run."""

    finished: Finished
    record: Path | None  # None where it is no cell of the paper
    written: bool  # or the record was there already


def adopt(run: Path, results: Path) -> list[Adoption]:
    """Write the records of a run's finished cells that are cells of the paper and have none yet."""
    known = _paper_cells()
    there = by_cell(find_finished(results / FOLDER))
    return [_adopt_cell(finished, known.get(finished.key, []), there, results) for finished in finished_cells(run)]


def _adopt_cell(
    finished: Finished, meant: list[tuple[PaperConfig, str]], there: dict[tuple[str, int, int], Finished], results: Path
) -> Adoption:
    if not meant:
        return Adoption(finished, None, False)
    earlier = there.get(finished.identity)
    preset = str(finished.config["preset"])
    paper, label = min(meant, key=lambda one: stem_of(one[0], preset, finished.rounds).count("@"))
    drawn = drawn_of(paper.target, paper.values["data"]["name"], finished.entry, finished.seed)
    if earlier is not None and (earlier.has_prototypes or drawn is None or not finished.has_prototypes):
        return Adoption(finished, earlier.run, False)
    stem = stem_of(paper, preset, finished.rounds)
    record = results / FOLDER / stem / cell_name(label, finished.seed)
    write_record(record, finished, paper.stem, drawn)
    return Adoption(finished, record, True)


def _paper_cells() -> dict[str, list[tuple[PaperConfig, str]]]:
    """Every cell of the paper by its key, also as another preset has it: its config and its label there."""
    found: dict[str, list[tuple[PaperConfig, str]]] = {}
    for paper in experiments():
        for preset in PRESETS:
            for cell in paper_cells(paper, preset):
                found.setdefault(cell.key, []).append((paper, cell.label))
    return found
