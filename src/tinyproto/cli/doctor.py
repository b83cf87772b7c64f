"""`tinyproto doctor`: what this machine offers."""

from __future__ import annotations

import os
import platform

from rich.markup import escape
from rich.table import Table

import tinyproto
from tinyproto.cli.terminal import Output
from tinyproto.data.sources import SOURCES
from tinyproto.tracking.environment import cpu_name, devices, extras, package_versions, source_commit


def examine(output: Output) -> None:
    """Print versions, devices, threads, extras and where data is found."""
    found = _findings()
    if output.wants_json:
        output.result(found)
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, words in found.items():
        table.add_row(escape(name), escape(words))
    output.console.print(table)


def _findings() -> dict[str, str]:
    import torch

    commit, _, modified = (source_commit() or "").partition("-")
    checkout = f" (commit {commit[:12]}{', modified' if modified else ''})" if commit else ""
    threads = torch.get_num_threads()
    return {
        "tinyproto": tinyproto.__version__ + checkout,
        "python": f"{platform.python_version()} on {platform.platform()}",
        **{name: version or "not installed" for name, version in package_versions().items()},
        "cpu": f"{cpu_name()}, {os.cpu_count()} cores",
        "threads": f"torch uses {threads}; a simulation uses 1, so that results repeat bit for bit on a CPU",
        "devices": ", ".join(devices()),
        **{
            f"extra {extra}": f"not installed: {', '.join(missing)}" if missing else "installed"
            for extra, missing in extras().items()
        },
        **{f"data {name}": source.locate(None) for name, source in SOURCES.items()},
    }
