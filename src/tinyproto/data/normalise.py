"""Normalisation: the numbers `scale` and `shift` of a dataset, agreed in advance or computed from training samples.

A network sees raw · scale + shift, with one number for all values or one per entry of a sample's first axis: a column
of a table, a channel of a signal or an image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tinyproto.data.dataset import AT_ONCE, Dataset, Factor
from tinyproto.errors import DataError

Normalise = Literal["auto", "none"] | Mapping[str, float | Sequence[float]]
"""auto: images to −1 … 1, other values by mean and std of training samples; none: as stored; or `mean` and `std`."""


def with_normalisation(images: Dataset, how: Normalise) -> Dataset:
    """Return the dataset with the scale and shift asked for; `auto` keeps those of its source."""
    if how == "auto":
        return images
    if images.vocabulary is not None:
        raise DataError(f"{images.name} has token ids, which are not normalised; remove data.normalise")
    if how == "none":
        return replace(images, scale=1.0, shift=0.0)
    if not isinstance(how, Mapping) or set(how) != {"mean", "std"}:
        raise DataError(f"normalise has to be auto, none, or a mapping with mean and std, not {how!r}")
    mean, std = (_tensor(images, name, how[name]) for name in ("mean", "std"))
    if not bool((std > 0).all()):
        raise DataError(f"normalise: std has to be greater than 0, not {how['std']}")
    return replace(images, scale=_factor(1 / (std + 0 * mean)), shift=_factor(-mean / std))


def with_statistics(images: Dataset, train: NDArray[np.int64]) -> Dataset:
    """Return the dataset with scale and shift from its samples at `train`, unless they are known already.

    Each column or channel gets mean 0 and standard deviation 1; one that is constant is only shifted.
    """
    if images.scale is not None:
        return images
    pieces = torch.split(torch.from_numpy(train), AT_ONCE)
    size = max(images.inputs[0, 0].numel(), 1) * len(train)
    mean = torch.stack([_sums(images.inputs[rows].double()) for rows in pieces]).sum(0) / size
    centre = mean.view(-1, *[1] * (images.inputs.dim() - 2))
    squares = torch.stack([_sums((images.inputs[rows].double() - centre).square()) for rows in pieces]).sum(0)
    std = (squares / size).sqrt()
    std = torch.where(std > 1e-7 * mean.abs(), std, 1.0)  # rounding alone makes a constant column vary by less
    return replace(images, scale=_factor(1 / std), shift=_factor(-mean / std))


def _sums(values: Tensor) -> Tensor:
    """Sum (n, C, …) over all but C."""
    return values.transpose(0, 1).flatten(1).sum(1)


def _tensor(images: Dataset, name: str, given: float | Sequence[float]) -> Tensor:
    try:
        values = torch.tensor(given, dtype=torch.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"normalise: {name} has to be a number or a list of numbers, not {given!r}") from error
    if not bool(values.isfinite().all()):
        raise DataError(f"normalise: {name} has to be finite, not {given}")
    length = images.input_shape[0]
    if values.dim() > 1 or (values.dim() == 1 and len(values) != length):
        raise DataError(
            f"normalise: {name} has {values.numel()} numbers; give one, or {length} for samples of shape "
            f"{images.input_shape}"
        )
    return values


def _factor(values: Tensor) -> Factor:
    return float(values) if values.dim() == 0 else tuple(values.tolist())
