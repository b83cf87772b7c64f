"""Records: finished cells in run folders, found wherever they are, and written small enough to commit."""

from __future__ import annotations

import gzip
import json
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from torch import Tensor

from paper.experiments import PaperConfig, experiments
from paper.matching import group_name, paper_cells, record_key
from tinyproto.config.presets import PRESETS
from tinyproto.errors import RunFolderError, one_line
from tinyproto.tracking.run_folder import PACKED, RunFolder, cell_name, lines_kept, run_folders

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Finished:
    """A finished cell, in a run folder or in a cell's folder inside one."""

    run: Path
    folder: Path  # holds its rounds
    config: Mapping[str, Any]  # resolved, of the run
    result: Mapping[str, Any]

    @property
    def entry(self) -> Mapping[str, Any]:
        """Return its algorithm with all hyper-parameters."""
        found: Mapping[str, Any] = next(
            entry for entry in self.config["algorithms"] if entry["label"] == self.result["label"]
        )
        return found

    @property
    def key(self) -> str:
        """Return the key that all records of the same cell share."""
        return record_key(self.config, self.entry, str(self.result["dataset"]))

    @property
    def seed(self) -> int:
        """Return its seed."""
        return int(self.result["seed"])

    @property
    def rounds(self) -> int:
        """Return the number of rounds it ran."""
        return int(self.result["rounds"])

    @property
    def identity(self) -> tuple[str, int, int]:
        """Return key, seed and rounds; a planned cell with the same identity is finished."""
        return self.key, self.seed, self.rounds

    @property
    def has_prototypes(self) -> bool:
        """Return True if its prototypes were kept."""
        return (self.folder / "prototypes.safetensors").is_file()

    def lines(self, name: str) -> bytes:
        """Return this cell's lines of one of the folder's files, unchanged."""
        wanted = (self.result["label"], self.result["seed"])
        kept = []
        for line in _read(self.folder / name, lines_kept).splitlines(keepends=True):
            values = json.loads(line)
            if (values["label"], values["seed"]) == wanted:
                kept.append(line)
        return b"".join(kept)

    def environment(self) -> bytes:
        """Return the description of the machine and versions it ran on."""
        return _read(self.run / "environment.json", Path.read_bytes)


def find_finished(root: Path) -> list[Finished]:
    """Return the finished cells of every run folder below a folder, skipping folders that cannot be read."""
    found: list[Finished] = []
    for folder in run_folders(root):
        with suppress(RunFolderError):
            found += finished_cells(folder)
    return found


def finished_cells(run: Path) -> list[Finished]:
    """Return the finished cells of one run folder, including those of a run in progress."""
    config = _resolved(RunFolder.open(run).path / "config.yaml")
    labels = {entry["label"] for entry in config["algorithms"]}
    found: dict[tuple[str, int], Finished] = {}
    for folder in (run, *sorted((run / "cells").glob("*"))):
        for result in _results(folder):
            if result["label"] in labels:  # after a failure, cells are in the run's files and still in their own
                found.setdefault((result["label"], result["seed"]), Finished(run, folder, config, result))
    return list(found.values())


def by_cell(found: Sequence[Finished]) -> dict[tuple[str, int, int], Finished]:
    """Return finished cells by identity; the first of several counts."""
    return {one.identity: one for one in reversed(found)}


def started_config(folder: Path) -> dict[str, Any] | None:
    """Return the config that a cell in progress was started with; None if it was not started."""
    return _resolved(folder / "config.yaml") if (folder / "config.yaml").is_file() else None


def rounds_written(folder: Path) -> int:
    """Return the number of rounds that a cell in progress has written; it resumes from its newest checkpoint."""
    file = folder / "rounds.jsonl"
    return file.read_bytes().count(b"\n") if file.is_file() else 0


# Prototypes that the paper draws: of a few classes over all clients, of one client over all classes, and global ones.

DRAWN_SEED = 0
"""Only this seed is drawn, unless another is requested."""


class Drawn(NamedTuple):
    """The classes drawn over all clients, and the client drawn over all classes."""

    classes: tuple[int, ...]
    client: int


DRAWN: Mapping[str, Drawn] = {"cifar10": Drawn((2, 4), 10), "cifar100": Drawn((22,), 8)}
"""By dataset, from the paper's captions and file names."""


def drawn_of(target: str, dataset: str, entry: Mapping[str, Any], seed: int, *, any_seed: bool = False) -> Drawn | None:
    """Return what is drawn of a cell: FedProto, and TinyProto-FP with s=50 and s=250; None for other cells."""
    plain = target == "table1" and entry["name"] == "fedproto"
    sparse = target in ("table1", "appendix") and entry["name"] == "tinyproto_fp" and entry["cps_dim"] in (50, 250)
    return DRAWN.get(dataset) if (plain or sparse) and (any_seed or seed == DRAWN_SEED) else None


def drawn_only(tensors: Mapping[str, Tensor], prefix: str, drawn: Drawn) -> dict[str, Tensor]:
    """Return the rows of a cell's prototypes that are drawn: `local/present` marks the places of `local/rows`.

    The prototypes of a record are returned unchanged.
    """
    if f"{prefix}/local/rows" in tensors:
        return {name: values for name, values in tensors.items() if name.startswith(f"{prefix}/")}
    present = tensors[f"{prefix}/local/present"].bool()  # (M, K)
    wanted = torch.zeros_like(present)
    wanted[:, list(drawn.classes)] = True
    wanted[drawn.client] = True
    kept = present & wanted
    found = {
        f"{prefix}/local/rows": tensors[f"{prefix}/local/values"][kept],  # (n, d)
        f"{prefix}/local/present": kept.to(torch.uint8),
    }
    globals_ = [f"{prefix}/global/{what}" for what in ("values", "present")]
    return found | {name: tensors[name] for name in globals_ if name in tensors}


# Writing records


def write_record(target: Path, finished: Finished, name: str, drawn: Drawn | None) -> None:
    """Write a cell as a run folder of its own, small enough to commit; it appears complete or not at all."""
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
    """Rename a finished folder; an earlier record is removed only once the new one is complete."""
    if target.exists():
        old = target.with_name(f".{target.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
        partial.rename(target)
        shutil.rmtree(old)
    else:
        partial.rename(target)


class Imported(NamedTuple):
    """A finished cell of a run, and its record."""

    finished: Finished
    record: Path | None  # None: not a cell of the paper
    written: bool  # False: the record existed already


def import_run(run: Path, records: Path) -> list[Imported]:
    """Write records of a run's finished cells that are cells of the paper and have no record yet."""
    known = _known_cells()
    existing = by_cell([one for one in find_finished(records) if one.run.resolve() != run.resolve()])
    return [_import_cell(finished, known.get(finished.key, []), existing, records) for finished in finished_cells(run)]


def _import_cell(
    finished: Finished, meant: list[tuple[PaperConfig, str]], existing: dict[tuple[str, int, int], Finished],
    records: Path,
) -> Imported:  # fmt: skip
    if not meant:
        return Imported(finished, None, False)
    earlier = existing.get(finished.identity)
    preset = str(finished.config["preset"])
    paper, label = min(meant, key=lambda one: group_name(one[0], preset, finished.rounds).count("@"))
    drawn = drawn_of(paper.target, paper.values["data"]["name"], finished.entry, finished.seed)
    if earlier is not None and (earlier.has_prototypes or drawn is None or not finished.has_prototypes):
        return Imported(finished, earlier.run, False)
    record = records / group_name(paper, preset, finished.rounds) / cell_name(label, finished.seed)
    write_record(record, finished, paper.stem, drawn)
    return Imported(finished, record, True)


def _known_cells() -> dict[str, list[tuple[PaperConfig, str]]]:
    """Return the config and label of every cell of the paper by key, with every preset."""
    found: dict[str, list[tuple[PaperConfig, str]]] = {}
    for paper in experiments():
        for preset in PRESETS:
            for cell in paper_cells(paper, preset):
                found.setdefault(cell.key, []).append((paper, cell.label))
    return found


# Reading files of run folders


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
        raise RunFolderError(f"{file} was not written by a run: a result has no label, seed or rounds")
    return results


def _read(file: Path, read: Callable[[Path], bytes]) -> bytes:
    try:
        return read(file)
    except (OSError, EOFError, zlib.error) as error:
        raise RunFolderError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from error
