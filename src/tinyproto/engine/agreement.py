"""What all members of a federation agree on before the first round."""

from __future__ import annotations

from tinyproto.algorithms.base import Algorithm
from tinyproto.core.cps import mask_digest
from tinyproto.wire.frame import federation_digest
from tinyproto.wire.validate import Expectation
from tinyproto.wire.values import EXACT, WireSettings


def expected_frames(algorithm: Algorithm, num_classes: int, proto_dim: int, wire: WireSettings = EXACT) -> Expectation:
    """What every frame of this federation has to match; the digest stands for all that both sides agree on."""
    facts = {
        "algorithm": algorithm.name,
        "num_classes": num_classes,
        "proto_dim": proto_dim,
        "row_width": algorithm.row_width,
        "masks": None if algorithm.masks is None else mask_digest(algorithm.masks),
        "tensors": {name: list(shape) for name, shape in algorithm.tensor_shapes.items()},
        "agreed": dict(algorithm.agreed),
        "values": {"up": wire.up, "down": wire.down},  # how they are rounded is the sender's own
    }
    return Expectation(
        federation_digest(facts), num_classes, algorithm.row_width, algorithm.tensor_shapes, algorithm.tensor_parts,
        wire, _remedies(algorithm),
    )  # fmt: skip


def _remedies(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the keys to lower where training diverges, first the one that helps most often."""
    keys = {
        "algorithms.proto_weight": algorithm.classifies_by_rows,
        "algorithms.global_scale": algorithm.agreed.get("scaling") == "count",
        "train.learning_rate": True,
    }
    return tuple(key for key, applies in keys.items() if applies)
