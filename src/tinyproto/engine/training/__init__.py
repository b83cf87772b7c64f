"""Trainers: interchangeable ways to execute tasks. Eager is the readable reference that every other has to match."""

from __future__ import annotations

import torch

from tinyproto.core.task import Trainer
from tinyproto.engine.training.choice import Choice, Known, Precision, Rounded, TrainerName, choose
from tinyproto.engine.training.eager import EagerTrainer
from tinyproto.engine.training.graphed import GraphedTrainer
from tinyproto.engine.training.stacked.trainer import StackedTrainer

__all__ = ["Choice", "EagerTrainer", "Known", "Precision", "TrainerName", "choose", "make_trainer"]

_TRAINERS = {"eager": EagerTrainer, "graphed": GraphedTrainer, "stacked": StackedTrainer}


def make_trainer(name: Known, device: torch.device, precision: Precision = "float32") -> Trainer:
    """The trainer chosen; on a GPU with products rounded as told, on a CPU there is nothing to tell."""
    trainer: Trainer = _TRAINERS[name](device)
    return trainer if device.type == "cpu" else Rounded(trainer, precision)
