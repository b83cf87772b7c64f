"""Measure TinyProto-FT and Anchors at their defaults on networks that are not ours.

    python -m benchmarks networks --seeds 0 1 2 --processes 2

trains nine ordinary networks (`benchmarks/ordinary.py`) on the digits and on a folder of images: with Local, with
TinyProto-FT, and with Anchors of half, once and twice the length R of their rule. It writes results/networks: a line
per training, and the table that docs/reference/networks.md shows.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.ordinary import NETWORKS, write_patterns
from benchmarks.studies import Parser, play, run_study
from tinyproto.config.load import parse_config
from tinyproto.core.cps import longest_prototype
from tinyproto.errors import TinyProtoError
from tinyproto.experiment import Experiment

ROOT = Path(__file__).parents[1]
FACTORS = {"anchors, R/2": 0.5, "anchors": 1.0, "anchors, 2R": 2.0}
"""Lengths of the anchors, in those of their rule."""

METHODS = ("local", "tinyproto_ft", *FACTORS)
ROUNDS = {"digits": 50, "patterns": 100}
DATASETS = tuple(ROUNDS)
CPS_DIM, PROTO_WEIGHT = 10, 10.0
MIXED = ("plain_cnn", "small_cnn_a")
"""A network without normalisation beside one of ours, in one federation."""


@dataclass(frozen=True)
class Case:
    """One training."""

    dataset: str
    network: str
    method: str
    seed: int
    rounds: int


def config_of(case: Case, folder: Path) -> dict[str, Any]:
    """Return the config of a case; all other keys have their defaults."""
    entries = MIXED if case.network == "mixed" else (case.network,)
    models = [f"benchmarks.ordinary:{name}" if name in NETWORKS else name for name in entries]
    dim = 100 if case.dataset == "digits" else 50
    method: Any = case.method
    if case.method in FACTORS:
        method = {"name": "anchors", "length": FACTORS[case.method] * longest_prototype(dim, CPS_DIM, PROTO_WEIGHT)}
    common: dict[str, Any] = {"name": "networks", "models": models, "algorithms": [method], "seeds": [case.seed]}
    common["prototypes"] = {"dim": dim, "cps_dim": CPS_DIM}
    train = {"rounds": case.rounds, "batch_size": 16, "workers": 1}
    if case.dataset == "digits":
        partition = {"num_clients": 20, "alpha": 0.1, "min_samples": 20}
        return {**common, "train": train, "partition": partition}
    data = {"name": "image_folder", "root": str(folder), "cache": str(folder.with_name("cache"))}
    partition = {"num_clients": 4, "alpha": 0.5}
    return {**common, "data": data, "train": train, "partition": partition}


def train(case: Case) -> dict[str, Any]:
    """Train one case; return its accuracy by each rule, clients left out and lengths, or why it ended."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "patterns"
        if case.dataset == "patterns":
            write_patterns(folder)
        experiment = Experiment(parse_config(config_of(case, folder)))
        try:
            played, summary = play(experiment)
        except TinyProtoError as error:
            return {**asdict(case), "ended": str(error)}
    return {
        **asdict(case),
        "accuracy": summary["accuracy"]["last10"],
        "left_out": summary["left_out"],
        "server": played[-1].record.server,
    }


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Format accuracy in %, mean over seeds, by method and rule, and the gap to Local, as Markdown."""
    lines = [
        "| data | network | Local: head | Local: nearest local | FT: head | FT: nearest global | FT: nearest local "
        "| FT global − Local's better | left out | Anchors, better rule: R/2, R, 2R | at R − Local's better |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for dataset in DATASETS:
        for network in (*NETWORKS, "mixed"):
            found = {method: _of(results, dataset, network, method) for method in METHODS}
            if not all(found[method] for method in ("local", "tinyproto_ft")):
                continue
            local, ours = found["local"], found["tinyproto_ft"]
            better = _better(local)
            cells = [_mean(local, "head"), _mean(local, "local")]
            cells += [_mean(ours, rule) for rule in ("head", "global", "local")]
            out = "ended" if any("ended" in result for result in ours) else sum(result["left_out"] for result in ours)
            gap = _mean(ours, "global") - better
            numbers = " | ".join(f"{value:.1f}" for value in cells)
            anchors = [_better(found[method]) if found[method] else 0.0 for method in FACTORS]
            lengths = ", ".join(f"{value:.1f}" if value else "–" for value in anchors)
            lines.append(
                f"| {dataset} | `{network}` | {numbers} | {gap:+.1f} | {out} | {lengths} | {anchors[1] - better:+.1f} |"
            )
    return "\n".join(lines) + "\n"


def _of(results: Sequence[Mapping[str, Any]], dataset: str, network: str, method: str) -> list[Mapping[str, Any]]:
    key = (dataset, network, method)
    return [result for result in results if (result["dataset"], result["network"], result["method"]) == key]


def _mean(results: Sequence[Mapping[str, Any]], rule: str) -> float:
    return 100 * fmean((result.get("accuracy", {}).get(rule) or 0.0) for result in results)


def _better(results: Sequence[Mapping[str, Any]]) -> float:
    return max(_mean(results, rule) for rule in ("head", "global", "local"))


def main(arguments: Sequence[str]) -> None:
    """Train all cases, and write the records and the table."""
    parser = Parser("networks", __doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=ROOT / "results/networks")
    asked = parser.parse_args(arguments)
    wanted = [
        Case(dataset, network, method, seed, ROUNDS[dataset])
        for seed in asked.seeds
        for dataset in reversed(DATASETS)
        for network in (*NETWORKS, "mixed")
        for method in asked.methods
        if not (dataset == "digits" and network == "mixed")
    ]
    run_study(wanted, train, table, asked.out, asked.processes)
