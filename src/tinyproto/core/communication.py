"""The paper's Table 2: parameters per round by closed formula, to stand beside what the meter measures."""

from __future__ import annotations

from collections.abc import Sequence


def prototype_parameters(classes_held: Sequence[int], num_classes: int, width: int) -> int:
    """Σ_i (K_i + K) · w: each client sends the classes it holds and receives all K; w is d, or s under CPS."""
    return sum(held + num_classes for held in classes_held) * width


def exchanged_parameters(classes_held: Sequence[int], parameters: int) -> int:
    """M · |θ| · 2: every client sends and receives the same tensors."""
    return 2 * len(classes_held) * parameters
