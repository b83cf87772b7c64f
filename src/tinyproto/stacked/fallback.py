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

Layer = Callable[..., Tensor | tuple[Tensor, ...]]
"""Returns its output, or its output and more that has to agree."""
FEW = 64
"""Samples that PyTorch computes, too, where only outputs are compared: features come from hundreds at a time."""
_CHECKED: set[Hashable] = set()


class CannotStack(Exception):  # noqa: N818
    """A network, loss or kernel that the fast path cannot use; the message says why."""


def check_kernel(
    name: str, key: Hashable, kernel: Layer, plain: Layer, maps: Sequence[Tensor], weights: Sequence[Tensor]
) -> None:
    """Compare both on random maps (n, C, B, …) and weights of these shapes, once; raise CannotStack if they differ.

    Gradients of all inputs are compared as well. Where gradients are disabled, only outputs of some samples are.
    """
    device, shapes = maps[0].device, tuple(each.shape for each in (*maps, *weights))
    trains, precision = torch.is_grad_enabled(), torch.backends.cudnn.allow_tf32
    full_key = (name, key, shapes, device, precision, trains)
    if full_key in _CHECKED or only_compile.get():
        return
    generator = torch.Generator(device).manual_seed(0)  # a separate one: the run's random draws stay the same
    drawn = [torch.randn(shape, device=device, generator=generator) for shape in shapes]
    some = slice(None, None, None if trains else -(-maps[0].shape[2] // FEW))
    try:
        found = _results(kernel, drawn)
        found[0] = found[0][:, :, some]
        expected = _results(plain, [*(each[:, :, some] for each in drawn[: len(maps)]), *drawn[len(maps) :]])
        agreed = agree(found, expected)
    except Exception as error:
        error.add_note(f"while checking the {name} kernel")
        raise
    if not agreed:
        raise CannotStack(f"the {name} kernel disagrees with PyTorch on this device")
    _CHECKED.add(full_key)


def _results(layer: Layer, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return what a layer returns, and the gradients of all inputs if gradients are enabled."""
    inputs = [each.detach().requires_grad_(torch.is_grad_enabled()) for each in inputs]
    found = layer(*inputs)
    outcome, *more = found if isinstance(found, tuple) else (found,)
    if not outcome.requires_grad:
        return [outcome, *more]
    generator = torch.Generator(outcome.device).manual_seed(1)
    upstream = torch.randn(outcome.shape, device=outcome.device, generator=generator)
    return [outcome.detach(), *more, *torch.autograd.grad(outcome, inputs, upstream)]


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
    return f"{task.name} and similar tasks run {how}: {reason_of(reason)}"


def reason_of(error: Exception) -> str:
    """Return our own words, or the type and message of another library's error."""
    return str(error) if isinstance(error, CannotStack) else one_line(error)
