"""The cells of the paper, and the key by which a run is recognised as one of them.

A key is a canonical text of a resolved config without the keys that do not change results. It is made from plain
values, so a run folder's config.yaml gives a key as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paper.experiments import PaperConfig
from paper.printed import Address
from tinyproto.config import Config, parse_config
from tinyproto.config.algorithms import FROM_PROTOTYPES
from tinyproto.config.load import completed, completed_entry
from tinyproto.data.sources import part_name
from tinyproto.tracking.run_folder import cell_name

IGNORED: Mapping[str, tuple[str, ...]] = {
    "": ("name", "seeds", "algorithms", "checkpoint", "keep_models"),
    "data": ("root", "cache", "first_classes"),
    "prototypes": FROM_PROTOTYPES,
    "train": ("rounds", "trainer", "workers", "device", "client_memory", "parallel_cells", "max_left_out"),
}
"""Keys that a cell's key leaves out, by section.

Rounds are compared separately, each entry with CPS carries its own keys of `prototypes`, and the dataset's name in the
results tells how much of it was used.
"""


@dataclass(frozen=True)
class PaperCell:
    """One algorithm of a config of the paper, to be run with each of its seeds; a planned cell has one seed."""

    paper: PaperConfig
    config: Mapping[str, Any]  # resolved, of all algorithms of the config
    entry: Mapping[str, Any]  # the algorithm with all hyper-parameters
    seeds: tuple[int, ...]

    @property
    def stem(self) -> str:
        """Return the name of its config."""
        return self.paper.stem

    @property
    def label(self) -> str:
        """Return the entry's name within its config."""
        return str(self.entry["label"])

    @property
    def address(self) -> Address:
        """Return its config and label."""
        return Address(self.stem, self.label)

    @property
    def seed(self) -> int:
        """Return the seed of a planned cell."""
        return self.seeds[0]

    @property
    def rounds(self) -> int:
        """Return the number of rounds that its config asks for."""
        return int(self.config["train"]["rounds"])

    @cached_property
    def key(self) -> str:
        """Return what all records of it have in common, whatever their seed and number of rounds."""
        return cell_key(self.config, self.entry)

    @property
    def identity(self) -> tuple[str, int, int]:
        """Return the key, seed and rounds that a record of this planned cell must have."""
        return self.key, self.seed, self.rounds

    @cached_property
    def parsed(self) -> Config:
        """Return the config of this cell alone."""
        return parse_config({**self.config, "algorithms": [dict(self.entry)], "seeds": list(self.seeds)}, self.stem)

    @property
    def title(self) -> str:
        """Return the algorithm's name for people."""
        return self.parsed.algorithms[0].title

    @property
    def group(self) -> str:
        """Return the config's name, with preset and rounds if they differ from the config's."""
        return group_name(self.paper, self.config["preset"], self.rounds)

    @property
    def place(self) -> str:
        """Return the folder of a planned cell, relative to that of all records or of all cells in progress."""
        return f"{self.group}/{cell_name(self.label, self.seed)}"


def group_name(paper: PaperConfig, preset: str, rounds: int) -> str:
    """Return the config's name, with preset and rounds if they differ: `table1_cifar100@sound@60rounds`."""
    other = f"@{preset}" if preset != paper.values["preset"] else ""
    shortened = f"@{rounds}rounds" if rounds != paper.values["train"]["rounds"] else ""
    return f"{paper.stem}{other}{shortened}"


def cell_key(config: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """Return a canonical text of everything that determines a cell's results, except seed and rounds."""
    full = completed(config)
    return record_key(full, entry, part_name(full["data"]["name"], full["data"]["first_classes"]))


def record_key(config: Mapping[str, Any], entry: Mapping[str, Any], dataset: str) -> str:
    """Return the key of a run; it is the cell's key if the run used as much of the dataset as the cell does."""
    full, algorithm = completed(config), completed_entry(entry)
    kept = {section: _kept(section, value) for section, value in _without(full, "").items()}
    wire = algorithm.get("wire", full["wire"])
    algorithm = {key: value for key, value in algorithm.items() if key not in ("label", "wire")}
    return json.dumps({**kept, "dataset": dataset, "wire": wire, "algorithm": algorithm}, sort_keys=True)


def paper_cells(paper: PaperConfig, preset: str | None = None) -> list[PaperCell]:
    """Return the cells of a config in order, all keys resolved; with another preset if one is named."""
    values = dict(paper.values) if preset is None else {**paper.values, "preset": preset}
    config = parse_config(values, paper.stem).resolved()
    return [PaperCell(paper, config, entry, tuple(config["seeds"])) for entry in config["algorithms"]]


def _kept(section: str, value: Any) -> Any:
    return _without(value, section) if isinstance(value, Mapping) else value


def _without(values: Mapping[str, Any], section: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in IGNORED.get(section, ())}
