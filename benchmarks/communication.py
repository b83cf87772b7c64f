"""Measure what communication buys where it has a chance: few samples, unseen classes, late clients, weak networks.

    python -m benchmarks communication --data digits --seeds 0 1 2 --processes 2

trains methods that send nothing (Local, Anchors) and methods that exchange something in each setting, and writes
results/communication/DATA: a line per training, and the table that docs/explain/what_communication_buys.md shows.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.studies import Parser, play, run_study
from tinyproto.algorithms.input_means import InputMeansHyper, group_means
from tinyproto.config.load import parse_config
from tinyproto.core.streams import Streams
from tinyproto.data.dataset import Dataset, FederatedData, TestScope
from tinyproto.data.partition import Partition, PartitionKind, Share
from tinyproto.data.sources import load
from tinyproto.errors import TinyProtoError
from tinyproto.experiment import Experiment
from tinyproto.tracking.summary import RoundResult

ROOT = Path(__file__).parents[1]
INT8 = {"up": "int8", "down": "int8"}
MEANS = {"name": "input_means", "wire": INT8}
TWICE = ", twice the steps"
"""The ending of methods with two local epochs: as many steps as InputMeans takes with the means it received."""

NEAREST = "nearest input mean"
"""A control without networks: a sample has the class of the nearest mean that InputMeans exchanges."""

METHODS: Mapping[str, Any] = {
    "local": "local",
    "anchors": "anchors",
    f"anchors{TWICE}": "anchors",
    "tinyproto_sphere": "tinyproto_sphere",
    "tinyproto_ft": "tinyproto_ft",
    "fedtgp": "fedtgp",
    "feddistill": "feddistill",
    "fml": "fml",
    "input_means": MEANS,
    "input_means, all classes": {**MEANS, "classes": "all"},
    "input_means, no anchors": {**MEANS, "proto_weight": 0.0},
    "input_means, groups of 1": {**MEANS, "group_size": 1},
    "input_means, groups of 5": {**MEANS, "group_size": 5},
    NEAREST: None,
}
"""An entry of a config's `algorithms:` for each method."""

CLIENTS = 20
NOISE = 0.2
LATE = (0, 5, 10, 15)
"""Clients that join late: one for each of four networks."""

LATE_ROUND, LATE_ROUNDS = 50, 5
NETWORKS = ("small_cnn_a", "small_cnn_b", "small_cnn_c", "small_cnn_d")
WEAK = "benchmarks.communication:linear_features"


def linear_features(input_shape: tuple[int, int, int], proto_dim: int) -> nn.Module:
    """Build a weak network: one linear layer and ReLU."""
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), proto_dim), nn.ReLU())


@dataclass(frozen=True)
class Case:
    """One training."""

    data: str
    setting: str
    method: str
    seed: int


@dataclass(frozen=True)
class Setting:
    """How a federation differs from the common one: 20 clients, Dirichlet 0.1, tested on their own classes."""

    alpha: float | None = 0.1  # of the Dirichlet partition; None: iid
    samples: int | None = None  # per class and client
    scope: TestScope = "own"
    late: bool = False
    weak: bool = False
    noise: float = 0.0


SETTINGS: Mapping[str, Setting] = {
    "alpha 0.1": Setting(),
    "alpha 0.5": Setting(alpha=0.5),
    "alpha 10": Setting(alpha=10.0),
    "iid": Setting(alpha=None),
    "5 samples a class": Setting(samples=5),
    "10 samples a class": Setting(samples=10),
    "20 samples a class": Setting(samples=20),
    "all classes": Setting(scope="all"),
    "late clients": Setting(late=True),
    "half weak": Setting(alpha=10.0, weak=True),
    "half noisy": Setting(alpha=10.0, noise=NOISE),
}


@dataclass(frozen=True)
class Data:
    """A dataset with the sizes that suit it."""

    name: str
    rounds: int
    dim: int
    cps_dim: int
    batch_size: int
    min_samples: int
    most: int | None = None  # samples of the dataset that are used
    evaluate_every: int = 1


DATASETS: Mapping[str, Data] = {
    "digits": Data("digits", 30, 100, 10, 16, 20),
    "cifar10": Data("cifar10", 30, 100, 10, 16, 20, 4_000, 3),
    "cifar100": Data("cifar100", 30, 500, 50, 32, 20, 20_000, 3),
}


def few_samples(labels: NDArray[np.int64], samples: int, seed: int) -> list[Share]:
    """Give each client `samples` training samples of each class; split the rest equally as test samples."""
    draws = np.random.default_rng(seed)
    by_class = [draws.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    fewest = min(map(len, by_class))
    clients = min(CLIENTS, int(0.75 * fewest) // samples)
    trains = [np.concatenate([one[i * samples : (i + 1) * samples] for one in by_class]) for i in range(clients)]
    left = draws.permutation(np.concatenate([one[clients * samples :] for one in by_class]))
    return [Share(train, test) for train, test in zip(trains, np.array_split(left, clients), strict=True)]


def with_noise(images: Dataset, shares: Sequence[Share], fraction: float, seed: int) -> Dataset:
    """Replace this fraction of the training labels by other classes, at every second client."""
    draws = np.random.default_rng(seed)
    labels = images.labels.numpy().copy()
    for share in shares[::2]:
        wrong = draws.permutation(share.train)[: round(fraction * len(share.train))]
        labels[wrong] = (labels[wrong] + draws.integers(1, images.num_classes, len(wrong))) % images.num_classes
    return replace(images, labels=torch.from_numpy(labels))


def read(data: Data, root: Path | None) -> Dataset:
    """Read the dataset, or the random part of it that is used."""
    images = load(data.name, root)
    if data.most is None or len(images) <= data.most:
        return images
    kept = torch.from_numpy(np.random.default_rng(0).permutation(len(images))[: data.most])
    return replace(images, inputs=images.inputs[kept].contiguous(), labels=images.labels[kept], shared=None)


def train(case: Case, root: Path | None = None) -> dict[str, Any]:
    """Train one case; return its accuracy by each rule, overall and of the clients in question, and all its bytes."""
    torch.set_num_threads(1)
    data, setting = DATASETS[case.data], SETTINGS[case.setting]
    images = read(data, root)
    labels = images.labels.numpy()
    if setting.samples is not None:
        shares = few_samples(labels, setting.samples, case.seed)
    else:
        kind: PartitionKind = "iid" if setting.alpha is None else "dirichlet"
        drawn = Partition(
            kind, CLIENTS, setting.alpha or 1.0, seed=case.seed + 1, min_samples=data.min_samples
        )  # fmt: skip
        shares = drawn.shares(labels)
    if setting.noise:
        images = with_noise(images, shares, setting.noise, case.seed)
    if case.method == NEAREST:
        return {**asdict(case), **nearest_input_mean(images, shares, setting, case.seed)}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        config = config_of(case, data, setting, shares, folder)
        experiment = Experiment(parse_config(config), images)
        try:
            played, summary = play(experiment)
        except TinyProtoError as error:
            return {**asdict(case), "ended": str(error)}
    return {
        **asdict(case),
        "accuracy": summary["accuracy"]["last10"],
        "asked": _of_clients(played, _asked(setting, len(shares))),
        "left_out": summary["left_out"],
        "payload_bytes": summary["payload_bytes_total"],
        "seconds": summary["seconds_per_round"]["total"],
    }


def _means(data: FederatedData, client: int, hyper: InputMeansHyper, seed: int) -> dict[str, Tensor]:
    """Return the means that a client of InputMeans sends with this seed."""
    draws = Streams(seed).generator("input means", client=client)
    return group_means(data.train(client), data.images.num_classes, hyper, draws)


def nearest_input_mean(images: Dataset, shares: Sequence[Share], setting: Setting, seed: int) -> dict[str, Any]:
    """Classify each client's test samples by the nearest mean of any client; of its own classes, or of all."""
    data = FederatedData(images, shares, setting.scope)
    means: list[tuple[Tensor, Tensor]] = []
    for client in range(len(shares)):
        for label, values in _means(data, client, InputMeansHyper(), seed).items():
            means.append((values, torch.full((len(values),), int(label))))
    values, labels = (torch.cat(parts) for parts in zip(*means, strict=True))
    correct, samples = [], []
    for client in range(len(shares)):
        test = data.test(client)
        held = data.train_counts[client] > 0 if setting.scope == "own" else torch.ones(images.num_classes).bool()
        usable = held[labels]
        distances = torch.cdist(test.inputs.flatten(1).float(), values[usable])
        correct.append(int((labels[usable][distances.argmin(1)] == test.labels).sum()) if len(test) else 0)
        samples.append(len(test))
    asked = _asked(setting, len(shares))
    of_asked = sum(correct[client] for client in asked) / max(sum(samples[client] for client in asked), 1)
    return {"accuracy": {"global": sum(correct) / sum(samples)}, "asked": {"global": of_asked}, "left_out": 0}


def config_of(case: Case, data: Data, setting: Setting, shares: Sequence[Share], folder: Path) -> dict[str, Any]:
    """Return the config of a case; all other keys have their defaults."""
    parts = [{"train": share.train.tolist(), "test": share.test.tolist()} for share in shares]
    (folder / "shares.json").write_text(json.dumps({"clients": parts}))
    rounds = LATE_ROUND + LATE_ROUNDS - 1 if setting.late else data.rounds
    training: dict[str, Any] = {"rounds": rounds, "batch_size": data.batch_size, "workers": 1}
    training["local_epochs"] = 2 if case.method.endswith(TWICE) else 1
    if setting.late:
        lines = [f"{number},{client},drop" for number in range(1, LATE_ROUND) for client in LATE]
        (folder / "trace.csv").write_text("\n".join(["round,client,event", *lines]) + "\n")
        training["dropout"] = str(folder / "trace.csv")
    return {
        "name": "communication",
        "data": {"name": data.name},
        "partition": {"kind": "file", "file": str(folder / "shares.json")},
        "models": [WEAK if setting.weak and place % 2 else name for place, name in enumerate(NETWORKS)],
        "prototypes": {"dim": data.dim, "cps_dim": data.cps_dim},
        "train": training,
        "evaluate": {"scope": setting.scope, "clients": "all", "every": data.evaluate_every},
        "algorithms": [METHODS[case.method]],
        "seeds": [case.seed],
    }


def _asked(setting: Setting, clients: int) -> list[int]:
    """Return the clients that a setting asks about: late ones, weak ones, noisy ones, or all."""
    if setting.late:
        return list(LATE)
    if setting.weak:
        return list(range(1, clients, 2))
    return list(range(0, clients, 2)) if setting.noise else list(range(clients))


def _of_clients(played: Sequence[RoundResult], clients: Sequence[int]) -> dict[str, float | None]:
    """Return the accuracy of these clients at the end, by rule."""
    last = played[-1].record.clients
    samples = sum(last[client].test_samples or 0 for client in clients)
    found: dict[str, float | None] = {}
    for rule in ("head", "global", "local"):
        correct = [last[client].correct[rule] for client in clients]
        known = [value for value in correct if value is not None]
        found[rule] = sum(known) / samples if known and samples else None
    return found


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Format accuracy in %, mean ± sample deviation over seeds, a row per setting, as Markdown.

    Each method is read by its best rule in this setting: head, nearest global or nearest local prototype.
    """
    methods = [method for method in METHODS if any(result["method"] == method for result in results)]
    lines = [f"| setting | {' | '.join(methods)} |", f"|---|{'---|' * len(methods)}"]
    for setting in SETTINGS:
        of_setting = [result for result in results if result["setting"] == setting]
        if of_setting:
            cells = [_cell([one for one in of_setting if one["method"] == method], setting) for method in methods]
            lines.append(f"| {setting} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def by_better_rule(results: Sequence[Mapping[str, Any]], setting: str) -> list[float]:
    """Return the accuracy in % of each seed, by the rule with the best mean over seeds.

    It is the mean of the last ten evaluations. Where a setting asks about some clients, or evaluations lie rounds
    apart, it is the last one.
    """
    everyone = _asked(SETTINGS[setting], CLIENTS) == list(range(CLIENTS))
    steady = all(DATASETS[result["data"]].evaluate_every == 1 for result in results)
    where = "accuracy" if everyone and steady else "asked"
    found = [result[where] for result in results if "ended" not in result]
    rules = [rule for rule in ("head", "global", "local") if found and all(one.get(rule) is not None for one in found)]
    by_rule = [[100 * one[rule] for one in found] for rule in rules]
    return max(by_rule, key=fmean, default=[])


def _cell(results: Sequence[Mapping[str, Any]], setting: str) -> str:
    values = by_better_rule(results, setting)
    if not values:
        return "ended" if results else "–"
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{spread}"


def membership(data: Data, root: Path | None, group_size: int, seed: int) -> float:
    """Return how well a sample's distance to the nearest mean of a client tells if the client trained on it.

    All whole groups are sent. It is the area under the ROC curve over training and test samples of a client, mean over
    clients: 0.5 tells nothing, 1 tells everything.
    """
    images = read(data, root)
    shares = Partition("dirichlet", CLIENTS, 10.0, seed=seed + 1, min_samples=data.min_samples).shares(
        images.labels.numpy()
    )
    federation, hyper = FederatedData(images, shares), InputMeansHyper(group_size=group_size, means_per_class=50)
    found = []
    for client in range(CLIENTS):
        means = _means(federation, client, hyper, seed)
        scores: list[Tensor] = []
        for samples in (federation.train(client), federation.test(client)):
            distances = [
                torch.cdist(samples.inputs[samples.labels == int(label)].flatten(1).float(), values).min(1).values
                for label, values in means.items()
            ]
            scores.append(torch.cat(distances) if distances else torch.zeros(0))
        inside, outside = scores
        if len(inside) and len(outside):
            closer = (inside.unsqueeze(1) < outside).double() + 0.5 * (inside.unsqueeze(1) == outside).double()
            found.append(float(closer.mean()))
    return fmean(found) if found else 0.5


class Train:
    """`train` with the folder of the data, in a form that other processes can call."""

    def __init__(self, root: Path | None) -> None:
        self.root = root

    def __call__(self, case: Case) -> dict[str, Any]:
        """Train one case."""
        return train(case, self.root)


def main(arguments: Sequence[str]) -> None:
    """Train all cases, and write the records and the table."""
    parser = Parser("communication", __doc__)
    parser.add_argument("--data", choices=list(DATASETS), default="digits")
    parser.add_argument("--root", type=Path, help="the folder of the dataset")
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--membership", action="store_true", help="print what means tell of their samples, and end")
    asked = parser.parse_args(arguments)
    if asked.membership:
        for size in (1, 2, 3, 5, 10):
            areas = [membership(DATASETS[asked.data], asked.root, size, seed) for seed in asked.seeds]
            print(json.dumps({"data": asked.data, "group_size": size, "seeds": asked.seeds, "area": areas}))
        return
    wanted = [
        Case(asked.data, setting, method, seed)
        for seed in asked.seeds
        for setting in asked.settings
        for method in asked.methods
    ]
    out = asked.out or ROOT / "results/communication" / asked.data
    training: Callable[[Case], Mapping[str, Any]] = Train(asked.root)
    run_study(wanted, training, table, out, asked.processes)
