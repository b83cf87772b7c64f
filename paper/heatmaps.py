"""The prototypes that the paper draws: those of a few classes over all clients, of one client, and the global ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SEED = 0
"""One seed is drawn, unless another is asked for."""


@dataclass(frozen=True)
class Drawn:
    """Which classes, over all clients, and which client, over all classes."""

    classes: tuple[int, ...]
    client: int


DRAWN: Mapping[str, Drawn] = {"cifar10": Drawn((2, 4), 10), "cifar100": Drawn((22,), 8)}
"""By dataset, as the paper's captions and file names say."""


def drawn_of(target: str, dataset: str, entry: Mapping[str, Any], seed: int, *, any_seed: bool = False) -> Drawn | None:
    """What is drawn of a cell: FedProto's, and those of CPS with s=50 and s=250, scaled or not; None for the others."""
    plain = target == "table1" and entry["name"] == "fedproto"
    sparse = target in ("table1", "appendix") and entry["name"] == "tinyproto_fp" and entry["cps_dim"] in (50, 250)
    return DRAWN.get(dataset) if (plain or sparse) and (any_seed or seed == SEED) else None


def drawn_only(tensors: Mapping[str, Tensor], prefix: str, drawn: Drawn) -> dict[str, Tensor]:
    """Of a cell's prototypes, the rows that are drawn: `local/rows` has those that `local/present` says are there.

    A record has no others.
    """
    if f"{prefix}/local/rows" in tensors:
        return {name: values for name, values in tensors.items() if name.startswith(f"{prefix}/")}
    present = tensors[f"{prefix}/local/present"].bool()  # (M, K)
    wanted = torch.zeros_like(present)
    wanted[:, list(drawn.classes)] = True
    wanted[drawn.client] = True
    kept = present & wanted
    found = {
        f"{prefix}/local/rows": tensors[f"{prefix}/local/values"][kept],  # (n, d)
        f"{prefix}/local/present": kept.to(torch.uint8),
    }
    globals_ = [f"{prefix}/global/{what}" for what in ("values", "present")]
    return found | {name: tensors[name] for name in globals_ if name in tensors}
