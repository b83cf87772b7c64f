"""A federation without a download: synthetic images of CIFAR-10's shape that networks can learn."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from tinyproto.data.dataset import Dataset, SharedArray
from tinyproto.data.inputs import assembled

NUM_CLASSES = 10
SHAPE = (3, 32, 32)

VALUES: dict[str, Any] = {
    "name": "benchmark",
    "data": {"name": "cifar10"},  # the images have its shape
    "partition": {"kind": "dirichlet", "num_clients": 4, "alpha": 0.3, "min_samples": 20},
    "models": ["resnet8", "mobilenet_v2", "shufflenet_v2", "efficientnet_b0"],
    "prototypes": {"dim": 500, "cps_dim": 50},
    "train": {"batch_size": 32},
    "algorithms": ["tinyproto_ft"],
}
"""The paper's networks and widths; few clients, so that each has enough samples for batch statistics."""


def synthetic_images(samples: int) -> Dataset:
    """Make images of noise over one smooth pattern per class, in memory that worker processes can map."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(NUM_CLASSES, SHAPE[0], 4, 4, generator=generator)
    patterns = functional.interpolate(coarse, SHAPE[1:], mode="bilinear")
    labels = torch.arange(samples) % NUM_CLASSES
    shared = SharedArray.blank((samples, *SHAPE))
    for start in range(0, samples, 1000):
        chosen = labels[start : start + 1000]
        noise = torch.rand(len(chosen), *SHAPE, generator=generator)
        shared.tensor[start : start + 1000] = (160 * patterns[chosen] + 90 * noise).to(torch.uint8)
    return assembled("synthetic", shared.tensor, labels.numpy(), num_classes=NUM_CLASSES, shared=shared)
