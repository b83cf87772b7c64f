"""Run the soak: `python -m benchmarks soak`."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.soak import Verdict, disk, frames, kills, outage, resumes, rounds
from benchmarks.studies import Parser
from tinyproto.tracking.environment import environment

PARTS: Mapping[str, Callable[[int], Verdict]] = {
    "kills": kills.soak, "frames": frames.soak, "rounds": rounds.soak, "disk": disk.soak, "resumes": resumes.soak,
    "outage": outage.soak,
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Run the parts asked for; return 1 if any failed."""
    parser = Parser("soak", "Run the soak; 20 minutes at most.")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to run")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31), help="seed of all that is random")
    parser.add_argument("--json", type=Path, help="file for the figures")
    asked = parser.parse_args(arguments)
    print(f"soak: seed {asked.seed}", flush=True)
    began, results = time.monotonic(), dict[str, dict[str, Any]]()
    for name in asked.only:
        start = time.monotonic()
        verdict = PARTS[name](asked.seed)
        seconds = round(time.monotonic() - start, 1)
        results[name] = {"verdict": verdict.word, "seconds": seconds, **verdict.figures}
        print(f"{name}: {verdict.word} in {seconds:.0f} s; {verdict.skipped or in_words(verdict.figures)}", flush=True)
        for failure in verdict.failures:
            print(f"{name}: {failure}", flush=True)
        results[name]["failures"] = verdict.failures
    total = round(time.monotonic() - began, 1)
    failed = [name for name, result in results.items() if result["failures"]]
    print(f"soak: {total / 60:.1f} minutes; {'failed: ' + ', '.join(failed) if failed else 'no part failed'}")
    if asked.json is not None:
        facts = {**environment("cpu", 1), "cores": os.cpu_count(), "load": os.getloadavg()}
        figures = {"seed": asked.seed, "seconds": total, "environment": facts, "parts": results}
        asked.json.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 1 if failed else 0


def in_words(figures: Mapping[str, Any]) -> str:
    """Return figures as one line."""
    said = []
    for name, value in figures.items():
        said.append(f"{name} ({in_words(value)})" if isinstance(value, Mapping) else f"{name} {value}")
    return ", ".join(said)
