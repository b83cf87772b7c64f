"""Compare the transports of a federation, with real processes over the loopback and TLS.

    python -m benchmarks transports [--only compare members memory packets] [--json FILE]

| part | measures |
|---|---|
| compare | Flower and MQTT with one config: bytes at a client's socket, seconds of a round, memory, processes |
| members | a round of MQTT as the number of clients grows, without any training |
| memory | the coordinator's memory over many rounds |
| packets | frames of the paper's CIFAR-100 federation in packets of LoRaWAN |
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The repository."""
