"""From a target and a part of it to cells, each a config of its own with one algorithm and one seed, in order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paper.experiments import DATASETS, PaperConfig, experiments
from paper.matching import cell_key
from paper.targets import TARGETS, Target
from tinyproto.algorithms import ALGORITHMS
from tinyproto.config import Config, parse_config
from tinyproto.config.load import overridden
from tinyproto.config.presets import PRESETS
from tinyproto.errors import ConfigError
from tinyproto.imports import unknown
from tinyproto.tracking.run_folder import cell_name

DATASET_ORDER = ("cifar100", "cifar10", "tiny_imagenet")
ALGORITHM_ORDER = (
    "fedproto", "fedtgp", "tinyproto_fp", "tinyproto_ft", "local", "lg_fedavg", "feddistill", "fml", "fedkd",
)  # fmt: skip
"""What is worth knowing first comes first."""

FREE = (
    "train.parallel_cells", "train.trainer", "train.device", "train.client_memory", "checkpoint.every_seconds",
)  # fmt: skip
"""Keys that may be overridden, because a record is the same cell of the paper whatever they are."""


@dataclass(frozen=True)
class Part:
    """What of a target is wanted, and with what changed; nothing named means all, and as the paper has it."""

    datasets: Sequence[str] = ()
    configs: Sequence[str] = ()
    algorithms: Sequence[str] = ()
    seeds: Sequence[int] = ()
    rounds: int | None = None
    preset: str | None = None
    root: str = "data"


@dataclass(frozen=True)
class PlannedCell:
    """One algorithm of one of the paper's configs, with one seed."""

    paper: PaperConfig
    config: Config  # of this cell alone

    @property
    def label(self) -> str:
        """The entry's name within its config."""
        return self.config.algorithms[0].label

    @property
    def title(self) -> str:
        """For people, within its config."""
        return self.config.algorithms[0].title

    @property
    def seed(self) -> int:
        """Its one seed."""
        return self.config.model.seeds[0]

    @property
    def rounds(self) -> int:
        """How many it is played for."""
        return self.config.model.train.rounds

    @property
    def dataset(self) -> str:
        """The images it is played on."""
        return self.config.model.data.name

    @cached_property
    def key(self) -> str:
        """What records of it have in common, whatever their seed and number of rounds."""
        resolved = self.config.resolved()
        return cell_key(resolved, resolved["algorithms"][0])

    @property
    def identity(self) -> tuple[str, int, int]:
        """What a record has to have to be of it: its key, seed and rounds."""
        return self.key, self.seed, self.rounds

    @property
    def stem(self) -> str:
        """Its config's, with what the cell has otherwise."""
        return stem_of(self.paper, self.config.model.preset, self.rounds)

    @property
    def place(self) -> str:
        """Of its folder, below that of all records or of all cells under way."""
        return f"{self.stem}/{cell_name(self.label, self.seed)}"


def stem_of(paper: PaperConfig, preset: str, rounds: int) -> str:
    """The config's stem, with preset and rounds where they are not the config's: `table1_cifar100@sound@60rounds`."""
    other = f"@{preset}" if preset != paper.values["preset"] else ""
    shortened = f"@{rounds}rounds" if rounds != paper.values["train"]["rounds"] else ""
    return f"{paper.stem}{other}{shortened}"


def plan(target: str, part: Part, overrides: Sequence[str] = ()) -> list[PlannedCell]:
    """The cells of a target, or of a part of it, in the order in which they are to be played."""
    if target not in TARGETS:
        raise ConfigError(unknown("target", target, TARGETS))
    if part.preset is not None and part.preset not in PRESETS:
        raise ConfigError(f"--preset: {unknown('preset', part.preset, PRESETS)}")
    _check_free(overrides)
    wanted = TARGETS[target]
    known = experiments()
    papers = [paper for paper in known if any(share.takes_config(paper) for share in wanted.shares)]
    _check_known("--dataset", target, part.datasets, [paper.values["data"]["name"] for paper in papers], DATASETS)
    _check_known("--configs", target, part.configs, [paper.stem for paper in papers], [paper.stem for paper in known])
    found = [cell for paper in papers for cell in _cells(paper, wanted, part, overrides)]
    names = [cell.config.algorithms[0].spec.name for cell in found]
    _check_known("--algorithms", target, part.algorithms, [*names, *(cell.label for cell in found)], ALGORITHMS)
    kept = [cell for cell in found if _is_wanted(cell, part)]
    if papers and not kept:
        raise ConfigError(f"no cell of {target} is in all of the datasets, configs and algorithms named")
    order = [paper.stem for paper in papers]
    return sorted(kept, key=lambda cell: _turn(cell, order))  # stable: within an algorithm, as in its config


def resolved_for(paper: PaperConfig, part: Part, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """A config of the paper with what a part of it changes, everything decided."""
    train = {"parallel_cells": "auto", **paper.values["train"]}
    if part.rounds is not None:
        train["rounds"] = part.rounds
    values = overridden({**paper.values, "train": train}, overrides)
    values["data"]["root"] = part.root
    values["preset"] = part.preset or values["preset"]
    if part.seeds:
        values["seeds"] = list(part.seeds)
    return parse_config(values, paper.stem).resolved()


def _cells(paper: PaperConfig, wanted: Target, part: Part, overrides: Sequence[str]) -> Iterator[PlannedCell]:
    values = resolved_for(paper, part, overrides)
    for seed in values["seeds"] if part.seeds or not wanted.seeds else wanted.seeds:
        for entry in values["algorithms"]:
            if any(share.takes(paper, entry) for share in wanted.shares):
                yield PlannedCell(paper, one_cell(values, entry, seed, paper.stem))


def one_cell(values: Mapping[str, Any], entry: Mapping[str, Any], seed: int, source: str) -> Config:
    """The config of one cell of a resolved config."""
    return parse_config({**values, "algorithms": [dict(entry)], "seeds": [seed]}, source)


def _is_wanted(cell: PlannedCell, part: Part) -> bool:
    asked = (
        (part.datasets, {cell.dataset}),
        (part.configs, {cell.paper.stem}),
        (part.algorithms, {cell.config.algorithms[0].spec.name, cell.label}),
    )
    return all(not wanted or not has.isdisjoint(wanted) for wanted, has in asked)


def _turn(cell: PlannedCell, configs: Sequence[str]) -> tuple[int, ...]:
    """Seed after seed, so that methods can be compared early; then by dataset, config and algorithm."""
    return (
        cell.seed,
        _place(cell.dataset, DATASET_ORDER),
        _place(cell.paper.stem, configs),
        _place(cell.config.algorithms[0].spec.name, ALGORITHM_ORDER),
    )


def _place(name: str, order: Sequence[str]) -> int:
    return order.index(name) if name in order else len(order)


def _check_known(
    option: str, target: str, given: Sequence[str], has: Collection[str], known: Collection[str] = ()
) -> None:
    for name in given:
        if name in has:
            continue
        names = list(dict.fromkeys(has))
        if name in known:
            raise ConfigError(
                f"{option}: {target} has no cells with {name}; it has {', '.join(names) or 'none at all'}"
            )
        raise ConfigError(f"{option}: {unknown(f'name for {target}', name, names)}")


def _check_free(overrides: Sequence[str]) -> None:
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key not in FREE:
            raise ConfigError(
                f"override {override!r}: a reproduction changes only what its numbers do not depend on "
                f"({', '.join(FREE)}); for anything else there is `tinyproto run` with a config of configs/paper"
            )
