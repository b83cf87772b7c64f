"""The presets: the value of each key that the paper and the published code leave open, in each preset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tinyproto.config import Config, parse_config
from tinyproto.core.prototypes import REGULARISERS, Prototypes
from tinyproto.data import from_arrays
from tinyproto.errors import ConfigError

FP, FT = "tinyproto_fp", "tinyproto_ft"
DATASETS = ("cifar10", "cifar100", "tiny_imagenet")
PRESETS = ("sound", "reference", "paper", "published")


def config(preset: str, *algorithms: Any, dataset: str = "cifar10", **sections: Any) -> Config:
    images = from_arrays(np.zeros((2, 8, 8), dtype=np.uint8), [0, 1], name=dataset)
    given = {"preset": preset, "models": ["small_cnn_a"], "algorithms": list(algorithms) or ["local"], **sections}
    return parse_config(given, images=images)


def hyper(preset: str, algorithm: Any, dataset: str = "cifar10") -> Any:
    return config(preset, algorithm, dataset=dataset).algorithms[0].hyper


@pytest.mark.parametrize(
    ("section", "key", "by_preset"),
    [
        ("partition", "seed", (1, 1, 1, 1)),
        ("partition", "min_samples", (1, 1, 1, 1)),
        ("evaluate", "rule", ("global", "global", "local", "global")),
        ("prototypes", "counted_samples", ("train", "all", "train", "all")),
        ("prototypes", "samples", ("all", "seen", "all", "seen")),
        ("train", "shuffle", (True, False, False, False)),
        ("train", "last_batch", ("join", "drop", "drop", "drop")),
        ("evaluate", "statistic", ("last10", "best", "best", "best")),
        ("train", "head_dropout", (0.0, 0.2, 0.2, 0.2)),
        ("train", "head_dropout_in_place", (False, False, False, True)),
        ("prototypes", "masks", ("balanced", "balanced", "balanced", "blocks")),
    ],
)
def test_a_preset_sets_each_open_point_of_the_run(section: str, key: str, by_preset: tuple[Any, ...]) -> None:
    found = [getattr(getattr(config(preset).model, section), key) for preset in PRESETS]
    assert found == list(by_preset)


@pytest.mark.parametrize(
    ("algorithm", "key", "by_preset"),
    [
        ("fedproto", "proto_weight", (10.0, 10.0, 1.0, 10.0)),
        (FT, "proto_weight", (10.0, 10.0, 1.0, 10.0)),
        (FP, "aggregation", ("weighed", "sum", "mean", "sum")),
        ("fedproto", "prototype_source", ("fresh", "fresh", "fresh", "running")),
        (FP, "prototype_source", ("fresh", "fresh", "fresh", "running")),
        ("fedtgp", "prototype_source", ("fresh", "fresh", "fresh", "stale")),
        (FT, "prototype_source", ("fresh", "fresh", "fresh", "stale")),
        ("protonorm", "prototype_source", ("fresh", "fresh", "fresh", "fresh")),
        ("fedtgp", "offered_classes", ("uploaded", "all", "all", "all")),
        (FT, "offered_classes", ("uploaded", "all", "all", "all")),
        ("fml", "auxiliary", ("smallest", "resnet8", "resnet8", "resnet8")),
        ("fedkd", "auxiliary", ("smallest", "resnet8", "resnet8", "resnet8")),
        ("fml", "average_buffers", (True, False, False, False)),
        ("fedkd", "average_buffers", (True, False, False, False)),
        ("fml", "reduction", ("batch", "element", "batch", "element")),
        ("fedkd", "reduction", ("batch", "element", "batch", "element")),
        ("fml", "detach_targets", (True, False, True, False)),
        ("fedkd", "detach_targets", (True, False, True, False)),
        ("fml", "clip_norm", (10.0, 10.0, 10.0, 10.0)),
        ("fml", "local_weight", (0.5, 0.5, 0.5, 0.5)),
        ("fml", "auxiliary_weight", (0.5, 0.5, 0.5, 0.5)),
        ("fedkd", "matrices", ("filters", "kernels", "filters", "kernels")),
        ("fedkd", "energy_start", (0.95, 0.95, 0.95, 0.95)),
        ("fedkd", "energy_end", (0.98, 0.98, 0.98, 0.98)),
        ("fedkd", "factorised", ("weights", "weights", "updates", "weights")),
        ("feddistill", "teachers", ("all", "all", "others", "all")),
        ("feddistill", "distill_weight", (1.0, 1.0, 1.0, 1.0)),
    ],
)
def test_a_preset_sets_each_open_point_of_the_methods(algorithm: str, key: str, by_preset: tuple[Any, ...]) -> None:
    assert [getattr(hyper(preset, algorithm), key) for preset in PRESETS] == list(by_preset)


@pytest.mark.parametrize("algorithm", ["fedproto", "fedtgp", FP, FT])
@pytest.mark.parametrize(
    ("preset", "expected"), [("sound", 43 / 6), ("reference", 43 / 6), ("paper", 7.0), ("published", 43 / 6)]
)
def test_a_preset_pulls_by_its_own_distance(preset: str, algorithm: str, expected: float) -> None:
    # Row 4. Class 0's batch mean (1, 0) is 4 from its prototype, class 1's is 3 from its own: 7 in the paper's sum.
    # Squared errors by sample are 1+16, 1+16 and 0+9: 43 over 3 samples and 2 dimensions.
    features = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    prototypes = Prototypes(torch.tensor([[1.0, 4.0], [0.0, 0.0]]), torch.tensor([True, True]))
    regulariser = REGULARISERS[hyper(preset, algorithm).distance]
    assert float(regulariser(features, torch.tensor([0, 0, 1]), prototypes)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("preset", "algorithm", "scales"),
    [
        ("sound", FP, ("auto", "auto", "auto")),
        ("sound", FT, ("auto", "auto", "auto")),
        ("reference", FP, (1.5e-4, 1.5e-3, 1.5e-3)),
        ("reference", FT, (1e-3, 1e-2, 1e-2)),
        ("paper", FP, (1.5e-4, 1.5e-3, 1.5e-3)),
        ("paper", FT, (1.5e-4, 1.5e-3, 1.5e-3)),
        ("published", FP, (1.5e-4, 1.5e-3, 1.5e-3)),
        ("published", FT, (1e-3, 1e-2, 1e-2)),
    ],
)
def test_a_preset_takes_its_global_scale_for_the_papers_datasets(
    preset: str, algorithm: str, scales: tuple[Any, Any, Any]
) -> None:
    assert [hyper(preset, algorithm, dataset).global_scale for dataset in DATASETS] == list(scales)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("algorithm", [FP, FT])
def test_the_first_classes_of_a_dataset_have_its_global_scale(preset: str, algorithm: str) -> None:
    whole = hyper(preset, algorithm, "tiny_imagenet").global_scale
    values = {"preset": preset, "models": ["resnet8"], "algorithms": [algorithm]}
    part = parse_config({**values, "data": {"name": "tiny_imagenet", "first_classes": 100}})
    assert part.algorithms[0].hyper.global_scale == whole
    assert hyper(preset, algorithm, "tiny_imagenet, first 100 classes").global_scale == whole  # as images in Python


@pytest.mark.parametrize("preset", ["reference", "paper", "published"])
def test_without_a_published_scale_a_preset_asks_for_one(preset: str) -> None:
    with pytest.raises(ConfigError, match=r"tinyproto_ft: .*no published global_scale .* 'digits'; set global_scale"):
        hyper(preset, FT, dataset="digits")
    assert hyper(preset, {"name": FT, "global_scale": "auto"}, dataset="digits").global_scale == "auto"
    assert hyper(preset, {"name": FT, "global_scale": 0.5}, dataset="digits").global_scale == 0.5
    assert hyper(preset, {"name": FT, "scaling": "none"}, dataset="digits").scaling == "none"


def test_an_explicit_key_wins_over_the_preset() -> None:
    chosen = config(
        "reference",
        {"name": FT, "proto_weight": 3.0, "global_scale": 0.25},
        train={"last_batch": "keep"},
        partition={"seed": 9},
    )
    assert chosen.model.train.last_batch == "keep"
    assert chosen.model.train.shuffle is False
    assert chosen.model.partition.seed == 9
    assert chosen.algorithms[0].hyper.proto_weight == 3.0
    assert chosen.algorithms[0].hyper.global_scale == 0.25
