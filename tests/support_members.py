"""The folders and configs of small federations, for which Flower is not needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from support import make_patterns

TOKEN = "0123456789abcdef" * 2


def write_join(folder: Path, model: str, data: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "join.json").write_text(json.dumps({"data": data, "model": model, "device": "cpu"}))
    return folder


CLASSES, SHAPE = 4, (1, 6, 6)


def small_values(name: str = "tinyproto_fp", clients: int = 3, rounds: int = 2, **federation: Any) -> dict[str, Any]:
    """The config of a federation whose clients have files of their own."""
    return {
        "name": "trial",
        "data": {"name": "npz"},
        "partition": {"num_clients": clients},
        "models": ["small_cnn_a", "small_cnn_b"],
        "prototypes": {"dim": 12, "cps_dim": 3},
        "train": {"rounds": rounds, "batch_size": 8, "device": "cpu"},
        "algorithms": [name],
        "federation": {"num_classes": CLASSES, "input_shape": list(SHAPE), "deadline": 60.0, **federation},
    }


def write_arrays(file: Path, client: int, classes: int = CLASSES, shape: tuple[int, int, int] = SHAPE) -> Path:
    """A client's own samples: 16 to train on, 8 to test on."""
    images = make_patterns(24, classes, shape, seed=client)
    pixels, labels = images.pixels.numpy(), images.labels.numpy()
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, x_train=pixels[:16], y_train=labels[:16], x_test=pixels[16:], y_test=labels[16:])
    return file
