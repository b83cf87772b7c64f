"""Kernels of our own prove themselves on the device and at the sizes at hand before they are used.

They are compiled for every size by a compiler that has been seen to get one wrong; the fast way may be slow to start,
never wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from tinyproto.engine.training.stacked.operations import CannotStack

ALLOWED = 0.01
"""Of the largest value: TF32 rounds to a tenth of it, a wrong index is off by all of it."""

_PROVEN: set[Hashable] = set()
Layer = Callable[[Tensor, Tensor], Tensor]


def prove(name: str, key: Hashable, mine: Layer, plain: Layer, values: Tensor, weight: Tensor) -> None:
    """Compare values and both gradients on random inputs of these shapes, once; CannotStack where they differ."""
    whole_key = (key, values.shape, weight.shape, values.device, torch.backends.cudnn.allow_tf32)
    if whole_key in _PROVEN:
        return
    generator = torch.Generator(values.device).manual_seed(0)  # of its own: the run's draws stay as they are
    with torch.enable_grad():
        drawn = [
            torch.randn(each.shape, device=each.device, generator=generator).requires_grad_()
            for each in (values, weight)
        ]
        outcomes = [layer(*drawn) for layer in (mine, plain)]
        upstream = torch.randn(outcomes[0].shape, device=values.device, generator=generator)
        found, expected = ((outcome, *torch.autograd.grad(outcome, drawn, upstream)) for outcome in outcomes)
    if not alike(found, expected):
        raise CannotStack(f"the {name} kernel gives other values than PyTorch on this device")
    _PROVEN.add(whole_key)


def alike(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether each is the other up to rounding; what is not a number is like nothing."""
    return all(
        float((one - two).detach().abs().max()) <= ALLOWED * float(two.detach().abs().max())
        for one, two in zip(found, expected, strict=True)
    )
