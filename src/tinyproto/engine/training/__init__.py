"""Trainers: interchangeable ways to execute tasks. Eager is the readable reference that every other has to match."""

from __future__ import annotations

from typing import Literal

import torch

from tinyproto.core.task import Trainer
from tinyproto.engine.training.eager import EagerTrainer
from tinyproto.engine.training.graphed import GraphedTrainer
from tinyproto.engine.training.stacked.trainer import StackedTrainer

TrainerName = Literal["auto", "eager", "graphed", "stacked"]

__all__ = ["EagerTrainer", "TrainerName", "make_trainer"]


def make_trainer(name: TrainerName, device: torch.device) -> Trainer:
    """The trainer a config names."""
    if name == "graphed":
        return GraphedTrainer(device)
    return StackedTrainer(device) if name == "stacked" else EagerTrainer(device)
