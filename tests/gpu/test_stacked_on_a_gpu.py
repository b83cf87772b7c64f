"""The stack on a GPU: its own kernels against PyTorch's, captured steps against the reference."""

from __future__ import annotations

import pytest
import torch

import tinyproto as tp
from tinyproto.engine.training.stacked.depthwise import depthwise_convolution, plain_depthwise

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2)])
@pytest.mark.parametrize("size", [1, 2, 5, 16])
def test_the_depthwise_kernels_give_pytorch_s_values_and_gradients(kernel: int, stride: int, size: int) -> None:
    values = torch.randn(3, 7, 5, size, size, device="cuda", requires_grad=True)
    weight = torch.randn(3, 7, kernel, kernel, device="cuda", requires_grad=True)
    geometry = ((stride, stride), (kernel // 2, kernel // 2))
    mine, other = depthwise_convolution(values, weight, *geometry), plain_depthwise(values, weight, *geometry)
    assert torch.allclose(mine, other, atol=1e-5)
    upstream = torch.randn_like(mine)
    found = torch.autograd.grad(mine, (values, weight), upstream)
    expected = torch.autograd.grad(other, (values, weight), upstream)
    for one, two in zip(found, expected, strict=True):
        assert torch.allclose(one, two, atol=1e-3)


@pytest.mark.parametrize("algorithm", ["local", "fml", "fedkd", "feddistill", "fedproto", "fedtgp", "tinyproto_ft"])
def test_captured_steps_give_the_reference_s_numbers_up_to_rounding(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)

    def simulated(trainer: str) -> tp.Result:
        train = {"device": "cuda", "batch_size": 16, "trainer": trainer}
        networks = ["small_cnn_a", "small_cnn_c"]
        return tp.simulate(algorithm=algorithm, models=networks, num_clients=6, rounds=3, settings={"train": train})

    eager, stacked = simulated("eager"), simulated("stacked")
    for mine, other in zip(stacked.rounds, eager.rounds, strict=True):
        assert mine.traffic == other.traffic
        assert mine.loss == pytest.approx(other.loss, rel=1e-2, abs=1e-4)
        for rule, accuracy in other.accuracy.items():
            assert mine.accuracy[rule] == (None if accuracy is None else pytest.approx(accuracy, abs=0.02))
