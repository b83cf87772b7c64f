"""The presets: readings of the paper, each with a value for all its open points; explicit keys override them.

`sound` is an expert's choice, `reference` is closest to the runs behind the paper's tables, `paper` is the printed text
(for a baseline, that of its own paper), and `published` is the released code without two of its bugs.
`docs/explain/algorithms.md` lists the points one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Preset:
    """Config values by section, and hyper-parameters for the algorithms that have them."""

    sections: Mapping[str, Values]
    hyper: Values
    global_scale: Mapping[str, Mapping[str, float]] | None  # algorithm → dataset → μ; None: derive it
    own_hyper: Mapping[str, Values] = field(default_factory=dict)  # algorithm → values before those of `hyper`

    def hyper_of(self, algorithm: str) -> Values:
        """Return the hyper-parameters of an algorithm, and of others too."""
        return {**self.hyper, **self.own_hyper.get(algorithm, {})}


PUBLISHED_FP_SCALE = {"cifar10": 1.5e-4, "cifar100": 1.5e-3, "tiny_imagenet": 1.5e-3}
PUBLISHED_FT_SCALE = {"cifar10": 1e-3, "cifar100": 1e-2, "tiny_imagenet": 1e-2}

_PUBLISHED_SECTIONS: Mapping[str, Values] = {
    "partition": {"seed": 1, "min_samples": 1},
    "train": {"shuffle": False, "last_batch": "drop", "head_dropout": 0.2},
}
_PUBLISHED_HYPER: Values = {
    "prototype_source": "fresh",
    "offered_classes": "all",
    "max_length": None,
    "auxiliary": "resnet8",
    "average_buffers": False,
    "reduction": "element",
    "detach_targets": False,
    "matrices": "kernels",
    "factorised": "weights",
    "teachers": "all",
}
"""Values of `reference` that `paper` mostly shares; `auxiliary` to `factorised` are of FML and FedKD."""

_REFERENCE = Preset(
    sections={
        **_PUBLISHED_SECTIONS,
        "prototypes": {"samples": "seen", "counted_samples": "all", "masks": "balanced"},
        "evaluate": {"rule": "global", "statistic": "best"},
    },
    hyper={**_PUBLISHED_HYPER, "proto_weight": 10.0, "distance": "mse", "aggregation": "sum"},
    global_scale={"tinyproto_fp": PUBLISHED_FP_SCALE, "tinyproto_ft": PUBLISHED_FT_SCALE},
)

PRESETS: Mapping[str, Preset] = {
    "sound": Preset(
        sections={
            "partition": {"seed": 1},
            "prototypes": {"samples": "all", "counted_samples": "train", "masks": "balanced"},
            "train": {"shuffle": True, "last_batch": "join", "head_dropout": 0.0},
            "evaluate": {"rule": "global", "statistic": "last10"},
        },
        hyper={
            "proto_weight": 10.0,
            "distance": "mse",
            "prototype_source": "fresh",
            "aggregation": "weighed",
            "offered_classes": "uploaded",
            "global_scale": "auto",
            "max_length": "auto",
            "auxiliary": "smallest",
            "average_buffers": True,
            "reduction": "batch",
            "detach_targets": True,
            "matrices": "filters",
            "factorised": "weights",
            "teachers": "all",
        },
        global_scale=None,
    ),
    "reference": _REFERENCE,
    "paper": Preset(
        sections={
            **_PUBLISHED_SECTIONS,
            "prototypes": {"samples": "all", "counted_samples": "train", "masks": "balanced"},
            "evaluate": {"rule": "local", "statistic": "best"},
        },
        hyper={
            **_PUBLISHED_HYPER,
            "proto_weight": 1.0,
            "distance": "l2",
            "aggregation": "mean",
            "reduction": "batch",
            "detach_targets": True,
            "matrices": "filters",
            "factorised": "updates",
            "teachers": "others",
        },
        global_scale={"tinyproto_fp": PUBLISHED_FP_SCALE, "tinyproto_ft": PUBLISHED_FP_SCALE},
    ),
    "published": replace(
        _REFERENCE,
        sections={
            **_REFERENCE.sections,
            "prototypes": {**_REFERENCE.sections["prototypes"], "masks": "blocks"},
            "train": {**_REFERENCE.sections["train"], "head_dropout_in_place": True},
        },
        own_hyper={
            "fedproto": {"prototype_source": "running"},
            "tinyproto_fp": {"prototype_source": "running"},
            "fedtgp": {"prototype_source": "stale"},
            "tinyproto_ft": {"prototype_source": "stale"},
        },
    ),
}
