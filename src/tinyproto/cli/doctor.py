"""`tinyproto doctor`: what this machine offers."""

from __future__ import annotations

import os
import platform

from rich.table import Table

import tinyproto
from tinyproto.cli.terminal import terminal
from tinyproto.data.sources import SOURCES
from tinyproto.tracking.environment import cpu_name, devices, extras, package_versions, source_commit


def examine() -> None:
    """Print versions, devices, threads, extras and where data is found."""
    import torch

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    commit, _, modified = (source_commit() or "").partition("-")
    checkout = f" (commit {commit[:12]}{', modified' if modified else ''})" if commit else ""
    table.add_row("tinyproto", tinyproto.__version__ + checkout)
    table.add_row("python", f"{platform.python_version()} on {platform.platform()}")
    for name, version in package_versions().items():
        table.add_row(name, version or "not installed")
    table.add_row("cpu", f"{cpu_name()}, {os.cpu_count()} cores")
    table.add_row(
        "threads",
        f"torch uses {torch.get_num_threads()}; a simulation uses 1, so that results repeat bit for bit on a CPU",
    )
    table.add_row("devices", ", ".join(devices()))
    for extra, missing in extras().items():
        table.add_row(f"extra {extra}", f"not installed: {', '.join(missing)}" if missing else "installed")
    for name, source in SOURCES.items():
        table.add_row(f"data {name}", source.locate(None))
    terminal().print(table)
