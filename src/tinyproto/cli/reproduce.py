"""`tinyproto reproduce --list`: the paper's experiments and the configs they are made of."""

from __future__ import annotations

from tinyproto.cli.terminal import Output, plain_table
from tinyproto.reproduce.experiments import experiments


def list_experiments(output: Output) -> None:
    """One line per config."""
    found = experiments()
    if output.wants_json:
        output.result(
            [
                {
                    "target": config.target,
                    "config": config.path.as_posix(),
                    "dataset": config.values["data"]["name"],
                    "cells": config.cells,
                    "what": config.words,
                }
                for config in found
            ]
        )
        return
    table = plain_table()
    for name in ("target", "config", "dataset"):
        table.add_column(name, no_wrap=True)
    table.add_column("cells", justify="right", no_wrap=True)
    for config in found:
        table.add_row(config.target, config.path.as_posix(), config.values["data"]["name"], str(config.cells))
    table.caption = (
        f"{sum(config.cells for config in found)} cells (an algorithm, a seed, 300 rounds) in {len(found)} configs. "
        "Run one with: tinyproto run CONFIG data.root=FOLDER"
    )
    output.console.print(table)
