"""The same federation on a GPU gives the CPU's numbers."""

from __future__ import annotations

import pytest
import torch

import tinyproto as tp

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize(
    "algorithm",
    [
        "local", "anchors", "fedgh", "fedproto", "fedtgp", "protonorm", "fedsa", "fedorgp", "tinyproto_fp",
        "tinyproto_ft", "tinyproto_sphere",
    ],
)  # fmt: skip
def test_a_gpu_gives_the_cpu_s_numbers_up_to_rounding(algorithm: str) -> None:
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
