"""Triton kernels over a stack as it lies in memory, (clients, channels, samples, height, width); and the server's fit.

They are imported only where there is a GPU; everywhere else, and for what they do not cover, PyTorch computes the same.
None of them waits for another block of its own grid, so that stacks may run beside each other on several streams.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def quotient(value, divisor: tl.constexpr):
    """value // divisor for what is not negative, by way of a float.

    Where sizes are known when it compiles, Triton 3.6 takes integer quotients and remainders that are shifted or spread
    over a tile to be alike for more neighbours than they are, and merges their loads and masks.
    """
    return ((value.to(tl.float32) + 0.5) * (1.0 / divisor)).to(tl.int32)
