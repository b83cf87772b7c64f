"""Which cell of the paper a record is: by its resolved config, less what does not change numbers.

Pure functions over resolved configs as plain values, so that a run folder's config.yaml can be asked as it lies there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paper.experiments import PaperConfig
from paper.printed import Address
from tinyproto.config.algorithms import FROM_PROTOTYPES
from tinyproto.config.load import completed, completed_entry, parse_config
from tinyproto.data.sources import part_name

PUT_ASIDE: Mapping[str, tuple[str, ...]] = {
    "": ("name", "seeds", "algorithms", "checkpoint", "keep_models"),
    "data": ("root", "cache", "first_classes"),
    "prototypes": FROM_PROTOTYPES,
    "train": ("rounds", "trainer", "workers", "device", "client_memory", "parallel_cells", "max_left_out"),
}
"""Keys that do not tell cells apart, by section.

Rounds are for the reader to look at, every entry that has CPS carries its own keys of `prototypes`, and how much there
is of a dataset is told by the name that it has in results.
"""


@dataclass(frozen=True)
class PaperCell:
    """One algorithm entry of a config of the paper, to be played with each of some seeds."""

    paper: PaperConfig
    config: Mapping[str, Any]  # resolved
    entry: Mapping[str, Any]

    @property
    def stem(self) -> str:
        """The experiment it is part of."""
        return self.paper.stem

    @property
    def label(self) -> str:
        """The entry's name within the experiment."""
        return str(self.entry["label"])

    @property
    def address(self) -> Address:
        """Where it stands among the paper's experiments."""
        return Address(self.stem, self.label)

    @property
    def rounds(self) -> int:
        """How many the config asks for."""
        return int(self.config["train"]["rounds"])

    @property
    def key(self) -> str:
        """What records of it have in common."""
        return cell_key(self.config, self.entry)


def cell_key(config: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """A canonical text of what decides a cell's numbers, its seed and its number of rounds aside."""
    whole = completed(config)
    return record_key(whole, entry, part_name(whole["data"]["name"], whole["data"]["first_classes"]))


def record_key(config: Mapping[str, Any], entry: Mapping[str, Any], dataset: str) -> str:
    """The key of what was played: that of the cell, if it was played on as much of its dataset as the cell is."""
    whole, own = completed(config), completed_entry(entry)
    kept = {section: _kept(section, value) for section, value in _without(whole, "").items()}
    algorithm = {key: value for key, value in own.items() if key not in ("label", "wire")}
    told = {"dataset": dataset, "wire": own.get("wire", whole["wire"]), "algorithm": algorithm}
    return json.dumps({**kept, **told}, sort_keys=True)


def paper_cells(paper: PaperConfig, preset: str | None = None) -> list[PaperCell]:
    """The entries of an experiment in order, all keys decided; with another preset where one is named."""
    values = dict(paper.values) if preset is None else {**paper.values, "preset": preset}
    config = parse_config(values, paper.stem).resolved()
    return [PaperCell(paper, config, entry) for entry in config["algorithms"]]


def _kept(section: str, value: Any) -> Any:
    return _without(value, section) if isinstance(value, Mapping) else value


def _without(values: Mapping[str, Any], section: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in PUT_ASIDE.get(section, ())}
