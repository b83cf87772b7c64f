"""`tinyproto data fetch`: a dataset from its official address, with a bar."""

from __future__ import annotations

from pathlib import Path

from tinyproto.cli.loading import LoadingBar
from tinyproto.cli.terminal import Output
from tinyproto.fetch import fetch


def fetch_dataset(name: str, root: Path, url: str | None) -> None:
    """Say what is done, and how a config names the result."""
    output = Output()
    with LoadingBar(output.console, in_bytes=True) as progress:
        folder = fetch(name, root, url=url, progress=progress)
    output.say(f"{folder} is there; a config reads it with data: {{name: {name}, root: {root}}}")
