"""The meter: parameters, payload and wire bytes of all frames by purpose, direction and client."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Direction = Literal["up", "down"]
WAYS: tuple[Direction, Direction] = ("up", "down")
Purpose = Literal["hello", "training", "evaluation", "closing"]
_IN_A_ROUND: tuple[Purpose, ...] = ("training", "evaluation", "closing")


class Cost(NamedTuple):
    """The cost of one or more frames."""

    parameters: int = 0  # numbers, as the paper counts
    payload: int = 0  # bytes of values and scales
    wire: int = 0  # bytes of frames

    def plus(self, other: Cost) -> Cost:
        """Return the sum of both costs."""
        return Cost(self.parameters + other.parameters, self.payload + other.payload, self.wire + other.wire)


@dataclass
class Meter:
    """Counter of the frames of one round."""

    costs: dict[tuple[Purpose, Direction, int], Cost] = field(default_factory=dict)

    def announce(self, purpose: Purpose, direction: Direction, client: int) -> None:
        """Reserve the place of a frame that is encoded later; costs are listed in the order of announcement."""
        self.costs.setdefault((purpose, direction, client), Cost())

    def count(self, purpose: Purpose, direction: Direction, client: int, cost: Cost) -> None:
        """Add the cost of one frame."""
        key = (purpose, direction, client)
        self.costs[key] = self.costs.get(key, Cost()).plus(cost)

    def total(self, purpose: Purpose, direction: Direction) -> Cost:
        """Return the cost of one purpose over all clients."""
        return _sum(cost for (*counted, _), cost in self.costs.items() if counted == [purpose, direction])

    def client(self, client: int, direction: Direction) -> Cost:
        """Return the cost of one client in a round over all purposes but the hello, which is not part of a round."""
        return _sum(self.costs.get((purpose, direction, client), Cost()) for purpose in _IN_A_ROUND)


def _sum(costs: Iterable[Cost]) -> Cost:
    total = Cost()
    for cost in costs:
        total = total.plus(cost)
    return total
