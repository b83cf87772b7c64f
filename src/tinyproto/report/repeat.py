"""The end of a report: what it takes to repeat the runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape

import yaml

import tinyproto
from tinyproto.report import html
from tinyproto.report.runs import Run

FEW_RUNS = 6
"""So many are spoken of one by one."""


def to_repeat(runs: Sequence[Run]) -> Iterator[str]:
    """Config, versions, hardware and commit of every run, once for those that are alike."""
    yield html.element("h2", "To repeat it")
    for alike in _alike(runs):
        run, environment = alike[0], alike[0].environment
        where = ", ".join(
            str(environment[key]) for key in ("cpu", "device", "platform") if environment.get(key) is not None
        )
        version, commit = environment.get("tinyproto", "?"), environment.get("commit") or "unknown"
        rest = f" and {len(alike) - 1} more, which differ from it in algorithm and seed" if len(alike) > 1 else ""
        yield html.paragraph(
            f"{run.name}{rest}: tinyproto {version}, commit {commit}, Python {environment.get('python', '?')}; "
            f"{where}. "
            "Save the config below and run: tinyproto run config.yaml"
        )
        config = yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True)
        shown = html.element("summary", "Config") + html.element("pre", escape(config))
        versions = html.element("summary", "Environment") + html.element(
            "pre", escape(json.dumps(environment, indent=1))
        )
        yield html.element("details", shown) + html.element("details", versions)
    yield html.paragraph(f"Made by tinyproto {tinyproto.__version__}.", "quiet")


def _alike(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs of one group on one machine that differ in algorithms and seeds alone; few stand for themselves."""
    if len(runs) <= FEW_RUNS:
        return [[run] for run in runs]
    groups: dict[str, list[Run]] = {}
    for run in runs:
        config = {key: value for key, value in run.config.items() if key not in ("algorithms", "seeds")}
        groups.setdefault(json.dumps([run.group, config, run.environment], sort_keys=True), []).append(run)
    return list(groups.values())
