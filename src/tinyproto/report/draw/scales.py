"""From values to places on a page, and the values worth a tick."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


class Scale(Protocol):
    """One axis."""

    def __call__(self, value: float) -> float:
        """Where a value goes."""
        ...

    def ticks(self) -> list[float]:
        """Values to mark."""
        ...


@dataclass(frozen=True)
class Linear:
    """Equal differences, equal distances."""

    low: float
    high: float
    start: float
    stop: float
    wanted: int = 5
    finest: float = 0.0  # no tick is closer to the next than this
    marked: tuple[float, ...] = ()  # the ticks, where only these values mean something

    def __call__(self, value: float) -> float:
        """Where a value goes."""
        return self.start + (self.stop - self.start) * (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Those given, or multiples of 1, 2 or 5 times a power of ten."""
        if self.marked:
            return list(self.marked)
        step = max(round_step((self.high - self.low) / self.wanted), self.finest)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]


@dataclass(frozen=True)
class Logarithmic:
    """Equal ratios, equal distances."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """Where a value goes."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + (self.stop - self.start) * share

    def ticks(self) -> list[float]:
        """Powers of ten; where there are few inside, also 2 and 5 times them, or all multiples."""
        exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        tens = [10.0**exponent for exponent in exponents]
        for factors in ((1,), (1, 2, 5), range(1, 10)):
            inside = [factor * ten for ten in tens for factor in factors if self.low <= factor * ten <= self.high]
            if len(inside) >= 3:
                break
        return inside


def round_step(about: float) -> float:
    """The nearest of 1, 2, 5 × 10^n that is not smaller."""
    power = 10.0 ** math.floor(math.log10(about))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= about * (1 - 1e-9))


def span(values: list[float], least: float, low: float, high: float) -> tuple[float, float]:
    """A range that holds all values with some air, at least `least` wide, between `low` and `high`."""
    bottom, top = min(values), max(values)
    air = max(0.05 * (top - bottom), (least - (top - bottom)) / 2, 0.0)
    return max(low, bottom - air), min(high, top + air)
