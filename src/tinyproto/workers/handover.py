"""How a worker gets the dataset: it maps the main process's memory, so that all of them together hold one copy.

The request itself stays small: one larger than a pipe's buffer would wait for the worker to start, one after another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from tinyproto.data.images import Images
from tinyproto.data.pixels import SharedPixels
from tinyproto.workers.pipe import Parcel

_FACTS = ("name", "num_classes", "scale", "shift")


class Handover:
    """A dataset for workers that inherit its open files; without any, each worker loads its own."""

    def __init__(self, images: Images) -> None:
        assert images.shared is not None
        labels = SharedPixels.blank((len(images), 8))
        labels.array[:] = images.labels.numpy().view(np.uint8).reshape(-1, 8)
        self._parts = {"pixels": images.shared, "labels": labels}
        self._facts = {name: getattr(images, name) for name in _FACTS}

    @property
    def descriptors(self) -> list[int]:
        """What a worker has to inherit."""
        return [part.descriptor for part in self._parts.values() if part.descriptor is not None]

    def request(self, config: Mapping[str, Any]) -> Parcel:
        """What a worker needs to build the experiment."""
        head = {"do": "load", "config": config}
        if len(self.descriptors) < len(self._parts):
            return Parcel(head)
        addresses = {name: part.address() for name, part in self._parts.items()}
        return Parcel({**head, "images": self._facts, **addresses})


def handed_over(request: Parcel) -> Images | None:
    """The dataset on the worker's side; None where the worker has to load it."""
    if "images" not in request.head:
        return None
    pixels, labels = (SharedPixels(**request.head[name]) for name in ("pixels", "labels"))
    values = torch.from_numpy(labels.array.reshape(-1).view(np.int64))
    return Images(pixels=pixels.tensor, labels=values, shared=pixels, **request.head["images"])
