"""`python -m benchmarks round` on a GPU: the baseline runs there, too, and the share of kernels is at most 1."""

from __future__ import annotations

import pytest
import torch

from benchmarks.contenders import Asked, Baseline
from benchmarks.machine import gpu_share
from benchmarks.round import measure_rounds
from benchmarks.synthetic import VALUES, synthetic_images
from tinyproto.config import parse_config
from tinyproto.experiment import Experiment

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_the_baseline_and_both_trainers_play_the_same_rounds_there() -> None:
    values = {**VALUES, "models": ["small_cnn_a", "small_cnn_b"], "train": {"batch_size": 32, "device": "cuda"}}
    experiment = Experiment(parse_config(values), synthetic_images(600))
    asked = [Asked("eager"), Asked("stacked")]
    found = measure_rounds(experiment, asked, Baseline.find(None), 1, lambda words: None)
    (algorithm,) = found["algorithms"]
    eager, stacked, naive = algorithm["contenders"]
    for row in (eager, stacked, naive):
        assert 0 < row["busy_share"] <= 1
        assert row["peak_memory_bytes"] > 0
    assert stacked["loss"] == pytest.approx(eager["loss"], rel=0.05)
    assert naive["loss"] == pytest.approx(eager["loss"], rel=0.05)


def test_a_device_that_does_nothing_is_not_busy_and_one_that_multiplies_is() -> None:
    device = torch.device("cuda")
    values = torch.rand(4096, 4096, device=device)

    def multiply() -> None:
        for _ in range(200):
            values @ values

    multiply()
    assert gpu_share(lambda: None, device) == 0
    assert gpu_share(multiply, device) > 0.5
