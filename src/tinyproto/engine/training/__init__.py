"""Trainers: interchangeable ways to execute tasks. Eager is the readable reference that every other has to match."""

from __future__ import annotations

from typing import Literal

import torch

from tinyproto.core.task import Trainer
from tinyproto.engine.training.eager import EagerTrainer

TrainerName = Literal["auto", "eager"]

__all__ = ["EagerTrainer", "TrainerName", "make_trainer"]


def make_trainer(name: TrainerName, device: torch.device) -> Trainer:
    """The trainer a config names; `auto` takes the fastest that fits, which for now is the only one there is."""
    return {"auto": EagerTrainer, "eager": EagerTrainer}[name](device)
