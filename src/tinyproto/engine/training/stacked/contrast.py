"""The server's fit of trainable prototypes on a GPU: the step that `contrastive_step` describes, in twelve kernels.

A fit is thousands of steps of a network so small that a step takes as long as its kernels are many, and autograd makes
thirty of it. Here the way back is written out. The loss with its gradient is two kernels of our own, the way through
the ReLU moves both biases, and a matrix moves inside the product that is its gradient.
"""

from __future__ import annotations

from collections.abc import Hashable
from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tinyproto.algorithms.fedtgp import TrainablePrototypes, contrastive_step, distance_penalty, margin_contrastive_loss
from tinyproto.core.task import Batch, State, Task
from tinyproto.engine.training.stacked.operations import CannotStack
from tinyproto.engine.training.stacked.proof import alike
from tinyproto.errors import one_line

MOST_CLASSES = 256
"""A program of a kernel holds a column of all prototypes."""


class Kernels(Protocol):
    """The two parts of the way back that are not matrix products."""

    def of_learned(self, batch: Batch, learned: Tensor, penalty: Tensor, logged: Tensor) -> Tensor:
        """The loss's gradient (K, d); adds the sum of the batch's losses to `logged`."""
        ...

    def through_relu(
        self, of_hidden: Tensor, hidden: Tensor, hidden_bias: Tensor, of_learned: Tensor, output_bias: Tensor,
        rate: float,
    ) -> None:  # fmt: skip
        """Make `of_hidden`, the gradient (K, d) after a ReLU, that before it; moves the biases of both layers."""
        ...


class ContrastiveFit:
    """Steps of one fit's network; they prove themselves before they are taken."""

    def __init__(self, network: nn.Module, kernels: Kernels, rate: float) -> None:
        self.network = network  # for its form; the weights come with a step
        self.kernels = kernels
        self.rate = rate
        self.proven: set[Hashable] = set()

    def step(self, weights: State, batch: Batch, penalty: Tensor, logged: Tensor) -> None:
        """One step of SGD, in place; adds the sum of the batch's losses to `logged`, float64."""
        with torch.no_grad():
            self._step({name: value.detach() for name, value in weights.items()}, batch, penalty, logged, self.rate)

    def _step(self, weights: State, batch: Batch, penalty: Tensor, logged: Tensor, rate: float) -> None:
        embedding = weights["embedding.weight"]
        hidden_weight, hidden_bias = weights["hidden.weight"], weights["hidden.bias"]
        output_weight, output_bias = weights["output.weight"], weights["output.bias"]

        hidden = torch._addmm_activation(hidden_bias, embedding, hidden_weight.T)  # through ReLU, (K, d)
        learned = torch.addmm(output_bias, hidden, output_weight.T)  # (K, d)
        of_learned = self.kernels.of_learned(batch, learned, penalty, logged)
        of_hidden = of_learned @ output_weight
        output_weight.addmm_(of_learned.T, hidden, alpha=-rate)
        self.kernels.through_relu(of_hidden, hidden, hidden_bias, of_learned, output_bias, rate)
        of_embedding = of_hidden @ hidden_weight
        hidden_weight.addmm_(of_hidden.T, embedding, alpha=-rate)
        embedding.sub_(of_embedding, alpha=rate)

    def prove(self, weights: State, batch: Batch, penalty: Tensor) -> None:
        """Compare a step on random values of these shapes with autograd's, once; CannotStack where they differ."""
        device, precision = penalty.device, torch.backends.cuda.matmul.allow_tf32
        key = (*(value.shape for value in weights.values()), batch.inputs.shape, device, precision)
        if key in self.proven:
            return
        weights, batch, penalty = _drawn(weights, batch)
        expected = self._by_autograd(weights, batch, penalty)
        moved = {name: value.clone() for name, value in weights.items()}
        logged = torch.zeros(1, dtype=torch.float64, device=device)
        try:
            with torch.no_grad():
                self._step(moved, batch, penalty, logged, rate=1.0)  # so that a move is as long as its gradient
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # a compiler that is missing, most likely
            raise CannotStack(one_line(error)) from error
        found = [logged / len(batch.labels), *(weights[name] - moved[name] for name in weights)]
        if not alike(found, expected):
            raise CannotStack("the kernels of its step give other values than PyTorch on this device")
        self.proven.add(key)

    def _by_autograd(self, weights: State, batch: Batch, penalty: Tensor) -> list[Tensor]:
        """The loss and its gradients."""
        with torch.enable_grad():
            leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
            learned = functional_call(self.network, leaves, ())
            loss = margin_contrastive_loss(batch.inputs, batch.labels, learned, penalty)
            return [loss.detach().unsqueeze(0), *torch.autograd.grad(loss, list(leaves.values()))]


def _drawn(weights: State, batch: Batch) -> tuple[State, Batch, Tensor]:
    """Random weights, uploads and a penalty of these shapes, one class of several not offered."""
    classes, dim = weights["embedding.weight"].shape
    device = batch.inputs.device
    generator = torch.Generator(device).manual_seed(0)  # of its own: the run's draws stay as they are
    drawn = {name: torch.randn(value.shape, device=device, generator=generator) for name, value in weights.items()}
    drawn["hidden.weight"] /= dim**0.5
    drawn["output.weight"] /= dim**0.5
    drawn["hidden.bias"] = 2.5 * drawn["hidden.bias"].sign()  # few sums so near to zero that rounding tells their sign
    offered = classes - 1 if classes > 2 else classes
    penalty = distance_penalty(torch.ones((), device=device), torch.arange(classes, device=device) < offered)
    labels = torch.arange(len(batch.labels), device=device) * 7 % offered
    return drawn, Batch(torch.randn(batch.inputs.shape, device=device, generator=generator), labels), penalty


def own_step(task: Task) -> ContrastiveFit | None:
    """For tasks that are such a fit, on a GPU that kernels can be compiled for."""
    if task.loss is not contrastive_step or len(task.groups) != 1 or task.groups[0].clip_norm is not None:
        return None
    network = task.modules["prototypes"]
    if not isinstance(network, TrainablePrototypes) or find_spec("triton") is None:
        return None
    weight = network.embedding.weight
    if not weight.is_cuda or weight.dtype != torch.float32 or len(weight) > MOST_CLASSES:
        return None
    from tinyproto.engine.training.stacked.kernels.contrast import TritonContrast

    return ContrastiveFit(network, TritonContrast(), task.groups[0].learning_rate)
