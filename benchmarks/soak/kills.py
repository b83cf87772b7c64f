"""Fifty SIGKILLs at random moments: a run that is killed and resumed again and again ends byte for byte as one alone.

Two chains of kills run at once, one with a single process and one with two workers. A kill is timed from the start of
the process, from the moment it opens the run, or from its first record. Where it fell is read from what it left.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.soak import Line, Verdict
from benchmarks.soak.runs import LONGEST, differing, finish, kill, reference, scratch, start, write_config
from tinyproto.errors import DamagedError
from tinyproto.storage.tensor_files import sealed_facts

KILLS = 25
"""Kills in each of the chains."""

ROUNDS = 30
WORKERS = (1, 2)
FROM_START, FROM_OPENING, FROM_RECORD = 3.0, 1.5, 1.2  # seconds that a kill comes later, at most


def place(folder: Path, before: object) -> str:
    """Say where a killed process was, from what it left in the run folder."""
    if state(folder) == before:
        return "starting, or in its first round"
    cells = sorted((folder / "cells").glob("*/")) if folder.is_dir() else []
    if not cells or (cells[0] / "summary.json").exists():
        return "between two algorithms, or ending"
    checkpoints = sorted((cells[0] / "checkpoint").glob("*.safetensors"))
    if any(cells[0].glob("*/*.partial")):
        return "writing a checkpoint"
    if not checkpoints:
        return "before the first checkpoint"
    try:
        saved = sealed_facts(checkpoints[-1])["position"]["rounds_bytes"]
    except DamagedError:
        return "left a damaged checkpoint"
    records = cells[0] / "rounds.jsonl"
    return "writing a checkpoint" if records.stat().st_size != saved else "in a round"


def state(folder: Path) -> object:
    """Return what is in a folder: names, sizes and times."""
    found = {}
    for path in sorted(folder.rglob("*")):
        try:
            stat = path.stat()
        except FileNotFoundError:  # it went meanwhile
            continue
        found[str(path)] = (stat.st_size, stat.st_mtime_ns)
    return found


class Chain:
    """One run that is killed and resumed until it has been killed often enough."""

    def __init__(self, folder: Path, workers: int, seed: int, expected: dict[str, bytes], rounds: int) -> None:
        self.folder = folder
        self.run = folder / "runs" / "trial"
        self.lock = folder / "runs" / ".trial.lock"
        self.name = f"{workers} worker{'s' if workers > 1 else ''}"
        self.draws = random.Random(f"{seed}/{workers}")
        self.expected = expected
        self.places = Counter[str]()
        self.completed = 0
        self.failures: list[str] = []
        write_config(folder, rounds=rounds, workers=workers, seed=seed)

    def play(self, kills: int, told: Callable[[], None]) -> Chain:
        """Kill so often, then let the run end."""
        process = self._begin()
        while self.places.total() < kills and not self.failures:
            before = state(self.run)
            if self._survives(process):
                self._check_end(process)
                process = self._begin()
                continue
            kill(process)
            self.places[place(self.run, before)] += 1
            told()
            begun = (self.run / "config.yaml").exists()
            process = start(self.folder, "resume", str(self.run)) if begun else self._begin()
        self._check_end(process)
        return self

    def _begin(self) -> subprocess.Popen[str]:
        return start(self.folder, "run", "trial.yaml", "--overwrite")

    def _survives(self, process: subprocess.Popen[str]) -> bool:
        """Wait for a random moment; return True if the process ended before."""
        kind = self.draws.choices(("start", "opening", "record"), (1, 2, 5))[0]
        began, opened, recorded = time.monotonic(), self._opened(), self._recorded()
        longest = {"start": FROM_START, "opening": FROM_OPENING, "record": FROM_RECORD}[kind]
        delay = self.draws.uniform(0, longest)
        while process.poll() is None and time.monotonic() - began < LONGEST:
            if (
                kind == "start"
                or (kind == "opening" and self._opened() != opened)
                or (kind == "record" and self._recorded() > recorded)
            ):
                break
            time.sleep(0.01)
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _opened(self) -> int:
        """Return when a process last took the run's lock."""
        try:
            return self.lock.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def _recorded(self) -> int:
        """Return how many bytes of records the run has."""
        sizes = 0
        for file in (self.run / "rounds.jsonl", *self.run.glob("cells/*/rounds.jsonl")):
            try:
                sizes += file.stat().st_size
            except FileNotFoundError:  # not there yet, or moved to the run's own
                continue
        return sizes

    def _check_end(self, process: subprocess.Popen[str]) -> None:
        status, said = finish(process)
        self.completed += 1
        after = f"{self.name}, after {self.places.total()} kills"
        if status != 0:
            self.failures.append(f"{after}: exit status {status}: {said.strip()[-500:]}")
        elif files := differing(self.folder, self.expected):
            self.failures.append(f"{after}: {' and '.join(files)} differ from those of an undisturbed run")


def soak(seed: int, kills: int = KILLS, rounds: int = ROUNDS) -> Verdict:
    """Run the part: so many kills with one process, and as many with two workers."""
    line, verdict = Line("kills"), Verdict()
    with scratch(verdict) as folder:
        expected = reference(folder / "alone", rounds=rounds, seed=seed)
        chains = [Chain(folder / f"workers-{workers}", workers, seed, expected, rounds) for workers in WORKERS]

        def told() -> None:
            line.show(f"{sum(chain.places.total() for chain in chains)} of {kills * len(chains)}")

        with ThreadPoolExecutor(len(chains)) as threads:
            done = list(threads.map(lambda chain: chain.play(kills, told), chains))
        verdict.failures += [failure for chain in done for failure in chain.failures]
    line.end()
    places = sum((chain.places for chain in done), Counter[str]())
    verdict.figures = {
        "kills": {chain.name: chain.places.total() for chain in done},
        "runs that ended": sum(chain.completed for chain in done),
        "by place": dict(places.most_common()),
    }
    return verdict
