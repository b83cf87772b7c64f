"""Records: finished cells, wherever they lie under a folder, and how a cell of the paper becomes one."""

from __future__ import annotations

import gzip
import json
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from paper.experiments import PaperConfig, experiments
from paper.heatmaps import Drawn, drawn_of, drawn_only
from paper.matching import paper_cells, record_key
from paper.plan import stem_of
from tinyproto.config.presets import PRESETS
from tinyproto.errors import RunFolderError, one_line
from tinyproto.tracking.run_folder import PACKED, RunFolder, cell_name, lines_kept, run_folders

FOLDER = "reproduction"
"""Of our own records, inside the folder of all records, and of the cells under way, inside that of all runs."""

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Finished:
    """A cell that is done, in a run folder or in a cell's folder inside one."""

    run: Path
    folder: Path  # where its rounds are
    config: Mapping[str, Any]  # resolved, of the run
    result: Mapping[str, Any]

    @property
    def entry(self) -> Mapping[str, Any]:
        """Its algorithm, with all hyper-parameters."""
        found: Mapping[str, Any] = next(
            entry for entry in self.config["algorithms"] if entry["label"] == self.result["label"]
        )
        return found

    @property
    def key(self) -> str:
        """What decides its numbers, seed and rounds aside."""
        return record_key(self.config, self.entry, str(self.result["dataset"]))

    @property
    def seed(self) -> int:
        """Its seed."""
        return int(self.result["seed"])

    @property
    def rounds(self) -> int:
        """How many it was played for."""
        return int(self.result["rounds"])

    @property
    def identity(self) -> tuple[str, int, int]:
        """What tells it from other cells, as a planned one has it: its key, seed and rounds."""
        return self.key, self.seed, self.rounds

    @property
    def has_prototypes(self) -> bool:
        """Whether there are prototypes to draw."""
        return (self.folder / "prototypes.safetensors").is_file()

    def lines(self, name: str) -> bytes:
        """Of one of the folder's files, the lines that are this cell's, as they are."""
        wanted = (self.result["label"], self.result["seed"])
        kept = []
        for line in _read(self.folder / name, lines_kept).splitlines(keepends=True):
            values = json.loads(line)
            if (values["label"], values["seed"]) == wanted:
                kept.append(line)
        return b"".join(kept)

    def environment(self) -> bytes:
        """What it ran on, as the run says it."""
        return _read(self.run / "environment.json", Path.read_bytes)


def find_finished(root: Path) -> list[Finished]:
    """The finished cells of every run folder under a folder; what cannot be read is nobody's record."""
    found: list[Finished] = []
    for folder in run_folders(root):
        with suppress(RunFolderError):
            found += finished_cells(folder)
    return found


def finished_cells(run: Path) -> list[Finished]:
    """Of one run folder, be the run done or not: those in its own files, and those that wait to be added to them."""
    config = _resolved(RunFolder.open(run).path / "config.yaml")
    labels = {entry["label"] for entry in config["algorithms"]}
    found: dict[tuple[str, int], Finished] = {}
    for folder in (run, *sorted((run / "cells").glob("*"))):
        for result in _results(folder):
            if result["label"] in labels:  # after a failure, cells are in the run's files and still in their own
                found.setdefault((result["label"], result["seed"]), Finished(run, folder, config, result))
    return list(found.values())


def begun_config(folder: Path) -> dict[str, Any] | None:
    """The config that a cell under way was begun with; None where it was not begun."""
    return _resolved(folder / "config.yaml") if (folder / "config.yaml").is_file() else None


def rounds_played(folder: Path) -> int:
    """By a cell under way, as far as its file says; it goes on from its newest checkpoint."""
    file = folder / "rounds.jsonl"
    return file.read_bytes().count(b"\n") if file.is_file() else 0


def write_record(target: Path, finished: Finished, name: str, drawn: Drawn | None) -> None:
    """A cell as a run folder of its own, small enough to commit; it is there whole or not at all."""
    lines = {name: finished.lines(name) for name in ("rounds.jsonl", "timings.jsonl")}
    files = {f"{name}{PACKED}": gzip.compress(content, 9, mtime=0) for name, content in lines.items()}
    files["environment.json"] = finished.environment()
    partial = RunFolder(target.with_name(f".{target.name}.partial"))
    partial.remove()
    partial.make()
    one = {"algorithms": [dict(finished.entry)], "seeds": [finished.seed]}
    data = {**finished.config["data"], "root": "data", "cache": None}
    partial.write_config({**finished.config, "name": name, "data": data, **one})
    with partial.writing():
        for file, content in files.items():
            (partial.path / file).write_bytes(content)
    if drawn is not None and finished.has_prototypes:
        prefix = f"{finished.result['label']}/{finished.seed}"
        partial.write_prototypes(drawn_only(RunFolder(finished.folder).read_prototypes(), prefix, drawn))
    partial.write_results([dict(finished.result)])
    with partial.writing():
        _put_in_place(partial.path, target)


def _put_in_place(partial: Path, target: Path) -> None:
    """A record that was there before goes only once the new one is whole."""
    if target.exists():
        old = target.with_name(f".{target.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
        partial.rename(target)
        shutil.rmtree(old)
    else:
        partial.rename(target)


def _resolved(file: Path) -> dict[str, Any]:
    try:
        config = yaml.load(file.read_text(encoding="utf-8"), _Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RunFolderError(f"{file} cannot be read: {one_line(error)}") from error
    entries = config.get("algorithms") if isinstance(config, dict) else None
    sections = isinstance(config, dict) and all(isinstance(config.get(key), dict) for key in ("data", "train"))
    if not sections or not entries or not all(isinstance(entry, dict) and "label" in entry for entry in entries):
        raise RunFolderError(f"{file} is not the resolved config of a run")
    resolved: dict[str, Any] = config
    return resolved


def _results(folder: Path) -> Sequence[dict[str, Any]]:
    file = folder / "summary.json"
    try:
        results = RunFolder(folder).read_results()
        known = all({"label", "seed", "rounds"} <= result.keys() for result in results)
    except (TypeError, AttributeError) as error:
        raise RunFolderError(f"{file} cannot be read: {one_line(error)}") from error
    if not known:
        raise RunFolderError(f"{file} is not what a run writes: a result has no label, seed or rounds")
    return results


def _read(file: Path, read: Callable[[Path], bytes]) -> bytes:
    try:
        return read(file)
    except (OSError, EOFError, zlib.error) as error:
        raise RunFolderError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def by_cell(found: Sequence[Finished]) -> dict[tuple[str, int, int], Finished]:
    """By what tells them apart; of several, the first."""
    return {one.identity: one for one in reversed(found)}


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
