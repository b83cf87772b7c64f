"""The paper's experiments, defined once: its tables, and its figures on neurons and compression, as configs.

More studies extend the paper: on types on the wire, on a scale that needs no search, on the first 100 classes of
Tiny-ImageNet, on the released code and on other partitions. `python -m paper docs` writes all of them to paper/configs;
a test fails if a file there differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tinyproto.data.sources import part_name

FOLDER = Path("paper") / "configs"
DATASETS = ("cifar10", "cifar100", "tiny_imagenet")
NETWORKS = ["resnet8", "mobilenet_v2", "shufflenet_v2", "efficientnet_b0"]
SEEDS = [0, 1, 2]
"""The planned seeds. A number of ours is a mean over these only; a run with another seed is told beside it."""

ROUNDS = 300
READING_ROUNDS = 60
"""Enough rounds to tell one reading of the paper from another; cells of table1 are read after as many."""

SHORT_ROUNDS = 100
"""Rounds of a study that compares many settings; cells of table1 are read after as many."""

SCRIPT_ROUNDS = 500
"""Rounds of the released scripts' loop over 50 clients."""

DIM, CPS_DIM = 500, 50
CPS_DIMS = (50, 150, 250, 350, 450)
BASELINES = ["lg_fedavg", "fml", "fedkd", "feddistill", "fedproto", "fedtgp"]
OURS = ["tinyproto_fp", "tinyproto_ft"]
SAME_AS_PUBLISHED = ("local", "lg_fedavg", "fml", "feddistill")
"""Methods that the presets reference and published train alike: masks, where prototypes come from and features after
dropout are not theirs."""

NEURON_METHODS = ["lg_fedavg", "feddistill", "fedproto", "fedtgp", *OURS]
"""The methods in the figure on the number of neurons."""

FIRST_CLASSES = 100
"""Classes of Tiny-ImageNet in the study on a part of it."""

BYTES_DIMS = (25, 50, 100)
AUTO_DIMS = (50, 25, 10)
"""CPS dimensions of the cells that derive μ, which is larger than the published one."""

SMALL = ("float16", "int8")
TYPED_BASELINES = ("fedproto", "fedtgp", "feddistill", "lg_fedavg", "fml", "fedkd")
BYTES_TYPES = ("int8", "int4", "float16", "bfloat16", "float32")

Algorithms = list[str | dict[str, Any]]


@dataclass(frozen=True)
class PaperConfig:
    """One config file, and the table or figure it belongs to."""

    target: str
    stem: str  # names the file and the run
    words: str
    values: Mapping[str, Any]

    @property
    def path(self) -> Path:
        """Return its path in the repository."""
        return FOLDER / f"{self.stem}.yaml"

    @property
    def dataset(self) -> str:
        """Return its dataset as its records name it."""
        data = self.values["data"]
        return part_name(data["name"], data.get("first_classes"))

    @property
    def cells(self) -> int:
        """Return its number of cells: algorithms × seeds."""
        return len(self.values["algorithms"]) * len(self.values["seeds"])

    def text(self) -> str:
        """Return the content of the file: a description, the command that runs it, and its keys."""
        head = f"# {self.words}\n# Run:  tinyproto run {self.path.as_posix()} data.root=data\n"
        return head + yaml.safe_dump(dict(self.values), sort_keys=False, default_flow_style=None, width=110)


def experiments() -> list[PaperConfig]:
    """Return all configs, table after table, then the extensions."""
    of_the_paper = [*_table1(), *_table3(), *_appendix(), *_neurons(), *_compression(), *_readings()]
    return [*of_the_paper, *_bytes(), *_auto(), *_first_classes(), *_published(), *_partitions()]


def _config(
    target: str, stem: str, words: str, dataset: str, algorithms: Algorithms, *, dim: int = DIM,
    cps_dim: int = CPS_DIM, num_clients: int = 20, alpha: float = 0.1, preset: str = "reference",
    rounds: int = ROUNDS, seeds: list[int] | None = None, changed: Mapping[str, Mapping[str, Any]] | None = None,
) -> PaperConfig:  # fmt: skip
    """Return a config with the paper's setting, except for the keys in `changed`; the preset holds the rest."""
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
            words = f"The figure on compression, {dataset}: FedProto with only d={dim} neurons; CPS is in appendix."
            yield _config("figure-compression", f"compression_{dataset}_{dim}", words, dataset, ["fedproto"], dim=dim)


def _readings() -> Iterator[PaperConfig]:
    """Yield variants of cells of the tables, each with one or two open points read differently."""
    methods: Algorithms = [
        _variant("fedproto", "running", prototype_source="running"),
        _variant("fedproto", "weight=1", proto_weight=1.0),
        _variant("fedtgp", "stale", prototype_source="stale"),
        _variant("tinyproto_fp", "mean", aggregation="mean"),
        _derived("tinyproto_fp"),
        _variant("tinyproto_ft", "printed", global_scale=1.5e-3),
        _derived("tinyproto_ft"),
        _variant("tinyproto_ft", "blocks", masks="blocks"),
        _variant("tinyproto_ft", "random", masks="random"),
        *_scaled("tinyproto_ft", 9.21e-3, 2e-2, 4e-2, 1e-1),  # the first is 0.6 over the mean n_ij
        _variant("tinyproto_ft", "blocks-scale=0.04", masks="blocks", global_scale=4e-2),
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
    published: Algorithms = [
        _variant("fedproto", "running", prototype_source="running"),
        _variant("tinyproto_ft", "blocks", masks="blocks"),
        _variant("tinyproto_ft", "running", prototype_source="running"),
        _variant("tinyproto_ft", "blocks-running", masks="blocks", prototype_source="running"),
        *_scaled("tinyproto_ft", 3e-3, 1e-2),  # the latter is CIFAR-100's
    ]
    yield _config(
        "readings", "readings_cifar10", "Open readings where CIFAR-10 is furthest from print: prototypes, masks, μ.",
        "cifar10", published, seeds=[0],
    )  # fmt: skip
    above_print: tuple[tuple[int | None, str], ...] = ((250, "none"), (450, "none"), (None, "count"), (350, "count"))
    yield _config(
        "readings", "readings_ablation", "The open reading of prototypes where the ablation is furthest from print.",
        "cifar100", [_gathered("tinyproto_fp", s, scaling) for s, scaling in above_print], seeds=[0],
    )  # fmt: skip
    with_50_clients: Algorithms = [
        _derived("tinyproto_ft"),
        *_scaled("tinyproto_ft", 2e-2),  # 0.6 over the mean n_ij, as in Table 1
        _variant("tinyproto_ft", "blocks", masks="blocks"),
        _variant("tinyproto_ft", "running", prototype_source="running"),
    ]
    yield _config(
        "readings", "readings_clients50", "Open readings where Table 3 is furthest from print: μ, masks, prototypes.",
        "cifar100", with_50_clients, num_clients=50, seeds=[0],
    )  # fmt: skip


def _variant(name: str, word: str, **keys: Any) -> dict[str, Any]:
    """Return an entry with some keys changed, and a label that names the change."""
    return {"name": name, "label": f"{name}({word})", **keys}


def _gathered(name: str, cps_dim: int | None, scaling: str) -> dict[str, Any]:
    """Return an entry of the ablation with prototypes gathered during training."""
    word = f"cps_dim={'null' if cps_dim is None else cps_dim},scaling={scaling},running"
    return _variant(name, word, cps_dim=cps_dim, scaling=scaling, prototype_source="running")


def _derived(name: str) -> dict[str, Any]:
    """Return an entry whose μ is derived from the clients' counts."""
    return _variant(name, "auto", global_scale="auto")


def _scaled(name: str, *scales: float) -> Algorithms:
    """Return an entry for each constant μ."""
    return [_variant(name, f"scale={mu:g}", global_scale=mu) for mu in scales]


def _bytes() -> Iterator[PaperConfig]:
    """Yield types on the wire × CPS dimension, where a client downloads the classes it holds; and smaller baselines."""
    algorithms: Algorithms = [
        _typed("tinyproto_ft", kind, s, "held") for s in sorted(BYTES_DIMS, key=CPS_DIM.__ne__) for kind in BYTES_TYPES
    ]
    algorithms += [_typed("tinyproto_ft", "int4", CPS_DIM, "held", "stochastic")]
    algorithms += [_with_auto(_typed("tinyproto_ft", "int4", s, "held")) for s in AUTO_DIMS]
    algorithms += [_typed(name, kind) for name in TYPED_BASELINES for kind in SMALL]
    yield _config(
        "bytes", "bytes_cifar100", "Types on the wire and CPS dimensions on CIFAR-100, classes held.",
        "cifar100", algorithms, seeds=[0],
    )  # fmt: skip


def _typed(
    name: str, kind: str, cps_dim: int | None = None, download: str = "all", rounding: str = "nearest"
) -> dict[str, Any]:
    """Return an entry whose values travel in one type, up and down."""
    words = [
        *([] if cps_dim is None else [f"s={cps_dim}"]),
        kind,
        *([] if download == "all" else [download]),
        *([] if rounding == "nearest" else [rounding]),
    ]
    width = {} if cps_dim is None else {"cps_dim": cps_dim}
    wire = {"up": kind, "down": kind, "download": download, "rounding": rounding}
    return _variant(name, "-".join(words), **width, wire=wire)


def _with_auto(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry with a derived μ."""
    return {**entry, "label": f"{entry['label'][:-1]}-auto)", "global_scale": "auto"}


def _auto() -> Iterator[PaperConfig]:
    """Yield cells with a derived μ: on CIFAR-10, and with the preset sound beside constants."""
    short: dict[str, Any] = {"rounds": SHORT_ROUNDS, "seeds": [0, 1]}
    derived = [_derived(name) for name in OURS]
    yield _config(
        "auto", "auto_cifar10", "A derived μ on cifar10; other constants are in table1 and readings.",
        "cifar10", [*derived, *_scaled("tinyproto_ft", 1.02e-3)], **short,  # the last is 0.6 over the mean n_ij
    )  # fmt: skip
    for dataset, printed in (("cifar100", 1.5e-3), ("cifar10", 1.5e-4)):
        constants = [printed, printed / 2, printed * 2]
        searched: Algorithms = [{**_derived("tinyproto_fp"), "aggregation": "sum"}]
        searched += [_variant("tinyproto_fp", f"{mu:g}", global_scale=mu, aggregation="sum") for mu in constants]
        yield _config(
            "auto", f"auto_sound_{dataset}", f"A derived μ compared with constants on {dataset}, preset sound.",
            dataset, searched, preset="sound", **short,
        )  # fmt: skip


def _first_classes() -> Iterator[PaperConfig]:
    """Yield the methods of Table 1 on half of a dataset, for which the paper has no numbers."""
    words = f"Not in the paper: the methods of Table 1 on the first {FIRST_CLASSES} of Tiny-ImageNet's 200 classes."
    yield _config(
        "tiny-imagenet-100", "tiny_imagenet_100", words, "tiny_imagenet", ["local", *BASELINES, *OURS],
        seeds=[0], changed={"data": {"first_classes": FIRST_CLASSES}},
    )  # fmt: skip


def _published() -> Iterator[PaperConfig]:
    """Yield the methods of Table 1 as the released code has them, and its commented loop over 50 clients."""
    with_prototypes = ["fedproto", "fedtgp", *OURS]
    others: Algorithms = [name for name in BASELINES if name not in (*with_prototypes, *SAME_AS_PUBLISHED)]
    for dataset in ("cifar100", "cifar10"):
        words = f"Table 1 on {dataset} as in the released code: the methods"
        yield _config(
            "published", f"published_{dataset}", f"{words} with prototypes.",
            dataset, [*with_prototypes], preset="published",
        )  # fmt: skip
        yield _config(
            "published", f"published_others_{dataset}", f"{words} without prototypes that it changes.",
            dataset, others, preset="published", seeds=[0],
        )  # fmt: skip
    script: dict[str, Any] = {"prototype_source": "running", "proto_weight": 20.0, "global_scale": 0.02}
    yield _config(
        "published", "published_clients50", "50 clients as in the scripts' commented loop; and at Table 3's s=50.",
        "cifar100", [_variant("tinyproto_ft", f"s={s}", cps_dim=s, **script) for s in (250, CPS_DIM)],
        num_clients=50, rounds=SCRIPT_ROUNDS, seeds=[0], preset="published",
    )  # fmt: skip


def _partitions() -> Iterator[PaperConfig]:
    """Yield cells of Table 1 on other draws of the partition; the paper's is seed 1."""
    for seed in (2, 3):
        yield _config(
            "partitions", f"partitions_{seed}", f"Table 1 on cifar100 with seed {seed} of the partition instead of 1.",
            "cifar100", ["local", "fedtgp", "tinyproto_ft"], seeds=[0], changed={"partition": {"seed": seed}},
        )  # fmt: skip


def write_configs(root: Path) -> None:
    """Write all configs to `root`/paper/configs and remove other config files there."""
    wanted = {root / config.path: config.text() for config in experiments()}
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.yaml"):
        if old not in wanted:
            old.unlink()
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
