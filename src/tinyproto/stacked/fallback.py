"""Reasons not to use the fast path: a network without a stacked form, or a kernel that disagrees with PyTorch.

Triton compiles our kernels for every size anew and has been seen to compile one wrong. So each kernel is compared with
PyTorch on the device and at the sizes in use before it is trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar

import torch
from torch import Tensor

from tinyproto.core.task import Task
from tinyproto.errors import one_line

only_compile: ContextVar[bool] = ContextVar("only_compile", default=False)
"""True while kernels are compiled and not run: nothing that one of them writes is there."""
TOLERANCE = 0.01
"""Share of the largest value: TF32 rounds to a tenth of it, a wrong index is off by all of it."""

Layer = Callable[[Tensor, Tensor], Tensor]
_CHECKED: set[Hashable] = set()


class CannotStack(Exception):  # noqa: N818
    """A network, loss or kernel that the fast path cannot use; the message says why."""


def check_kernel(name: str, key: Hashable, kernel: Layer, plain: Layer, values: Tensor, weight: Tensor) -> None:
    """Compare outputs and both gradients on random inputs of these shapes, once; raise CannotStack if they differ."""
    full_key = (key, values.shape, weight.shape, values.device, torch.backends.cudnn.allow_tf32)
    if full_key in _CHECKED or only_compile.get():
        return
    generator = torch.Generator(values.device).manual_seed(0)  # a separate one: the run's random draws stay the same
    with torch.enable_grad():
        drawn = [
            torch.randn(each.shape, device=each.device, generator=generator).requires_grad_()
            for each in (values, weight)
        ]
        outcomes = [layer(*drawn) for layer in (kernel, plain)]
        upstream = torch.randn(outcomes[0].shape, device=values.device, generator=generator)
        found, expected = ((outcome, *torch.autograd.grad(outcome, drawn, upstream)) for outcome in outcomes)
    if not agree(found, expected):
        raise CannotStack(f"the {name} kernel disagrees with PyTorch on this device")
    _CHECKED.add(full_key)


def agree(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Return True if all tensors are equal up to rounding; NaN equals nothing."""
    return all(
        float((one - two).detach().abs().max()) <= TOLERANCE * float(two.detach().abs().max())
        for one, two in zip(found, expected, strict=True)
    )


UNUSABLE = "this process cannot use the GPU any more; train.trainer=eager runs without our kernels"


def still_usable(device: torch.device, error: Exception) -> bool:
    """Return True unless an error has made a GPU unusable for this process, as a fault of a kernel does.

    No other trainer can take over then, so the error gets a note that says what helps.
    """
    try:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except Exception:
        if UNUSABLE not in getattr(error, "__notes__", ()):
            error.add_note(UNUSABLE)
        return False
    return True


def fallback_note(task: Task, how: str, reason: Exception) -> str:
    """Return a line for the log: whose work runs in another way, and why."""
    return f"{task.name} and similar tasks run {how}: {reason if isinstance(reason, CannotStack) else one_line(reason)}"
