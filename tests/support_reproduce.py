"""A small paper: three configs on embedded digits, and a command line that takes them for the paper's."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paper import plan, records_reader
from paper.experiments import PaperConfig

ROUNDS = 3
SPARSE = {"name": "tinyproto_fp", "cps_dim": 4, "global_scale": "auto"}


def paper(target: str, stem: str, algorithms: list[Any], **changed: Mapping[str, Any] | list[Any]) -> PaperConfig:
    """One config; sections are changed key by key, lists are replaced."""
    values: dict[str, Any] = {
        "schema_version": 1,
        "name": stem,
        "preset": "sound",
        "data": {"name": "digits"},
        "partition": {"num_clients": 3, "alpha": 0.5, "min_samples": 20},
        "models": ["small_cnn_b", "small_cnn_c"],
        "prototypes": {"dim": 12, "cps_dim": 3},
        "train": {"rounds": ROUNDS, "batch_size": 64},
        "checkpoint": {"every_seconds": 0.0},
        "algorithms": algorithms,
        "seeds": [0, 1],
    }
    for key, value in changed.items():
        values[key] = {**values[key], **value} if isinstance(value, Mapping) else value
    return PaperConfig(target, stem, f"{stem} in miniature.", values)


def miniature() -> list[PaperConfig]:
    """Two configs of table1, and one of appendix on a narrower layer."""
    return [
        paper("table1", "table1_small", ["local", "fedproto"]),
        paper("table1", "table1_other", ["fedproto"], partition={"alpha": 2.0}),
        paper("appendix", "appendix_small", [SPARSE], prototypes={"dim": 8}, seeds=[0]),
    ]


def use(monkeypatch: pytest.MonkeyPatch, papers: list[PaperConfig]) -> None:
    """Have the package take them for the paper's."""
    for module in (plan, records_reader):
        monkeypatch.setattr(module, "experiments", lambda: papers)


def main() -> None:
    """The command line with the paper in miniature, as a script; a config of a failing network where there is one."""
    from paper.__main__ import main as command

    papers = miniature()
    if Path("nets.py").is_file():
        papers.append(paper("table1", "table1_moody", ["local", "fedproto"], models=["nets:make"], seeds=[0]))
    for module in (plan, records_reader):
        module.experiments = lambda: papers  # type: ignore[attr-defined]
    command()


def in_process(monkeypatch: pytest.MonkeyPatch, cwd: Path, *arguments: str) -> int:
    """Run `python -m paper` in this process, which saves importing torch again; return its exit status."""
    from paper.__main__ import main as command

    monkeypatch.chdir(cwd)
    monkeypatch.setattr(sys, "argv", ["paper", *arguments])
    with pytest.raises(SystemExit) as ended:
        command()
    return 0 if ended.value.code is None else int(ended.value.code)


if __name__ == "__main__":
    main()
