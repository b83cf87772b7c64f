"""How many threads compute: one, wherever the same bits are wanted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums split over threads depend on how many there are; one thread gives the same bits everywhere.

    It is also quicker for a few samples, where threads spend their time waiting for each other.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
