"""Frames of the paper's CIFAR-100 federation in packets of LoRaWAN: s = 10, int4 both ways, held classes down.

The partition is the paper's (Dirichlet 0.1, 20 clients, seed 1). A client's training frame up has the rows of its
classes and two losses; the one down has the same classes. A packet carries 222 bytes (SF7). Packets are counted for the
frame alone, as a gateway would pass it on, and for what MQTT over TLS sends for it, acknowledgements aside.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.transports import ROOT
from tinyproto.core.prototypes import Message, Prototypes
from tinyproto.data import sources
from tinyproto.data.partition import Indices, Partition
from tinyproto.engine.measure import WAYS
from tinyproto.errors import DataError
from tinyproto.federation.mqtt.messages import Topics, with_counts
from tinyproto.wire.codec import encode
from tinyproto.wire.frame import Header, Kind
from tinyproto.wire.values import VALUE_TYPES, Coding

UNPACK = ROOT.parent / "shared" / "data" / "unpack.py"
CLASSES, CPS_DIM, CLIENTS = 100, 10, 20
PACKET = 222
MOST_PACKETS = 2
"""Packets of the median client's training frame, each way."""

TLS_RECORD = 22
"""Bytes that TLS 1.3 adds to a record."""


def measure_packets() -> dict[str, Any]:
    """Return bytes and packets of each client's training frames; the reason if the images are not here."""
    if not UNPACK.is_file():
        return {"skipped": f"CIFAR-100 is missing: there is no {UNPACK.name} in ../shared/data"}
    with tempfile.TemporaryDirectory(prefix="tinyproto-transports-") as folder:
        unpacked = subprocess.run([sys.executable, str(UNPACK), "cifar100", folder], capture_output=True, check=False)
        if unpacked.returncode:
            raise DataError(f"{UNPACK.name} failed: {unpacked.stderr.decode(errors='replace').strip()[-300:]}")
        labels = sources.load("cifar100", root=folder).labels.numpy()
    shares = Partition("dirichlet", CLIENTS, alpha=0.1, seed=1).shares(labels)
    held = [np.unique(labels[share.train]) for share in shares]
    return {"classes": [len(classes) for classes in held], "packet_bytes": PACKET, **packets_of(held)}


def packets_of(held: Sequence[Indices]) -> dict[str, Any]:
    """Return the bytes and packets of the training frames of clients with these classes."""
    found: dict[str, Any] = {"limit_packets": MOST_PACKETS}
    frames = [training_frames(client, classes) for client, classes in enumerate(held)]
    for way in WAYS:
        sizes = [len(frame[way]) for frame in frames]
        sent = [mqtt_bytes(client, frame[way], way) for client, frame in enumerate(frames)]
        found[way] = {"frame": _spread(sizes), "mqtt": _spread(sent)}
    return found


def training_frames(client: int, classes: Indices) -> dict[str, bytes]:
    """Return the frame that a client trains on and its upload."""
    present = torch.zeros(CLASSES, dtype=torch.bool)
    present[torch.from_numpy(classes)] = True
    draws = torch.Generator().manual_seed(client)
    rows = Prototypes(torch.rand(CLASSES, CPS_DIM, generator=draws) * present[:, None], present)
    losses = {"cross_entropy": 1.25, "regulariser": 0.125}
    coding = Coding(VALUE_TYPES["int4"])
    return {
        "up": encode(Header(Kind.UPDATE, 2, client, b""), Message(rows, metrics=losses), coding),
        "down": encode(Header(Kind.TRAIN, 2, client, b""), Message(rows), coding),
    }


def mqtt_bytes(client: int, frame: bytes, way: str) -> int:
    """Return the bytes of a frame as MQTT publishes it at QoS 1 in one record of TLS."""
    topics = Topics()
    topic = topics.up(client) if way == "up" else topics.down(client)
    content = with_counts(frame, None) if way == "up" else frame
    rest = 2 + len(topic) + 2 + 1 + len(content)  # the topic's length, the topic, packet id, no properties
    return TLS_RECORD + 1 + (1 if rest < 128 else 2) + rest


def _spread(sizes: Sequence[int]) -> dict[str, Any]:
    packets = [math.ceil(size / PACKET) for size in sizes]
    return {
        name: {"lowest": min(values), "median": median(values), "highest": max(values)}
        for name, values in (("bytes", sizes), ("packets", packets))
    }
