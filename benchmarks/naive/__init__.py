"""A federated round as the published libraries write it: the baseline of `python -m benchmarks round`."""

from __future__ import annotations

from benchmarks.naive.prototypes import class_means, nearest
from benchmarks.naive.rounds import NaiveFederation

__all__ = ["NaiveFederation", "class_means", "nearest"]
