"""Run folders as a report reads them: config, results, rounds, prototypes, and the samples each client holds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors import safe_open

from tinyproto.config.load import completed
from tinyproto.errors import RunFolderError
from tinyproto.report.compare import is_real
from tinyproto.tracking.run_folder import how_to_resume, lines_kept, not_a_run, reading, run_folders

CONFIG_KEYS = ("name", "train", "evaluate", "algorithms", "seeds")
RESULT_KEYS = (
    "algorithm", "label", "seed", "dataset", "rounds", "num_clients", "preset", "accuracy", "params_per_round",
    "payload_bytes_per_round", "wire_bytes_per_round", "evaluation_bytes_per_round", "seconds_per_round",
)  # fmt: skip
RECORD_KEYS = ("label", "seed", "round", "accuracy", "traffic", "clients")


@dataclass(frozen=True)
class PrototypeValues:
    """The prototypes at the end of a cell; entries of classes that are not `present` mean nothing."""

    local: Any  # (M, K, d)
    local_present: Any  # (M, K)
    global_: Any | None  # (K, d)
    global_present: Any | None  # (K,)


@dataclass(frozen=True)
class Run:
    """One run folder, with its completed cells only."""

    folder: Path
    name: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    results: Sequence[Mapping[str, Any]]
    rounds: Mapping[tuple[str, int], Sequence[Mapping[str, Any]]]  # by label and seed
    federation: Mapping[str, Any] | None  # federation.json, which older runs do not have

    @property
    def group(self) -> str:
        """Return the experiment whose folder holds this record of one cell; otherwise the run's name."""
        inside = self.folder.resolve().parent.name
        return inside if inside.partition("@")[0] == self.config["name"] else self.name

    @property
    def real(self) -> bool:
        """Return True for a real federation, whose clients choose their own data and networks."""
        return is_real(self.results[0])

    @property
    def unfinished(self) -> int:
        """Return the number of cells without a result."""
        return len(self.config["algorithms"]) * len(self.config["seeds"]) - len(self.results)

    def entry(self, label: str) -> Mapping[str, Any]:
        """Return an algorithm of the config with all its hyper-parameters."""
        found: Mapping[str, Any] = next(entry for entry in self.config["algorithms"] if entry["label"] == label)
        return found

    def prototypes(self, label: str, seed: int) -> PrototypeValues | None:
        """Read a cell's prototypes from prototypes.safetensors; return None if the folder has none."""
        file = self.folder / "prototypes.safetensors"
        if not file.is_file():
            return None
        kinds = ("local/values", "local/present", "global/values", "global/present", "local/rows")
        with reading(file), safe_open(file, framework="numpy") as tensors:  # reads the tensors of this cell only
            names = [f"{label}/{seed}/{kind}" for kind in kinds]
            known = set(tensors.keys())
            found = [tensors.get_tensor(name) if name in known else None for name in names]
        local, local_present, global_, global_present, rows = found
        if rows is not None and local_present is not None:  # a committed record keeps only the rows that are present
            local = np.zeros((*local_present.shape, rows.shape[-1]), rows.dtype)
            local[local_present.astype(bool)] = rows
        if local is None or local_present is None:
            return None
        global_present = None if global_present is None else global_present.astype(bool)
        return PrototypeValues(local, local_present.astype(bool), global_, global_present)


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Return the run folders named: each path itself, or all run folders inside it at any depth."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(run_folders(path))
        if not inside:
            raise not_a_run(path)
        found += inside
    return list({path.resolve(): path for path in found}.values())


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Read all run folders; runs that share a name are named by their folders."""
    return _with_distinct_names([read_run(folder) for folder in folders])


def read_readable_runs(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Read the folders that can be read and return the errors of the others; raise if none can be read."""
    runs: list[Run] = []
    problems: list[RunFolderError] = []
    for folder in folders:
        try:
            runs.append(read_run(folder))
        except RunFolderError as error:
            problems.append(error)
    if problems and not runs:
        raise problems[0]
    return _with_distinct_names(runs), [str(problem) for problem in problems]


def _with_distinct_names(runs: Sequence[Run]) -> list[Run]:
    count = Counter(run.name for run in runs)
    return [replace(run, name=str(run.folder)) if count[run.name] > 1 else run for run in runs]


def read_run(folder: Path) -> Run:
    """Read everything but the prototypes, which are read when they are drawn."""
    config = _config(folder / "config.yaml")
    results = _results(folder, {entry["label"] for entry in config["algorithms"]})
    federation, environment = folder / "federation.json", folder / "environment.json"
    return Run(
        folder=folder,
        name=str(config["name"]),
        config=config,
        environment=_json(environment) if environment.is_file() else {},
        results=results,
        rounds=_rounds(folder / "rounds.jsonl", {(result["label"], result["seed"]) for result in results}),
        federation=_json(federation, ["counts"]) if federation.is_file() else None,
    )


def _config(file: Path) -> dict[str, Any]:
    with reading(file):
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    try:
        for entry in _having(values, CONFIG_KEYS)["algorithms"]:
            _having(entry, ["label"])
    except (KeyError, TypeError):
        raise RunFolderError(f"{file} is not the resolved config of a run; name a run folder") from None
    return completed(values)


def _results(folder: Path, labels: set[str]) -> list[dict[str, Any]]:
    file = folder / "summary.json"
    with reading(file):
        found = _json(file, ["results"])["results"] if file.is_file() else []
        results = [_having(result, RESULT_KEYS) for result in found]
    if not results:
        raise RunFolderError(f"{folder} has no completed cell yet; resume it with: {how_to_resume(folder)}")
    for result in results:
        if result["label"] not in labels:
            raise RunFolderError(f"{file} has a result of {result['label']!r}, which is not in the config beside it")
    return results


def _rounds(file: Path, cells: set[tuple[str, int]]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Return the records of cells; a last line without an end was cut off when the run was killed."""
    rounds: dict[tuple[str, int], list[dict[str, Any]]] = {cell: [] for cell in sorted(cells)}
    with reading(file):
        *lines, _rest = lines_kept(file).decode("utf-8").split("\n")
        records = [_having(json.loads(line), RECORD_KEYS) for line in lines]
    for record in records:
        if (record["label"], record["seed"]) in cells:
            rounds[record["label"], record["seed"]].append(record)
    for (label, seed), found in rounds.items():
        if not found:
            raise RunFolderError(f"{file} has no round of {label}, seed {seed}, although summary.json has its result")
    return rounds


def _json(file: Path, keys: Sequence[str] = ()) -> dict[str, Any]:
    with reading(file):
        return _having(json.loads(file.read_text(encoding="utf-8")), keys)


def _having(value: Any, keys: Sequence[str]) -> dict[str, Any]:
    """Return an object with these keys; raise KeyError if one is missing, TypeError if it is no object."""
    if not isinstance(value, dict):
        raise TypeError("an object is expected")
    for key in keys:
        value[key]
    return value
