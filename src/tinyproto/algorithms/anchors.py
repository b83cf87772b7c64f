"""Anchors: global prototypes that follow from an agreed seed, so no prototypes travel.

The global prototype of a class is constant on the dimensions that the class owns by CPS and has the length R. Clients
train towards it as towards any global prototype. What such a run gains over Local comes from the targets and not from
other clients, which makes it the second baseline of every method that exchanges prototypes.

With `cps_dim: null` the directions are random and dense, and not negative, as features after a ReLU.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from tinyproto.algorithms.base import Algorithm, AlgorithmSpec, Client, FederationSpec, Round
from tinyproto.algorithms.fedproto import PrototypeClient, prototype_algorithm, prototype_lengths, store_rows
from tinyproto.algorithms.local import LocalServer
from tinyproto.algorithms.tinyproto_hyper import FixedLengthHyper
from tinyproto.core import cps
from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.core.streams import Streams
from tinyproto.core.task import FitResult


class AnchorsClient(PrototypeClient):
    """A prototype client that knows the global prototypes in advance and sends none."""

    def __init__(self, hyper: FixedLengthHyper, federation: FederationSpec, anchors: Prototypes) -> None:
        super().__init__(hyper, federation)
        self.hyper = hyper
        self.anchors = anchors  # (K, d)

    def receive(self, client: Client, message: Message) -> Prototypes:  # noqa: ARG002
        """Store and return the anchors; the message has no prototypes."""
        store_rows(client, self.anchors)
        return self.anchors.to(client.device)

    def update(self, client: Client, result: FitResult, round_: Round) -> Message:  # noqa: ARG002
        """Return an empty message."""
        return Message()


def directions(hyper: FixedLengthHyper, federation: FederationSpec, masks: Tensor | None) -> Tensor:
    """Return the direction of each class's anchor, (K, d): its mask, or uniform on the positive part of the sphere."""
    if masks is not None:
        return masks.float()
    draws = Streams(hyper.mask_seed).generator("anchors")
    return torch.randn(federation.num_classes, federation.proto_dim, generator=draws).abs()


def anchored(
    name: str, hyper: FixedLengthHyper, federation: FederationSpec, side: type[AnchorsClient] = AnchorsClient
) -> Algorithm:
    """Return an algorithm whose clients know the anchors; the digest of the federation covers their rows and so R."""
    masks, width = hyper.sent(federation)
    length = hyper.row_length(federation, width)
    everyone = torch.ones(federation.num_classes, dtype=torch.bool)
    rows = cps.with_length(Prototypes(directions(hyper, federation, masks), everyone), length)
    algorithm = prototype_algorithm(name, side(hyper, federation, rows), LocalServer(), width=0, masks=masks)
    return replace(
        algorithm,
        row_width=None,
        agreed={"anchors": hashlib.blake2b(rows.values.numpy().tobytes(), digest_size=16).hexdigest()},
        derived=partial(hyper.derived_length, length, width),
        watched=lambda _state: prototype_lengths(rows._asdict()),
    )


def build(hyper: FixedLengthHyper, federation: FederationSpec) -> Algorithm:
    """Return Anchors, whose clients send nothing."""
    return anchored("anchors", hyper, federation)


SPEC = AlgorithmSpec("anchors", "Anchors", FixedLengthHyper, build)
