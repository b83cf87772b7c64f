"""A server's fit of trainable prototypes to random uploads, as FedTGP asks for it."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor, nn

from tinyproto.algorithms.fedtgp import TrainablePrototypes, contrastive_step, distance_penalty, margin_contrastive_loss
from tinyproto.core.task import Batch, ParamGroup, State, Task, TensorData, batch_plan


def make_network(classes: int, dim: int, seed: int = 0) -> TrainablePrototypes:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return TrainablePrototypes(classes, dim)


def make_uploads(classes: int, dim: int, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Of every class but the last, scattered about a centre of their class."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, dim, generator=generator)
    labels = torch.randint(0, max(classes - 1, 1), (count,), generator=generator)
    return centres[labels] + torch.randn(count, dim, generator=generator), labels


def all_but_the_last(classes: int, margin: float = 2.0) -> Tensor:
    """The penalty where the last class is not offered."""
    return distance_penalty(torch.tensor(margin), torch.arange(classes) < max(classes - 1, 1))


def make_fit(
    classes: int, dim: int, count: int, *, epochs: int = 3, batch_size: int = 32, rate: float = 0.05,
    device: torch.device | str = "cpu",
) -> Task:  # fmt: skip
    values, labels = make_uploads(classes, dim, count)
    shuffle = torch.Generator().manual_seed(1)
    return Task(
        name="the server",
        key=("a fit", dim),
        modules=nn.ModuleDict({"prototypes": make_network(classes, dim).to(device)}),
        groups=[ParamGroup("prototypes", rate)],
        context={"penalty": all_but_the_last(classes).to(device)},
        loss=contrastive_step,
        part_names=("contrastive",),
        data=TensorData(values, labels).to(device),
        plan=batch_plan(count, batch_size, epochs, last="keep", shuffle=shuffle),
        num_classes=classes,
        seed=0,
    )


def again(task: Task) -> Task:
    """The same fit from the same start."""
    return replace(task, modules=deepcopy(task.modules))


def by_autograd(network: nn.Module, batch: Batch, penalty: Tensor) -> tuple[Tensor, State]:
    """A batch's loss, and the gradient of every weight."""
    loss = margin_contrastive_loss(batch.inputs, batch.labels, network(), penalty)
    names, weights = zip(*network.named_parameters(), strict=True)
    return loss.detach(), dict(zip(names, torch.autograd.grad(loss, weights), strict=True))
