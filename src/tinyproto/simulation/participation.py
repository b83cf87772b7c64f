"""Which clients take part in a round."""

from __future__ import annotations

import torch

from tinyproto.core.streams import Streams


def draw_participants(num_clients: int, fraction: float, streams: Streams, round_number: int) -> list[int]:
    """A uniform draw without replacement, at least one client, in order of id."""
    count = max(1, round(fraction * num_clients))
    if count == num_clients:
        return list(range(num_clients))
    generator = streams.generator("participants", round_number=round_number)
    return sorted(torch.randperm(num_clients, generator=generator)[:count].tolist())
