"""How a worker gets the dataset: it maps the main process's pixels, so that all of them together hold one copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinyproto.data.images import Images
from tinyproto.data.pixels import SharedPixels
from tinyproto.workers.pipe import Parcel, pack_tensors, unpack_tensors

_FACTS = ("name", "num_classes", "scale", "shift")


def load_request(config: Mapping[str, Any], images: Images) -> Parcel:
    """What a worker that inherits the open pixels needs to build the experiment."""
    assert images.shared is not None
    facts = {name: getattr(images, name) for name in _FACTS}
    head = {"do": "load", "config": config, "images": facts, "pixels": images.shared.address()}
    return Parcel(head, [pack_tensors({"labels": images.labels})])


def handed_over(request: Parcel) -> Images:
    """The dataset on the worker's side."""
    shared = SharedPixels(**request.head["pixels"])
    labels = unpack_tensors(request.blobs[0])["labels"]
    return Images(pixels=shared.tensor, labels=labels, shared=shared, **request.head["images"])
