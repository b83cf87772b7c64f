"""`tinyproto doctor`: what this machine offers."""

from __future__ import annotations

import os
import platform

import tinyproto
from tinyproto.cli.terminal import Output, facts_table
from tinyproto.data.sources import SOURCES
from tinyproto.tracking.environment import cpu_name, devices, extras, package_versions, source_commit


def examine(output: Output) -> None:
    """Print versions, devices, threads, extras and where data is found."""
    found = _findings()
    if output.wants_json:
        output.result(found)
        return
    output.console.print(facts_table(found.items()))


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
