"""The paper's experiments, defined once: its tables, and its figures on neurons and compression, as configs.

`make docs` writes them to configs/paper/; a test fails when a file there is not what this says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path("configs") / "paper"
DATASETS = ("cifar10", "cifar100", "tiny_imagenet")
NETWORKS = ["resnet8", "mobilenet_v2", "shufflenet_v2", "efficientnet_b0"]
SEEDS = [0, 1, 2]
ROUNDS = 300
READING_ROUNDS = 60
"""Rounds that tell one reading of the paper from another; the cells of table1 are read after as many."""

DIM, CPS_DIM = 500, 50
CPS_DIMS = (50, 150, 250, 350, 450)
BASELINES = ["lg_fedavg", "fml", "fedkd", "feddistill", "fedproto", "fedtgp"]
OURS = ["tinyproto_fp", "tinyproto_ft"]
NEURON_METHODS = ["lg_fedavg", "feddistill", "fedproto", "fedtgp", *OURS]
"""Those in the figure on the number of neurons."""

Algorithms = list[str | dict[str, Any]]


@dataclass(frozen=True)
class PaperConfig:
    """One config file, and what of the paper it is part of."""

    target: str
    stem: str  # names the file and the run
    words: str
    values: Mapping[str, Any]

    @property
    def path(self) -> Path:
        """Where it lies in the repository."""
        return FOLDER / f"{self.stem}.yaml"

    @property
    def cells(self) -> int:
        """How many runs it takes: algorithms × seeds."""
        return len(self.values["algorithms"]) * len(self.values["seeds"])

    def text(self) -> str:
        """The file: what it is, how to run it, and its keys."""
        head = f"# {self.words}\n# Run:  tinyproto run {self.path.as_posix()} data.root=data\n"
        return head + yaml.safe_dump(dict(self.values), sort_keys=False, default_flow_style=None, width=110)


def experiments() -> list[PaperConfig]:
    """All of them, table after table."""
    return [*_table1(), *_table3(), *_appendix(), *_neurons(), *_compression(), *_readings()]


def _config(
    target: str, stem: str, words: str, dataset: str, algorithms: Algorithms, *, dim: int = DIM,
    cps_dim: int = CPS_DIM, num_clients: int = 20, alpha: float = 0.1, preset: str = "reference",
    rounds: int = ROUNDS, seeds: list[int] | None = None, changed: Mapping[str, Mapping[str, Any]] | None = None,
) -> PaperConfig:  # fmt: skip
    """The paper's setting; a preset holds every other reading of it, save what is `changed`, section by section."""
    values: dict[str, Any] = {
        "schema_version": 1,
        "name": stem,
        "preset": preset,
        "data": {"name": dataset},
        "partition": {"kind": "dirichlet", "alpha": alpha, "num_clients": num_clients},
        "models": NETWORKS,
        "prototypes": {"dim": dim, "cps_dim": min(cps_dim, dim)},
        "train": {"rounds": rounds, "local_epochs": 1, "batch_size": 32, "learning_rate": 0.01},
        "algorithms": algorithms,
        "seeds": SEEDS if seeds is None else seeds,
    }
    for section, keys in (changed or {}).items():
        values[section] = {**values[section], **keys}
    return PaperConfig(target, stem, words, values)


def _table1() -> Iterator[PaperConfig]:
    for dataset in DATASETS:
        words = (
            f"Table 1 on {dataset}: every method at d=500, TinyProto at s=50; and Local, which the paper leaves out."
        )
        yield _config("table1", f"table1_{dataset}", words, dataset, ["local", *BASELINES, *OURS])


def _table3() -> Iterator[PaperConfig]:
    settings: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("clients50", "50 clients", {"num_clients": 50}),
        ("alpha001", "α=0.01", {"alpha": 0.01}),
        ("alpha05", "α=0.5", {"alpha": 0.5}),
    )
    for name, setting, changed in settings:
        words = f"Scalability and heterogeneity on CIFAR-100: {setting}."
        yield _config("table3", f"table3_{name}", words, "cifar100", ["local", *BASELINES, *OURS], **changed)


def _appendix() -> Iterator[PaperConfig]:
    for dataset in DATASETS:
        words = f"The appendix's ablation on {dataset}: CPS dimension × scaling; its four other rows are in table1."
        algorithms: Algorithms = []
        for name in OURS:
            algorithms += [{"name": name, "cps_dim": s, "scaling": "none"} for s in CPS_DIMS]
            algorithms += [{"name": name, "cps_dim": s, "scaling": "count"} for s in (None, *CPS_DIMS) if s != CPS_DIM]
        yield _config("appendix", f"appendix_{dataset}", words, dataset, algorithms)


def _neurons() -> Iterator[PaperConfig]:
    for dim in (100, 1000):
        words = f"The figure on the number of neurons, CIFAR-100 at d={dim}, s={dim // 10}; d=500 is in table1."
        algorithms: Algorithms = [*NEURON_METHODS]
        yield _config(
            "figure-neurons", f"neurons_{dim}", words, "cifar100", algorithms, dim=dim, cps_dim=dim // 10
        )  # fmt: skip


def _compression() -> Iterator[PaperConfig]:
    for dataset in ("cifar10", "cifar100"):
        for dim in CPS_DIMS:
            words = (
                f"The figure on compression, {dataset}: FedProto with only d={dim} neurons, against CPS in appendix."
            )
            yield _config("figure-compression", f"compression_{dataset}_{dim}", words, dataset, ["fedproto"], dim=dim)


def _readings() -> Iterator[PaperConfig]:
    """Against the cell of table1 with the same method: each differs from it in one open reading."""
    methods: Algorithms = [
        {"name": "fedproto", "label": "fedproto(running)", "prototype_source": "running"},
        {"name": "fedproto", "label": "fedproto(weight=1)", "proto_weight": 1.0},
        {"name": "fedtgp", "label": "fedtgp(stale)", "prototype_source": "stale"},
        {"name": "tinyproto_fp", "label": "tinyproto_fp(mean)", "aggregation": "mean"},
        {"name": "tinyproto_fp", "label": "tinyproto_fp(auto)", "global_scale": "auto"},
        {"name": "tinyproto_ft", "label": "tinyproto_ft(printed)", "global_scale": 1.5e-3},
        {"name": "tinyproto_ft", "label": "tinyproto_ft(auto)", "global_scale": "auto"},
        {"name": "tinyproto_ft", "label": "tinyproto_ft(blocks)", "masks": "blocks"},
    ]
    both: Algorithms = ["fedproto", "tinyproto_ft"]
    short: dict[str, Any] = {"rounds": READING_ROUNDS, "seeds": [0]}
    yield _config(
        "readings", "readings_methods", "Open readings on CIFAR-100: prototypes, weight, aggregation, μ, masks.",
        "cifar100", methods, **short,
    )  # fmt: skip
    yield _config(
        "readings", "readings_order", "The open reading of the order of batches: shuffled.",
        "cifar100", both, changed={"train": {"shuffle": True}}, **short,
    )  # fmt: skip
    yield _config(
        "readings", "readings_counts", "The open reading of n_ij: of training samples alone.",
        "cifar100", ["tinyproto_ft"], changed={"prototypes": {"counted_samples": "train"}}, **short,
    )  # fmt: skip
    yield _config(
        "readings", "readings_paper", "All open readings as the paper prints them.",
        "cifar100", both, preset="paper", **short,
    )  # fmt: skip


def write(root: Path) -> None:
    """All files under `root`/configs/paper, and no others."""
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {config.path.name: config.text() for config in experiments()}
    for old in folder.glob("*.yaml"):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path())
