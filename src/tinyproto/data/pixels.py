"""One pool of pixels that several processes hold together: memory that other processes can map, or a cache on disk."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class SharedPixels:
    """uint8 pixels in an open file. Whoever maps it sees the same memory, so workers add nothing to it."""

    def __init__(self, descriptor: int, shape: Sequence[int], offset: int = 0, *, writable: bool = False) -> None:
        self.descriptor = descriptor
        self.shape = tuple(shape)
        self.offset = offset
        # A private mapping shares its pages until one is written to, and nobody can write through it to the file.
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_COPY
        memory = mmap.mmap(descriptor, offset + math.prod(self.shape), access=access)
        self.tensor: Tensor = torch.frombuffer(memory, dtype=torch.uint8, offset=offset).reshape(self.shape)

    @classmethod
    def blank(cls, shape: Sequence[int]) -> SharedPixels:
        """Memory to be filled through `array`; it is in no folder, and gone with the last process that maps it."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("tinyproto")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, math.prod(shape))
        return cls(descriptor, shape, writable=True)

    @property
    def array(self) -> NDArray[np.uint8]:
        """The same memory for numpy."""
        return self.tensor.numpy()

    def address(self) -> dict[str, Any]:
        """How a process that inherits the open file finds the pixels."""
        return {"descriptor": self.descriptor, "shape": list(self.shape), "offset": self.offset}

    def __del__(self) -> None:
        os.close(self.descriptor)
