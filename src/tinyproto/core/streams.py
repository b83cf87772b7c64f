"""Named random streams, and one thread where sums are taken, so that a run repeats to the bit.

Every draw is a function of (seed, role, client, round, purpose) and of nothing else.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

SERVER = -1
"""The client id that stands for the server."""


@dataclass(frozen=True)
class Streams:
    """The random streams of one run."""

    seed: int

    def derive(self, purpose: str, *, client: int = SERVER, round_number: int = 0) -> int:
        """Return the 63-bit seed of one stream, equal on every machine and release."""
        name = f"{self.seed}/{'server' if client == SERVER else 'client'}/{client}/{round_number}/{purpose}"
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1

    def generator(self, purpose: str, *, client: int = SERVER, round_number: int = 0) -> torch.Generator:
        """Return a CPU generator at the start of the stream."""
        return torch.Generator().manual_seed(self.derive(purpose, client=client, round_number=round_number))


def random_states() -> dict[str, Hashable]:
    """Return the states of the host's global generators by library, to be compared."""
    return {
        "Python's random": random.getstate(),
        "numpy": json.dumps(np.random.get_state(legacy=False), default=lambda value: value.tolist()),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }


@contextmanager
def global_randomness(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python inside the block and restore them after.

    Layers initialise themselves and dropout draws from torch's, and networks of users from any; this gives them a named
    stream.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    pythons, numpys = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_available():  # torch.manual_seed would note every call for a GPU that may come yet
            torch.cuda.manual_seed_all(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(pythons)
            np.random.set_state(numpys)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread inside the block: sums split over threads depend on the number of threads.

    One thread is also faster for a few samples, where threads spend their time waiting for each other.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
