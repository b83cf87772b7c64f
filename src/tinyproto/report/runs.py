"""Run folders as a report reads them: what was run, what came out, who held what."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import yaml
from safetensors.numpy import load_file

from tinyproto.errors import RunFolderError, one_line


@dataclass(frozen=True)
class PrototypeValues:
    """A cell's prototypes as it ended; entries of classes that are not `present` mean nothing."""

    local: Any  # (M, K, d)
    local_present: Any  # (M, K)
    global_: Any | None  # (K, d)
    global_present: Any | None  # (K,)


@dataclass(frozen=True)
class Run:
    """One run folder; cells that were not finished are left out."""

    folder: Path
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    results: Sequence[Mapping[str, Any]]
    rounds: Mapping[tuple[str, int], Sequence[Mapping[str, Any]]]  # by label and seed
    federation: Mapping[str, Any] | None  # federation.json, which older runs do not have

    @property
    def name(self) -> str:
        """What the config calls it."""
        return str(self.config["name"])

    @property
    def unfinished(self) -> int:
        """How many cells of its grid are not there yet."""
        return len(self.config["algorithms"]) * len(self.config["seeds"]) - len(self.results)

    def entry(self, label: str) -> Mapping[str, Any]:
        """An algorithm of the config, with all its hyper-parameters."""
        found: Mapping[str, Any] = next(entry for entry in self.config["algorithms"] if entry["label"] == label)
        return found

    def prototypes(self, label: str, seed: int) -> PrototypeValues | None:
        """From prototypes.safetensors; None where the file is not there (records under results/ leave it out)."""
        file = self.folder / "prototypes.safetensors"
        if not file.is_file():
            return None
        try:
            tensors = load_file(file)
        except (OSError, safetensors.SafetensorError) as error:
            raise RunFolderError(f"{file} cannot be read: {one_line(error)}") from error
        prefix = f"{label}/{seed}"
        if f"{prefix}/local/values" not in tensors:
            return None
        return PrototypeValues(
            local=tensors[f"{prefix}/local/values"],
            local_present=tensors[f"{prefix}/local/present"].astype(bool),
            global_=tensors.get(f"{prefix}/global/values"),
            global_present=_as_bool(tensors.get(f"{prefix}/global/present")),
        )


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run folders meant: each path itself, or those directly inside it."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(config.parent for config in path.glob("*/config.yaml")) if path.is_dir() else []
        if (path / "config.yaml").is_file():
            found.append(path)
        elif inside:
            found += inside
        else:
            raise RunFolderError(f"{path} is not a run folder: there is no config.yaml in it")
    return list({path.resolve(): path for path in found}.values())


def read_run(folder: Path) -> Run:
    """Everything but the prototypes, which are read when they are drawn."""
    config = _yaml(folder / "config.yaml")
    summary = _json(folder / "summary.json") if (folder / "summary.json").is_file() else {}
    results = summary.get("results", [])
    if not results:
        raise RunFolderError(f"{folder} has no finished cell yet; `tinyproto resume {folder}` goes on with it")
    done = {(result["label"], result["seed"]) for result in results}
    rounds: dict[tuple[str, int], list[dict[str, Any]]] = {cell: [] for cell in done}
    for record in _json_lines(folder / "rounds.jsonl"):
        if (record["label"], record["seed"]) in done:
            rounds[record["label"], record["seed"]].append(record)
    federation, environment = folder / "federation.json", folder / "environment.json"
    return Run(
        folder=folder,
        config=config,
        environment=_json(environment) if environment.is_file() else {},
        results=results,
        rounds=rounds,
        federation=_json(federation) if federation.is_file() else None,
    )


def _yaml(file: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RunFolderError(f"{file} cannot be read: {one_line(error)}") from error
    labelled = isinstance(values, dict) and all(
        isinstance(entry, dict) and "label" in entry for entry in values.get("algorithms") or [None]
    )
    if not labelled:
        raise RunFolderError(f"{file} is not the resolved config of a run; a report is made of run folders")
    resolved: dict[str, Any] = values
    return resolved


def _json(file: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{file} cannot be read: {one_line(error)}") from error
    return value


def _json_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Whole lines; the rest of a line that a killed run was writing is passed over."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{file} cannot be read: {one_line(error)}") from error
    *lines, _rest = text.split("\n")
    for number, line in enumerate(lines, 1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise RunFolderError(f"{file}, line {number}: {one_line(error)}") from error


def _as_bool(values: Any) -> Any:
    return None if values is None else values.astype(bool)
