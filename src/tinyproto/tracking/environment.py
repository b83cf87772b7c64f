"""environment.json: hardware and versions, without which a run's numbers mean little later."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import tinyproto
from tinyproto.wire.frame import VERSION

PACKAGES = ("torch", "numpy", "pydantic", "scikit-learn", "safetensors")


def package_versions() -> dict[str, str | None]:
    """Return installed versions by name; None for a missing package."""
    versions: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def cpu_name() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def devices() -> list[str]:
    """Return the compute devices that torch finds."""
    import torch

    gpus = [f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in range(torch.cuda.device_count())]
    return ["cpu", *gpus]


def source_commit() -> str | None:
    """Return the commit of the package's checkout, marked if files differ from it; None outside a checkout."""
    package = Path(tinyproto.__file__).parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ("git", "--no-optional-locks", *arguments),
                cwd=package,
                capture_output=True,
                text=True,
                timeout=5,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    tracked = git("ls-files", "--error-unmatch", "__init__.py")
    commit = git("rev-parse", "HEAD") if tracked else None
    return commit if commit is None or not git("status", "--porcelain", "--", str(package)) else f"{commit}-modified"


def environment(device: str, workers: int, parallel_cells: int = 1) -> dict[str, Any]:
    """Return hardware, versions and commit; `workers` is their number in each cell."""
    return {
        "tinyproto": tinyproto.__version__,
        "commit": source_commit(),
        "frame_version": VERSION,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cpu_count": os.cpu_count(),
        "parallel_cells": parallel_cells,
        "workers": workers,
        "threads_per_worker": 1,
        "device": device,
        "devices": devices(),
        "packages": package_versions(),
    }
