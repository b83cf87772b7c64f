"""Raw inputs of a trained network from what a user has: pictures, files, or arrays as in training."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinyproto.data.decode import pixels_of
from tinyproto.data.inputs import CHANNELS, check_values
from tinyproto.data.sources import tables
from tinyproto.errors import DataError, one_line


@dataclass(frozen=True)
class InputFormat:
    """The inputs of a network as they are stored; it sees stored · scale + shift."""

    shape: tuple[int, ...]  # (C, H, W) of images
    dtype: torch.dtype
    scale: float | Sequence[float]  # numbers, or lists along the first axis
    shift: float | Sequence[float]
    white: int  # the stored value of a white pixel
    columns: tuple[str, ...] | None  # of a table
    vocabulary: int | None  # the number of token ids

    @classmethod
    def of(cls, facts: dict[str, Any]) -> InputFormat:
        """Read it from the facts of a network; those of earlier releases were of images."""
        dtype: torch.dtype = getattr(torch, facts.get("dtype", "uint8"))
        columns = None if facts.get("columns") is None else tuple(facts["columns"])
        scale, shift = facts["scale"], facts["shift"]
        white = facts["white"] if "white" in facts else round((1 - shift) / scale)  # seen as 1
        return cls(tuple(facts["input_shape"]), dtype, scale, shift, white, columns, facts.get("vocabulary"))

    @property
    def words(self) -> str:
        """Return shape and type for messages."""
        return f"{_times(self.shape)} {str(self.dtype).removeprefix('torch.')}"

    def factors(self) -> tuple[Tensor, Tensor]:
        """Return scale and shift as tensors that fit a batch."""
        along = (-1, *[1] * (len(self.shape) - 1))
        scale, shift = (torch.tensor(value, dtype=torch.float32) for value in (self.scale, self.shift))
        return (scale.reshape(along) if scale.dim() else scale), (shift.reshape(along) if shift.dim() else shift)

    def batch(self, given: Any) -> Tensor:
        """Return one or many inputs as a batch (N, ...); raise DataError if they do not fit.

        A file is a picture, an .npy array, or a table, whose columns are matched by name.
        """
        if _is_path(given) or _is_picture(given):
            given = [given]
        if isinstance(given, Sequence) and given and all(_is_path(one) or _is_picture(one) for one in given):
            inputs = torch.cat([self._file(Path(one)) if _is_path(one) else self._picture(one) for one in given])
        else:
            inputs = self._array(given)
        check_values(inputs.numpy())
        if self.vocabulary is not None and inputs.numel() and int(inputs.max()) >= self.vocabulary:
            raise DataError(f"token ids are 0 … {self.vocabulary - 1}, but one is {int(inputs.max())}")
        return inputs.contiguous()  # the layout decides how a convolution rounds

    def _file(self, path: Path) -> Tensor:
        if path.suffix.lower() == ".npy":
            with _reading(path, "an .npy array"):
                return self._array(np.load(path, allow_pickle=False))
        if self.columns is not None:
            if path.suffix.lower() not in tables.SUFFIXES:
                raise DataError(f"{path}: the network takes tables ({', '.join(tables.SUFFIXES)})")
            return torch.from_numpy(tables.read_rows(path, self.columns, str(self.dtype).removeprefix("torch.")))
        import PIL.Image

        with _reading(path, "an image"), PIL.Image.open(path) as image:
            return self._picture(image, path)

    def _picture(self, image: Any, where: object = "the image") -> Tensor:
        if self.dtype != torch.uint8 or len(self.shape) != 3 or self.shape[0] not in CHANNELS:
            raise DataError(f"the network takes {self.words}, not pictures; give it an array or an .npy file")
        pixels = pixels_of(image, (self.shape[0], self.shape[1], self.shape[2]), where)
        stored = pixels if self.white == 255 else np.rint(pixels * (self.white / 255)).astype(np.uint8)
        return torch.tensor(stored[None])

    def _array(self, given: Any) -> Tensor:
        if self.columns is not None and hasattr(given, "columns"):  # a data frame, whose columns have names
            missing = [name for name in self.columns if name not in given.columns]
            if missing:
                raise DataError(f"the table has no column {missing[0]!r}; the network takes {', '.join(self.columns)}")
            given = given[list(self.columns)].to_numpy()
        try:
            inputs = torch.as_tensor(given).detach().cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"cannot classify a {type(given).__name__}; give files, PIL images or an array") from error
        if inputs.is_floating_point() <= self.dtype.is_floating_point and self.dtype != torch.uint8:
            inputs = inputs.to(self.dtype)  # numbers that fit, such as numpy's float64
        if inputs.dtype != self.dtype:
            found = str(inputs.dtype).removeprefix("torch.")
            raise DataError(f"the network takes {self.words} as stored, before any scaling; these are {found}")
        if self.shape in (inputs.shape, inputs.shape[1:]):
            return inputs.reshape(-1, *self.shape)
        channels, *rest = self.shape
        if channels == 1 and tuple(rest) in (inputs.shape, inputs.shape[1:]):
            return inputs.reshape(-1, *self.shape)
        if (*rest, channels) in (inputs.shape, inputs.shape[1:]):
            return inputs.reshape(-1, *rest, channels).movedim(-1, 1)
        raise DataError(
            f"the network takes inputs of shape {_times(self.shape)}, alone or in a batch, not {_times(inputs.shape)}"
        )


def _is_path(given: Any) -> bool:
    return isinstance(given, str | os.PathLike)


def _is_picture(given: Any) -> bool:
    """Return True for a PIL image."""
    return hasattr(given, "convert")


@contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    """Turn errors in reading a file into a DataError that names it."""
    import PIL.Image

    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist") from error
    except (OSError, ValueError, EOFError, SyntaxError, PIL.Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be decoded as {what}: {one_line(error)}") from error


def _times(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape)) or "one number"
