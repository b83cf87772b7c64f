"""Every network that a config can name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from torch import nn

from tinyproto.models import small_cnn
from tinyproto.models.efficientnet import efficientnet_b0
from tinyproto.models.mobilenet_v2 import mobilenet_v2
from tinyproto.models.resnet8 import resnet8
from tinyproto.models.shufflenet_v2 import X0_5, shufflenet_v2

ModelFactory = Callable[..., nn.Module]


def _variant(factory: ModelFactory, words: str, **fixed: object) -> ModelFactory:
    """A factory with some arguments fixed, and what to say of it."""
    variant = partial(factory, **fixed)
    variant.__doc__ = words
    return variant


SMALL_CNNS: Mapping[str, ModelFactory] = {
    "small_cnn_a": small_cnn.small_cnn_a,
    "small_cnn_b": small_cnn.small_cnn_b,
    "small_cnn_c": small_cnn.small_cnn_c,
    "small_cnn_d": small_cnn.small_cnn_d,
}
"""For quick trials on a CPU."""

PUBLISHED: Mapping[str, ModelFactory] = {
    "resnet8": resnet8,
    "mobilenet_v2": mobilenet_v2,
    "shufflenet_v2": shufflenet_v2,
    "efficientnet_b0": efficientnet_b0,
    "shufflenet_v2_x0_5": _variant(shufflenet_v2, "ShuffleNetV2 ×0.5 to d features.", stages=X0_5),
}
"""As TinyProto's paper has them: the first four in its experiments, in this order, the last one in its Figure 1."""

SMALL_IMAGES = "_small_images"
"""Ends the name of a network that is not the paper's: its stem has stride 1, so that small images keep their detail."""

_STEMS = {"resnet8": "the stem, and no max-pooling", "shufflenet": "the stem's convolution", "": "the stem"}
"""Where small images are not made smaller, by how a network's name begins."""


def _for_small_images(name: str, factory: ModelFactory) -> ModelFactory:
    stem = next(words for start, words in _STEMS.items() if name.startswith(start))
    words = f"`{name}` for small images, which is not the paper's: stride 1 in {stem}."
    return _variant(factory, words, small_images=True)


NETWORKS: Mapping[str, ModelFactory] = {
    **SMALL_CNNS,
    **PUBLISHED,
    **{f"{name}{SMALL_IMAGES}": _for_small_images(name, factory) for name, factory in PUBLISHED.items()},
}
"""All of them."""
