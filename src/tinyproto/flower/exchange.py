"""One exchange with several clients: who was asked what, who has answered well, and whether that is enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tinyproto.errors import WireError
from tinyproto.wire.frame import Kind


@dataclass
class Sent:
    """A message that may still be answered."""

    client: int
    node: int
    round_number: int
    kind: Kind
    until: float  # after which Flower no longer knows it


@dataclass
class Exchange:
    """One exchange under way."""

    kinds: Mapping[int, Kind]
    needed: int
    good: set[int] = field(default_factory=set)
    bad: dict[int, WireError] = field(default_factory=dict)  # the last reason, by client without a good answer

    def open(self) -> bool:
        """Whether anyone has not been heard at all."""
        return any(client not in self.good and client not in self.bad for client in self.kinds)

    def enough(self) -> bool:
        """Whether it could be concluded: of those who train where anyone does."""
        return sum(client in self.good for client in self._counted) >= self.needed

    @property
    def _counted(self) -> list[int]:
        return counted(self.kinds)


def counted(kinds: Mapping[int, Kind]) -> list[int]:
    """The clients by whom a quorum is counted: those who train; where nobody does, all who are asked."""
    training = [client for client, kind in kinds.items() if kind is Kind.TRAIN]
    return training or list(kinds)
