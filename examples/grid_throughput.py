"""Measure the throughput of a grid with 1, 4 and 8 cells at once.

python examples/grid_throughput.py CONFIG [KEY=VALUE ...] --at-once 1 4 8

The config needs at least as many cells as the largest number, all of one algorithm so that they are alike:
'algorithms=[fedproto]' 'seeds=[0,1,2,3,4,5,6,7]'. The script prints one JSON value per number. `rounds_per_second`
counts the whole command, from its start to its report. `rounds_per_second_together` counts only the time in which so
many cells were running, as in a long grid.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Time each requested number of cells at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--at-once", nargs="+", type=int, default=[1, 4, 8], metavar="N")
    asked = parser.parse_args()
    for cells in asked.at_once:
        print(json.dumps(measure(asked.config, asked.overrides, cells)), flush=True)


def measure(config: str, overrides: list[str], cells: int) -> dict[str, Any]:
    """Run with so many cells at once in a temporary folder; return the measurements."""
    with tempfile.TemporaryDirectory() as runs:
        command = [sys.executable, "-m", "tinyproto.cli.main", "run", config, *overrides, "name=timed"]
        start = time.perf_counter()
        done = subprocess.run(
            [*command, f"train.parallel_cells={cells}", "train.workers=1", "--runs", runs],
            check=True, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        seconds = time.perf_counter() - start
        folder = Path(runs) / "timed"
        timings = [json.loads(line) for line in (folder / "timings.jsonl").read_text().splitlines()]
        results = json.loads((folder / "summary.json").read_text())["results"]
    each = [line["seconds"]["total"] for line in timings if line["round"] > 2]
    rounds = sum(result["rounds"] for result in results)
    return {
        "at_once": cells,
        "cells": len(results),
        "rounds": rounds,
        "seconds": round(seconds, 2),
        "rounds_per_second": round(rounds / seconds, 3),
        "rounds_per_second_together": round(min(cells, len(results)) * len(each) / sum(each), 3),
        "seconds_per_round": round(sum(each) / len(each), 4),
        "peak_memory_bytes": max(result["peak_memory_bytes"] for result in results),
        "said": [line for line in done.stdout.splitlines() if "share the GPU" in line or "a cell took" in line],
    }


if __name__ == "__main__":
    main()
