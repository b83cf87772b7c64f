"""The paper's tables and figures by name, the cells of each in their order, and the jobs of the next GPU session."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paper.experiments import DATASETS, NEURON_METHODS, READING_ROUNDS, SEEDS, PaperConfig, experiments
from paper.matching import PaperCell
from tinyproto.algorithms import ALGORITHMS
from tinyproto.config import parse_config
from tinyproto.config.load import overridden
from tinyproto.config.presets import PRESETS
from tinyproto.errors import ConfigError
from tinyproto.imports import unknown

CIFAR = ("cifar10", "cifar100")
DATASET_ORDER = ("cifar100", "cifar10", "tiny_imagenet")
ALGORITHM_ORDER = (
    "fedproto", "fedtgp", "tinyproto_fp", "tinyproto_ft", "local", "lg_fedavg", "feddistill", "fml", "fedkd",
)  # fmt: skip
"""The most informative cells run first."""

FREE = (
    "train.parallel_cells", "train.trainer", "train.device", "train.client_memory", "checkpoint.every_seconds",
)  # fmt: skip
"""Keys that may be overridden: a record is the same cell of the paper whatever their value."""


@dataclass(frozen=True)
class Share:
    """The cells that a target takes from the configs of one target of `experiments.py`."""

    target: str
    datasets: tuple[str, ...] = ()  # empty: all
    entries: tuple[Mapping[str, Any], ...] = ()  # entries with the keys of one of these; empty: all

    def takes_config(self, paper: PaperConfig) -> bool:
        """Return True if cells of this config can be among them."""
        return paper.target == self.target and (not self.datasets or paper.values["data"]["name"] in self.datasets)

    def takes(self, paper: PaperConfig, entry: Mapping[str, Any]) -> bool:
        """Return True if a resolved entry is among them."""
        wanted = not self.entries or any(keys.items() <= entry.items() for keys in self.entries)
        return self.takes_config(paper) and wanted


@dataclass(frozen=True)
class Target:
    """A table or a figure."""

    words: str
    shares: tuple[Share, ...]
    seeds: tuple[int, ...] = ()  # empty: those of the configs


def _named(*names: str) -> tuple[Mapping[str, Any], ...]:
    return tuple({"name": name} for name in names)


_SCALED_FP = {"name": "tinyproto_fp", "scaling": "count"}

TARGETS: Mapping[str, Target] = {
    "table1": Target("every method on three datasets, and Local", (Share("table1"),)),
    "table3": Target("50 clients, and other heterogeneity, on CIFAR-100", (Share("table3"),)),
    "appendix": Target("the ablation: CPS dimension × scaling, on three datasets", (Share("appendix"),)),
    "figure1": Target("parameters compared with FedAvg; computed, so it has no cells", ()),
    "figure-neurons": Target(
        "widths of 100 and 1000 on CIFAR-100, and those of table1 in between",
        (
            Share("figure-neurons"),
            Share("table1", ("cifar100",), _named(*NEURON_METHODS)),
        ),
    ),
    "figure-ablation": Target(
        "TinyProto-FT by CPS dimension and scaling, and FedTGP, on CIFAR-10 and Tiny-ImageNet",
        (
            Share("appendix", ("cifar10", "tiny_imagenet"), _named("tinyproto_ft")),
            Share("table1", ("cifar10", "tiny_imagenet"), _named("fedtgp", "tinyproto_ft")),
        ),
    ),
    "figure-compression": Target(
        "TinyProto-FP by CPS dimension compared with FedProto with fewer neurons, on CIFAR-10 and CIFAR-100",
        (
            Share("figure-compression"),
            Share("table1", CIFAR, _named("tinyproto_fp")),
            Share("appendix", CIFAR, tuple({**_SCALED_FP, "cps_dim": width} for width in (150, 250, 350, 450))),
        ),
    ),
    "heatmaps": Target(
        "prototypes of FedProto without CPS and with s=50 and s=250, on CIFAR-10 and CIFAR-100",
        (
            Share("table1", CIFAR, _named("fedproto")),
            Share(
                "appendix",
                CIFAR,
                tuple({"name": "tinyproto_fp", "cps_dim": width, "scaling": "none"} for width in (50, 250)),
            ),
        ),
        seeds=(0,),
    ),
    "readings": Target("the open readings, mostly 60 rounds each, compared with the tables", (Share("readings"),)),
    "bytes": Target("not in the paper: types on the wire × CPS dimension on CIFAR-100", (Share("bytes"),)),
    "auto": Target("not in the paper: μ derived instead of searched, 100 rounds each", (Share("auto"),)),
    "tiny-imagenet-100": Target(
        "not in the paper: the methods of table1 on the first 100 of Tiny-ImageNet's 200 classes",
        (Share("tiny-imagenet-100"),),
    ),
    "published": Target(
        "the methods of table1 on CIFAR-10 and CIFAR-100, and 50 clients, as in the released code",
        (Share("published"),),
    ),
    "partitions": Target("not in the paper: other seeds of the partition on CIFAR-100", (Share("partitions"),)),
    "planned": Target("the jobs of --plan, several at once in their order; not those with folders of their own", ()),
}  # fmt: skip


@dataclass(frozen=True)
class Selection:
    """The part of a target to run, and what changes in it; an empty list selects everything."""

    datasets: Sequence[str] = ()
    configs: Sequence[str] = ()
    algorithms: Sequence[str] = ()
    seeds: Sequence[int] = ()
    rounds: int | None = None
    preset: str | None = None
    root: str = "data"


@dataclass(frozen=True)
class Job:
    """A part of the next session with a GPU: one command."""

    words: str
    target: str
    selection: Selection
    results: str | None = None  # a folder of records of its own; None: the usual one
    runs: str | None = None  # a folder of cells in progress of its own

    @property
    def command(self) -> str:
        """Return the command that runs it."""
        chosen = self.selection
        options = {
            "dataset": chosen.datasets, "configs": chosen.configs, "algorithms": chosen.algorithms,
            "seeds": chosen.seeds, "rounds": [chosen.rounds] if chosen.rounds else [],
            "results": [self.results] if self.results else [], "runs": [self.runs] if self.runs else [],
        }  # fmt: skip
        told = [f"--{name} {shlex.quote(','.join(map(str, values)))}" for name, values in options.items() if values]
        return " ".join(["python -m paper", self.target, *told])

    def cells(self) -> list[PaperCell]:
        """Return its cells in the order in which they run."""
        return plan(self.target, self.selection)


def _first_seed(words: str, target: str, **chosen: Any) -> Job:
    return Job(words, target, Selection(seeds=[SEEDS[0]], **chosen))


_TWICE = Selection(
    datasets=["cifar100"], algorithms=["fedproto", "tinyproto_ft"], seeds=[SEEDS[0]], rounds=READING_ROUNDS
)

JOBS: Sequence[Job] = (
    _first_seed(
        "as in the released code, where Table 1 is furthest from print", "published",
        configs=["published_cifar10"], algorithms=["fedproto", "tinyproto_ft"],
    ),
    _first_seed(
        "as in the released code, one cell of each other method that it changes", "published",
        configs=["published_cifar100", "published_others_cifar100"], algorithms=["fedtgp", "tinyproto_fp", "fedkd"],
    ),
    Job("the same commit and seed, first run", "table1", _TWICE, "paper/records/first"),
    Job("the same commit and seed, second run", "table1", _TWICE, "paper/records/again", "runs/again"),
    _first_seed("50 clients as in the scripts' commented loop", "published", configs=["published_clients50"]),
    _first_seed("Table 3, the rest: 50 clients", "table3", configs=["table3_clients50"]),
    _first_seed("Table 3, the rest: α=0.5", "table3", configs=["table3_alpha05"]),
    _first_seed("Table 3, the rest: α=0.01", "table3", configs=["table3_alpha001"]),
    Job(
        "Tiny-ImageNet: memory and seconds a round, measured first", "table1",
        Selection(datasets=["tiny_imagenet"], seeds=[SEEDS[0]], rounds=3), "runs/measured",
    ),
    _first_seed("Tiny-ImageNet's column of Table 1", "table1", datasets=["tiny_imagenet"]),
    _first_seed("CIFAR-10's ablation", "appendix", datasets=["cifar10"]),
    _first_seed("CIFAR-100's ablation, the rest", "appendix", datasets=["cifar100"]),
    _first_seed("the figure on neurons", "figure-neurons"),
    _first_seed("the figure on compression", "figure-compression"),
    _first_seed(
        "what may explain numbers that are off", "readings", configs=["readings_ablation", "readings_clients50"]
    ),
    _first_seed(
        "the published masks with the μ that was better", "readings",
        configs=["readings_methods"], algorithms=["tinyproto_ft(blocks-scale=0.04)"],
    ),
    _first_seed("other partitions", "partitions"),
    _first_seed("as in the released code, the rest", "published"),
    Job("as in the released code, the other seeds", "published", Selection(seeds=SEEDS[1:], configs=[
        "published_cifar100", "published_cifar10",
    ])),
    Job("Table 1, the other seeds", "table1", Selection(datasets=["cifar100", "cifar10"], seeds=SEEDS[1:])),
)  # fmt: skip
"""First a cell that tells most for each method, then cells without a run, then what is left of the released code."""


def plan(target: str, selection: Selection, overrides: Sequence[str] = ()) -> list[PaperCell]:
    """Return the selected cells of a target, each with one seed, in the order in which they run."""
    if target not in TARGETS:
        raise ConfigError(unknown("target", target, TARGETS))
    if selection.preset is not None and selection.preset not in PRESETS:
        raise ConfigError(f"--preset: {unknown('preset', selection.preset, PRESETS)}")
    _check_free(overrides)
    if target == "planned":
        return _planned(selection, overrides)
    wanted = TARGETS[target]
    papers = [paper for paper in experiments() if any(share.takes_config(paper) for share in wanted.shares)]
    found = [cell for paper in papers for cell in _cells(paper, wanted, selection, overrides)]
    stems = [paper.stem for paper in papers]
    kept = _selected(target, found, selection)
    return sorted(kept, key=lambda cell: _order(cell, stems))  # stable: within an algorithm, as in its config


def _planned(selection: Selection, overrides: Sequence[str]) -> list[PaperCell]:
    """Return the cells of all jobs with the usual records, each once, in the order of the jobs."""
    found: dict[tuple[str, int, int], PaperCell] = {}
    for job in JOBS:
        if job.results is None:
            rounds = selection.rounds or job.selection.rounds
            changed = replace(job.selection, rounds=rounds, preset=selection.preset, root=selection.root)
            for cell in plan(job.target, changed, overrides):
                found.setdefault(cell.identity, cell)
    return _selected("planned", list(found.values()), selection)


def _selected(target: str, cells: Sequence[PaperCell], selection: Selection) -> list[PaperCell]:
    """Return the selected cells of a target; raise a ConfigError that names what it does not have."""
    names = [name for cell in cells for name in (cell.entry["name"], cell.label)]
    _check_known("--dataset", target, selection.datasets, [cell.config["data"]["name"] for cell in cells], DATASETS)
    stems = [paper.stem for paper in experiments()]
    _check_known("--configs", target, selection.configs, [cell.stem for cell in cells], stems)
    _check_known("--algorithms", target, selection.algorithms, names, ALGORITHMS)
    kept = [cell for cell in cells if _is_selected(cell, selection)]
    if cells and not kept:
        raise ConfigError(f"no cell of {target} matches all of the given datasets, configs, algorithms and seeds")
    return kept


def resolve(paper: PaperConfig, selection: Selection, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return a config of the paper with a selection's changes, fully resolved."""
    train = {"parallel_cells": "auto", **paper.values["train"]}
    if selection.rounds is not None:
        train["rounds"] = selection.rounds
    values = overridden({**paper.values, "train": train}, overrides)
    values["data"]["root"] = selection.root
    values["preset"] = selection.preset or values["preset"]
    if selection.seeds:
        values["seeds"] = list(selection.seeds)
    return parse_config(values, paper.stem).resolved()


def _cells(paper: PaperConfig, wanted: Target, selection: Selection, overrides: Sequence[str]) -> Iterator[PaperCell]:
    values = resolve(paper, selection, overrides)
    for seed in values["seeds"] if selection.seeds or not wanted.seeds else wanted.seeds:
        for entry in values["algorithms"]:
            if any(share.takes(paper, entry) for share in wanted.shares):
                yield PaperCell(paper, values, entry, (seed,))


def _is_selected(cell: PaperCell, selection: Selection) -> bool:
    asked = (
        (selection.datasets, {cell.config["data"]["name"]}),
        (selection.configs, {cell.stem}),
        (selection.algorithms, {cell.entry["name"], cell.label}),
        (selection.seeds, {cell.seed}),
    )
    return all(not wanted or not has.isdisjoint(wanted) for wanted, has in asked)


def _order(cell: PaperCell, configs: Sequence[str]) -> tuple[int, ...]:
    """Sort by seed, so that methods can be compared early; then by dataset, config and algorithm."""
    return (
        cell.seed,
        _index(cell.config["data"]["name"], DATASET_ORDER),
        _index(cell.stem, configs),
        _index(cell.entry["name"], ALGORITHM_ORDER),
    )


def _index(name: str, order: Sequence[str]) -> int:
    return order.index(name) if name in order else len(order)


def _check_known(
    option: str, target: str, given: Sequence[str], has: Collection[str], known: Collection[str] = ()
) -> None:
    for name in given:
        if name in has:
            continue
        names = list(dict.fromkeys(has))
        if name in known:
            raise ConfigError(f"{option}: {target} has no cells with {name}; it has {', '.join(names) or 'none'}")
        raise ConfigError(f"{option}: {unknown(f'name for {target}', name, names)}")


def _check_free(overrides: Sequence[str]) -> None:
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key not in FREE:
            raise ConfigError(
                f"override {override!r}: only keys that do not change results may be overridden here "
                f"({', '.join(FREE)}); to change others, use `tinyproto run` with a config of paper/configs"
            )
