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
    "shufflenet_v2_x0_5": partial(shufflenet_v2, stages=X0_5),
}
"""As TinyProto's paper has them: the first four in its experiments, in this order, the last one in its Figure 1."""

SMALL_IMAGES = "_small_images"
"""Ends the name of a network that is not the paper's: its stem has stride 1, so that small images keep their detail."""

NETWORKS: Mapping[str, ModelFactory] = {
    **SMALL_CNNS,
    **PUBLISHED,
    **{f"{name}{SMALL_IMAGES}": partial(factory, small_images=True) for name, factory in PUBLISHED.items()},
}
"""All of them."""
