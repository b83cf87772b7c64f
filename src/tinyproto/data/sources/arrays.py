"""Images from arrays that a user already has in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tinyproto.data.images import Images
from tinyproto.errors import DataError


def from_arrays(images: Any, labels: Any, *, num_classes: int | None = None, name: str = "arrays") -> Images:
    """Images (N, C, H, W) or (N, H, W) as uint8, and labels 0 … K−1; a network sees −1 to 1, as in the paper."""
    if np.asarray(labels).dtype.kind not in "iub":
        raise DataError(f"labels have to be whole numbers 0 … K−1, these are {np.asarray(labels).dtype}")
    pixels, targets = torch.as_tensor(np.asarray(images)), torch.as_tensor(np.asarray(labels).astype(np.int64))
    if pixels.dtype != torch.uint8:
        raise DataError(f"images have to be uint8 (0 to 255), these are {pixels.dtype}; scale and round them first")
    if pixels.dim() == 3:
        pixels = pixels.unsqueeze(1)
    if pixels.dim() != 4:
        raise DataError(f"images have to be (N, C, H, W) or (N, H, W), these have shape {tuple(pixels.shape)}")
    if pixels.shape[3] in (1, 3, 4) and pixels.shape[1] not in (1, 3, 4):
        raise DataError(
            f"images of shape {tuple(pixels.shape)} look like (N, H, W, C); bring the channels forward, (N, C, H, W)"
        )
    if targets.dim() != 1 or len(targets) != len(pixels):
        raise DataError(f"{len(pixels)} images need as many labels, these have shape {tuple(targets.shape)}")
    if len(targets) == 0:
        raise DataError("there has to be at least one image")
    classes = int(targets.max()) + 1 if num_classes is None else num_classes
    if int(targets.min()) < 0 or int(targets.max()) >= classes:
        raise DataError(
            f"labels have to lie in 0 … {classes - 1}, these span {int(targets.min())} … {int(targets.max())}"
        )
    return Images(name, pixels, targets, classes, scale=2 / 255, shift=-1.0)
