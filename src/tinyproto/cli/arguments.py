"""Arguments of the command line that are checked as they are read."""

from __future__ import annotations

from collections.abc import Callable

from tinyproto.errors import ConfigError


def positive(option: str, at_most: int = 100_000) -> Callable[[str], int]:
    """A parser for a whole number from 1 on; what is wrong is said in one sentence, as everywhere else."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = 0
        if not 1 <= value <= at_most:
            raise ConfigError(f"{option}: a whole number from 1 to {at_most} is needed, not {text!r}")
        return value

    return parse


def names(text: str) -> tuple[str, ...]:
    """A list separated by commas."""
    return tuple(name.strip() for name in text.split(","))
