"""Trainers: interchangeable ways to execute tasks. Eager is the readable reference that every other has to match."""

from __future__ import annotations

from tinyproto.engine.training.eager import EagerTrainer

__all__ = ["EagerTrainer"]
