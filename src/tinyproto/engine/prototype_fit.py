"""The server's fit of trainable prototypes on a GPU: many epochs of `contrastive_step` in one kernel.

A fit is thousands of steps of a very small network. A step by autograd is thirty kernels, and its time is their number.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tinyproto.algorithms.fedtgp import TrainablePrototypes, contrastive_step, distance_penalty, margin_contrastive_loss
from tinyproto.core.task import Batch, State, Task, TensorData
from tinyproto.errors import one_line
from tinyproto.memory import is_out_of_memory
from tinyproto.stacked.capture import why_no_kernels
from tinyproto.stacked.fallback import CannotStack, agree, still_usable

MOST_CLASSES = 256
"""A kernel's program holds the distances of an upload from all prototypes."""

GATHERED = 2**26
"""Bytes of uploads, in the order of their batches, for which the kernel is launched once."""

Epochs = Callable[[State, Batch, int, Tensor, Tensor, float], None]


class PrototypeFit:
    """Epochs of one fit's network; `check` compares them with autograd before they are used.

    `epochs` takes the steps of one or more, see `kernels/contrast.py`.
    """

    def __init__(self, network: nn.Module, rate: float, epochs: Epochs) -> None:
        self.network = network  # for its structure; each call is given the weights
        self.rate = rate
        self.epochs = epochs
        self.checked: set[Hashable] = set()

    @torch.no_grad()
    def run(self, weights: State, data: TensorData, order: Tensor, batch: int, penalty: Tensor) -> Tensor:
        """Take a step of SGD for each batch of each epoch, in place; return the epochs' sums of losses, float64.

        It stops early if a sum is not finite: programs that wait in vain take ten seconds for each launch.
        """
        size = order.shape[1] * data.pool[:1].numel() * torch.float32.itemsize
        sums: list[Tensor] = []
        for rows in torch.split(order, max(GATHERED // size, 1)):
            sums.append(torch.zeros(len(rows), dtype=torch.float64, device=penalty.device))
            self.epochs(weights, data.batch(rows.flatten()), batch, penalty, sums[-1], self.rate)
            if not bool(sums[-1].isfinite().all()):
                break
        return torch.cat(sums)

    def check(self, weights: State, batch: int, penalty: Tensor) -> None:
        """Compare two steps on random values of these shapes with autograd's, once; raise CannotStack if they differ.

        The second step has one sample less.
        """
        device = penalty.device
        key = (*(value.shape for value in weights.values()), batch, device)
        if key in self.checked:
            return
        weights, samples, penalty = _drawn(weights, max(2 * batch - 1, 1), device)
        expected = self._by_autograd(weights, samples, batch, penalty)
        moved = {name: value.clone() for name, value in weights.items()}
        logged = torch.zeros(1, dtype=torch.float64, device=device)
        try:
            self.epochs(moved, samples, batch, penalty, logged, 1.0)  # rate 1: a weight moves by its gradient
            agreed = agree([logged, *(weights[name] - moved[name] for name in weights)], expected)
        except Exception as error:  # most likely a missing compiler
            if is_out_of_memory(error) or not still_usable(device, error):
                error.add_note("while checking the kernel of the server's fit")
                raise
            raise CannotStack(one_line(error)) from error
        if not agreed:
            raise CannotStack("the kernel of its epoch disagrees with PyTorch on this device")
        self.checked.add(key)

    def _by_autograd(self, weights: State, samples: Batch, batch: int, penalty: Tensor) -> list[Tensor]:
        """Return the sum of the losses, and how far each weight moves at rate 1, in float64: TF32 would flip signs."""
        weights, penalty = {name: value.double() for name, value in weights.items()}, penalty.double()
        leaves, logged = weights, torch.zeros(1, dtype=torch.float64, device=penalty.device)
        for inputs, labels in zip(*(torch.split(each, batch) for each in samples), strict=True):
            with torch.enable_grad():
                leaves = {name: value.detach().requires_grad_() for name, value in leaves.items()}
                found = functional_call(self.network, leaves, ())
                loss = margin_contrastive_loss(inputs.double(), labels, found, penalty)
                gradients = torch.autograd.grad(loss, list(leaves.values()))
            logged += loss.detach() * len(labels)
            leaves = {
                name: leaf.detach() - slope for (name, leaf), slope in zip(leaves.items(), gradients, strict=True)
            }
        return [logged, *(weights[name] - leaves[name] for name in weights)]


def _drawn(weights: State, count: int, device: torch.device) -> tuple[State, Batch, Tensor]:
    """Draw random weights, uploads and a penalty of these shapes, one class of several not offered."""
    classes, dim = weights["embedding.weight"].shape
    generator = torch.Generator(device).manual_seed(0)  # a separate one: the run's random draws stay the same
    drawn = {name: torch.randn(value.shape, device=device, generator=generator) for name, value in weights.items()}
    drawn["hidden.weight"] /= dim**0.5
    drawn["output.weight"] /= dim**0.5
    drawn["hidden.bias"] = 2.5 * drawn["hidden.bias"].sign()  # so that rounding decides the sign of few sums
    offered = classes - 1 if classes > 2 else classes
    penalty = distance_penalty(torch.ones((), device=device), torch.arange(classes, device=device) < offered)
    labels = torch.arange(count, device=device) * 7 % offered
    return drawn, Batch(torch.randn(count, dim, device=device, generator=generator), labels), penalty


def prototype_fit(task: Task, *, shared: bool = False) -> PrototypeFit | None:
    """Return the epochs for a task that is such a fit, on a GPU for which kernels can be compiled; None otherwise.

    With `shared`, other cells run on the GPU.
    """
    if task.loss is not contrastive_step or len(task.groups) != 1 or task.groups[0].clip_norm is not None:
        return None
    network = task.modules["prototypes"]
    if not isinstance(network, TrainablePrototypes):
        return None
    weight = network.embedding.weight
    if (
        not weight.is_cuda
        or why_no_kernels(weight.device) is not None
        or weight.dtype != torch.float32
        or len(weight) > MOST_CLASSES
    ):
        return None
    from tinyproto.stacked.kernels.contrast import epochs

    return PrototypeFit(network, task.groups[0].learning_rate, partial(epochs, shared=shared))
