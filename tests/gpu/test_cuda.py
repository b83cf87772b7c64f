"""The same federation on a GPU gives the CPU's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

import tinyproto as tp

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

# Towards prototypes of length 80, steps are so long that a single ReLU decided the other way shows. On a CPU, weights
# changed by 1e-7 move local prototypes by up to 15 %, changed by 1e-6 by up to 29 %. With length 1 it is 0.2 % and 7 %,
# as with FedProto and FedTGP. The alignment itself amplifies a change by about 3.
PROTONORM = {"name": "protonorm", "upscale": 1.0}


@pytest.mark.parametrize(
    "algorithm",
    [
        "local", "anchors", "fedgh", "fedproto", "fedtgp", pytest.param(PROTONORM, id="protonorm"), "fedsa", "fedorgp",
        "tinyproto_fp", "tinyproto_ft", "tinyproto_sphere",
    ],
)  # fmt: skip
def test_a_gpu_gives_the_cpu_s_numbers_up_to_rounding(algorithm: str | Mapping[str, Any]) -> None:
    def simulated(device: str) -> tp.Result:
        train = {"device": device, "batch_size": 16, "precision": "exact"}
        return tp.simulate(algorithm=algorithm, num_clients=6, rounds=2, settings={"train": train})

    cpu, gpu = simulated("cpu"), simulated("cuda")
    assert gpu.clients[0].train.inputs.is_cuda
    assert gpu.summary["peak_memory_bytes"] > 0
    for mine, other in zip(cpu.rounds, gpu.rounds, strict=True):
        assert mine.traffic == other.traffic
        assert mine.loss == pytest.approx(other.loss, rel=2e-2, abs=1e-4)
        for rule, accuracy in mine.accuracy.items():
            assert other.accuracy[rule] == (None if accuracy is None else pytest.approx(accuracy, abs=0.02))
    for left, right in zip(cpu.clients, gpu.clients, strict=True):
        assert float((right.local.values.cpu() - left.local.values).norm()) < 0.02 * float(left.local.values.norm())
