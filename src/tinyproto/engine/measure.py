"""The measurements of a round: what its frames cost, how long its phases take, how well clients classify."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from tinyproto.core.prototypes import CentredSets, Prototypes, nearest
from tinyproto.core.transfer import portions

Direction = Literal["up", "down"]
WAYS: tuple[Direction, Direction] = ("up", "down")
Purpose = Literal["hello", "training", "evaluation", "closing"]
_IN_A_ROUND: tuple[Purpose, ...] = ("training", "evaluation", "closing")


class Cost(NamedTuple):
    """The cost of one or more frames."""

    parameters: int = 0  # numbers, as the paper counts
    payload: int = 0  # bytes of values and scales
    wire: int = 0  # bytes of frames


@dataclass
class Meter:
    """Counts the frames of one round, up and down, per client and purpose."""

    costs: dict[tuple[Purpose, Direction, int], Cost] = field(default_factory=dict)

    def announce(self, purpose: Purpose, direction: Direction, client: int) -> None:
        """Announce a frame that is made later; records keep the order of the announcements."""
        self.costs.setdefault((purpose, direction, client), Cost())

    def count(self, purpose: Purpose, direction: Direction, client: int, cost: Cost) -> None:
        """Add the cost of one frame."""
        key = (purpose, direction, client)
        self.costs[key] = _sum([self.costs.get(key, Cost()), cost])

    def total(self, purpose: Purpose, direction: Direction) -> Cost:
        """Return the cost of one purpose over all clients."""
        return _sum(cost for (*counted, _), cost in self.costs.items() if counted == [purpose, direction])

    def client(self, client: int, direction: Direction) -> Cost:
        """Return the cost of one client in a round, for all purposes; the hello is not part of a round."""
        return _sum(self.costs.get((purpose, direction, client), Cost()) for purpose in _IN_A_ROUND)


def _sum(costs: Iterable[Cost]) -> Cost:
    return Cost(*map(sum, zip(Cost(), *costs, strict=True)))


Clock = Callable[[], float]


class Stopwatch:
    """Adds up the seconds spent in named phases; `synchronise` waits for a device before the clock is read."""

    def __init__(self, clock: Clock, synchronise: Callable[[], None] | None = None) -> None:
        self._clock = clock
        self._synchronise = synchronise
        self.seconds: dict[str, float] = {}

    def now(self) -> float:
        """Return the time once all work so far is completed."""
        if self._synchronise is not None:
            self._synchronise()
        return self._clock()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block towards `name`."""
        start = self.now()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self.now() - start

    def take(self) -> dict[str, float]:
        """Return the seconds so far and start again from zero."""
        seconds, self.seconds = self.seconds, {}
        return seconds


RULES = ("head", "global", "local")
"""A sample is classified by the client's head, the nearest global prototype, or the nearest local prototype."""


class Scored(NamedTuple):
    """The inputs of one client's scores."""

    head: nn.Module
    features: Tensor  # (N, d), of its test samples
    labels: Tensor  # (N,)
    global_: Prototypes | None
    local: Prototypes

    @property
    def prototypes(self) -> dict[str, Prototypes]:
        """Return the prototypes of each rule that uses some."""
        return {"local": self.local} if self.global_ is None else {"global": self.global_, "local": self.local}


def scores(clients: Sequence[Scored]) -> list[dict[str, float]]:
    """Return the `score` of each client; on a GPU the host waits once for all of them."""
    if all(client.features.device.type == "cpu" for client in clients):
        return [score(*client) for client in clients]
    return scores_together(clients)


@torch.no_grad()
def score(
    head: nn.Module, features: Tensor, labels: Tensor, global_: Prototypes | None, local: Prototypes
) -> dict[str, float]:
    """Return `test_samples` and `correct_<rule>` for each rule that applies; two of them need prototypes."""
    head.eval()
    guesses = {"head": head(features).argmax(1)}
    for rule, prototypes in (("global", global_), ("local", local)):
        if prototypes is not None and bool(prototypes.present.any()):
            guesses[rule] = nearest(features, prototypes)
    correct = torch.stack([(guess == labels).sum() for guess in guesses.values()]).tolist()
    counts = {f"correct_{rule}": float(count) for rule, count in zip(guesses, correct, strict=True)}
    return {"test_samples": float(len(labels)), **counts}


@torch.no_grad()
def scores_together(clients: Sequence[Scored]) -> list[dict[str, float]]:
    """Return the `score` of each client with one transfer to the host, in few and large operations."""
    found: list[Tensor] = []  # of each client: correct guesses by rule; then which of its prototypes apply
    for several in portions(clients, [sum(each.values.numel() for each in one.prototypes.values()) for one in clients]):
        sets = CentredSets.of([each for client in several for each in client.prototypes.values()])
        applies = (~sets.absent).any(2).squeeze(1)
        at = 0
        for client in several:
            own = slice(at, at + len(client.prototypes))
            client.head.eval()
            by_head = client.head(client.features).argmax(1, keepdim=True).T
            guesses = torch.cat([by_head, CentredSets(*(part[own] for part in sets)).nearest(client.features)])
            found += [(guesses == client.labels).sum(1), applies[own]]
            at = own.stop
    numbers = iter(torch.cat(found).tolist() if found else ())
    results = []
    for client in clients:
        correct = {f"correct_{rule}": float(next(numbers)) for rule in ("head", *client.prototypes)}
        for rule in client.prototypes:
            if not next(numbers):
                del correct[f"correct_{rule}"]
        results.append({"test_samples": float(len(client.labels)), **correct})
    return results
