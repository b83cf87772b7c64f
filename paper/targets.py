"""The paper's tables and figures by name, and which cells each is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paper.experiments import NEURON_METHODS, PaperConfig

CIFAR = ("cifar10", "cifar100")


@dataclass(frozen=True)
class Share:
    """Cells that a target takes from the configs of one target of `experiments.py`: those with one of these keys."""

    target: str
    datasets: tuple[str, ...] = ()  # all, where none is named
    entries: tuple[Mapping[str, Any], ...] = ()  # all, where none is named

    def takes_config(self, paper: PaperConfig) -> bool:
        """Whether cells of this config can be among them."""
        return paper.target == self.target and (not self.datasets or paper.values["data"]["name"] in self.datasets)

    def takes(self, paper: PaperConfig, entry: Mapping[str, Any]) -> bool:
        """Whether an entry, all its keys decided, is among them."""
        wanted = not self.entries or any(keys.items() <= entry.items() for keys in self.entries)
        return self.takes_config(paper) and wanted


@dataclass(frozen=True)
class Target:
    """A table or a figure."""

    words: str
    shares: tuple[Share, ...]
    seeds: tuple[int, ...] = ()  # those of the configs, where none is named


def _named(*names: str) -> tuple[Mapping[str, Any], ...]:
    return tuple({"name": name} for name in names)


_SCALED_FP = {"name": "tinyproto_fp", "scaling": "count"}

TARGETS: Mapping[str, Target] = {
    "table1": Target("every method on three datasets, and Local", (Share("table1"),)),
    "table3": Target("50 clients, and other heterogeneity, on CIFAR-100", (Share("table3"),)),
    "appendix": Target("the ablation: CPS dimension × scaling, on three datasets", (Share("appendix"),)),
    "figure1": Target("parameters against FedAvg; computed, so there are no cells", ()),
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
        "TinyProto-FP by CPS dimension against FedProto with fewer neurons, on CIFAR-10 and CIFAR-100",
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
    "readings": Target("the open readings, mostly 60 rounds each; held against the tables", (Share("readings"),)),
    "bytes": Target("beyond the paper: types on the wire × CPS dimension on CIFAR-100", (Share("bytes"),)),
    "auto": Target("beyond the paper: μ derived instead of searched, 100 rounds each", (Share("auto"),)),
    "tiny-imagenet-100": Target(
        "beyond the paper: the methods of table1 on the first 100 of Tiny-ImageNet's 200 classes",
        (Share("tiny-imagenet-100"),),
    ),
}  # fmt: skip
