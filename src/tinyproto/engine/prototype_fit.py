"""The server's fit of trainable prototypes on a GPU: a step of `contrastive_step` in twelve kernels.

A fit is thousands of steps of a very small network, whose time is the number of kernels; autograd needs thirty. Here
the backward pass is written out. The loss and its gradient are two kernels of ours, the gradient of the ReLU also moves
both biases, and each matrix moves inside the product that is its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tinyproto.algorithms.fedtgp import TrainablePrototypes, contrastive_step, distance_penalty, margin_contrastive_loss
from tinyproto.core.task import Batch, State, Task
from tinyproto.errors import one_line
from tinyproto.stacked.fallback import OUT_OF_MEMORY, CannotStack, agree

MOST_CLASSES = 256
"""A kernel's program holds a column of all prototypes."""


LossGradient = Callable[[Batch, Tensor, Tensor, Tensor], Tensor]
ReluGradient = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, float], None]


class PrototypeFit:
    """Steps of one fit's network; `check` compares them with autograd before they are used.

    The two gradients are the parts of the backward pass that are not matrix products, see `kernels/contrast.py`.
    """

    def __init__(
        self, network: nn.Module, rate: float, loss_gradient: LossGradient, relu_gradient: ReluGradient
    ) -> None:
        self.network = network  # for its structure; each step is given the weights
        self.rate = rate
        self.loss_gradient, self.relu_gradient = loss_gradient, relu_gradient
        self.checked: set[Hashable] = set()

    @torch.no_grad()
    def step(self, weights: State, batch: Batch, penalty: Tensor, logged: Tensor, rate: float | None = None) -> None:
        """Take one step of SGD in place; add the sum of the batch's losses to `logged`, float64."""
        rate = self.rate if rate is None else rate
        embedding = weights["embedding.weight"].detach()
        hidden_weight, hidden_bias = weights["hidden.weight"].detach(), weights["hidden.bias"].detach()
        output_weight, output_bias = weights["output.weight"].detach(), weights["output.bias"].detach()

        hidden = torch._addmm_activation(hidden_bias, embedding, hidden_weight.T)  # through ReLU, (K, d)
        learned = torch.addmm(output_bias, hidden, output_weight.T)  # (K, d)
        of_learned = self.loss_gradient(batch, learned, penalty, logged)
        of_hidden = of_learned @ output_weight
        output_weight.addmm_(of_learned.T, hidden, alpha=-rate)
        self.relu_gradient(of_hidden, hidden, hidden_bias, of_learned, output_bias, rate)
        of_embedding = of_hidden @ hidden_weight
        hidden_weight.addmm_(of_hidden.T, embedding, alpha=-rate)
        embedding.sub_(of_embedding, alpha=rate)

    def check(self, weights: State, batch: Batch, penalty: Tensor) -> None:
        """Compare a step on random values of these shapes with autograd's, once; raise CannotStack if they differ."""
        device, precision = penalty.device, torch.backends.cuda.matmul.allow_tf32
        key = (*(value.shape for value in weights.values()), batch.inputs.shape, device, precision)
        if key in self.checked:
            return
        weights, batch, penalty = _drawn(weights, batch)
        expected = self._by_autograd(weights, batch, penalty)
        moved = {name: value.clone() for name, value in weights.items()}
        logged = torch.zeros(1, dtype=torch.float64, device=device)
        try:
            self.step(moved, batch, penalty, logged, rate=1.0)  # rate 1: a weight moves by its gradient
        except OUT_OF_MEMORY:
            raise
        except Exception as error:  # most likely a missing compiler
            raise CannotStack(one_line(error)) from error
        found = [logged / len(batch.labels), *(weights[name] - moved[name] for name in weights)]
        if not agree(found, expected):
            raise CannotStack("the kernels of its step disagree with PyTorch on this device")
        self.checked.add(key)

    def _by_autograd(self, weights: State, batch: Batch, penalty: Tensor) -> list[Tensor]:
        """Return the loss and its gradients."""
        with torch.enable_grad():
            leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
            learned = functional_call(self.network, leaves, ())
            loss = margin_contrastive_loss(batch.inputs, batch.labels, learned, penalty)
            return [loss.detach().unsqueeze(0), *torch.autograd.grad(loss, list(leaves.values()))]


def _drawn(weights: State, batch: Batch) -> tuple[State, Batch, Tensor]:
    """Draw random weights, uploads and a penalty of these shapes, one class of several not offered."""
    classes, dim = weights["embedding.weight"].shape
    device = batch.inputs.device
    generator = torch.Generator(device).manual_seed(0)  # a separate one: the run's random draws stay the same
    drawn = {name: torch.randn(value.shape, device=device, generator=generator) for name, value in weights.items()}
    drawn["hidden.weight"] /= dim**0.5
    drawn["output.weight"] /= dim**0.5
    drawn["hidden.bias"] = 2.5 * drawn["hidden.bias"].sign()  # so that rounding decides the sign of few sums
    offered = classes - 1 if classes > 2 else classes
    penalty = distance_penalty(torch.ones((), device=device), torch.arange(classes, device=device) < offered)
    labels = torch.arange(len(batch.labels), device=device) * 7 % offered
    return drawn, Batch(torch.randn(batch.inputs.shape, device=device, generator=generator), labels), penalty


def prototype_fit(task: Task) -> PrototypeFit | None:
    """Return the steps for a task that is such a fit, on a GPU for which kernels can be compiled; None otherwise."""
    if task.loss is not contrastive_step or len(task.groups) != 1 or task.groups[0].clip_norm is not None:
        return None
    network = task.modules["prototypes"]
    if not isinstance(network, TrainablePrototypes) or find_spec("triton") is None:
        return None
    weight = network.embedding.weight
    if not weight.is_cuda or weight.dtype != torch.float32 or len(weight) > MOST_CLASSES:
        return None
    from tinyproto.stacked.kernels.contrast import loss_gradient, relu_gradient

    return PrototypeFit(network, task.groups[0].learning_rate, loss_gradient, relu_gradient)
