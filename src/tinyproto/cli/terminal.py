"""Where output goes."""

from __future__ import annotations

from rich.console import Console

PLAIN_WIDTH = 120


def terminal() -> Console:
    """Standard output: as wide as the terminal, or of a fixed width where there is none."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)
