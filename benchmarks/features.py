"""Time class means and the three rules from given features: a round without its networks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.contenders import Baseline
from tinyproto.core.prototypes import Prototypes, class_means
from tinyproto.core.streams import global_randomness, one_thread
from tinyproto.engine.measure import score

SAMPLES = 1000


def measure_features(baseline: Baseline, num_classes: int, dim: int, repeats: int) -> dict[str, Any]:
    """Time both sides in turn on one CPU thread, and check that their results are equal."""
    with global_randomness(0):
        features, labels = torch.rand(SAMPLES, dim), torch.arange(SAMPLES) % num_classes
        sent, head = torch.rand(num_classes, dim), nn.Linear(dim, num_classes)
    everyone = torch.ones(num_classes, dtype=torch.bool)
    local = class_means(features, labels, num_classes)
    as_rows = [dict(enumerate(rows)) for rows in (sent, local.values)]

    def ours() -> list[int]:
        scores = score(head, features, labels, Prototypes(sent, everyone), local)
        return [int(scores[f"correct_{rule}"]) for rule in ("head", "global", "local")]

    @torch.no_grad()
    def naive() -> list[int]:
        guesses = [torch.argmax(head(features), dim=1)]
        guesses += [baseline.nearest(features, rows, num_classes) for rows in as_rows]
        return [int((guess == labels).sum().item()) for guess in guesses]

    with one_thread():
        means, right = class_means(features, labels, num_classes).values, ours()
        theirs: dict[int, Tensor] = baseline.class_means(features, labels)
        agree = right == naive() and torch.allclose(means, torch.stack([theirs[label] for label in range(num_classes)]))
        seconds: dict[str, dict[str, list[float]]] = {}
        for _ in range(repeats):
            for part, name, work in (
                ("class_means", "tinyproto", lambda: class_means(features, labels, num_classes)),
                ("class_means", "naive", lambda: baseline.class_means(features, labels)),
                ("three_rules", "tinyproto", ours),
                ("three_rules", "naive", naive),
            ):
                seconds.setdefault(part, {}).setdefault(name, []).append(_timed(work))
    parts = {
        part: {
            **{f"{name}_seconds": statistics.median(taken) for name, taken in sides.items()},
            "ratio": statistics.median(sides["naive"]) / statistics.median(sides["tinyproto"]),
        }
        for part, sides in seconds.items()
    }
    return {"samples": SAMPLES, "num_classes": num_classes, "dim": dim, "repeats": repeats, "agree": agree, **parts}


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
