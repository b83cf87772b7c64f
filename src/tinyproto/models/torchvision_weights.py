"""Weights from torchvision, for the networks that have its parameter names; torchvision itself is not needed."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from tinyproto.errors import ModelError
from tinyproto.models.split import SplitModel

CLASSIFIERS = ("classifier.", "fc.")


def load_torchvision(model: SplitModel, state_dict: Mapping[str, Tensor]) -> SplitModel:
    """Load a torchvision network's state_dict into the extractor of ours, in place; returns the model.

    All but torchvision's classifier is taken, which our pooling and head replace; the head keeps its weights. The model
    is one of `mobilenet_v2`, `shufflenet_v2` (in either width) and `efficientnet_b0`, for small images or not.
    """
    given = {name: value for name, value in state_dict.items() if not name.startswith(CLASSIFIERS)}
    own = model.extractor.state_dict()
    problem = _difference({name: tuple(value.shape) for name, value in own.items()}, given)
    if problem:
        raise ModelError(f"these are not torchvision's weights for this {type(model.extractor).__name__}: {problem}")
    model.extractor.load_state_dict(given, strict=False)
    return model


def _difference(own: Mapping[str, tuple[int, ...]], given: Mapping[str, Tensor]) -> str:
    """The first thing that does not fit, in words; old files do not count their batches, which matters to nobody."""
    for name, shape in own.items():
        if name not in given:
            if not name.endswith("num_batches_tracked"):
                return f"they have no {name!r}"
        elif tuple(given[name].shape) != shape:
            return f"{name!r} has the shape {tuple(given[name].shape)}, not {shape}"
    foreign = next((name for name in given if name not in own), None)
    return "" if foreign is None else f"they have {foreign!r}, which it has not"
