"""A full disk while a run writes: one sentence and exit status 2; with space again, a resume ends as if undisturbed.

The run folder lies on a small disk in memory, which takes the right to mount. It is too small from the start, or it is
filled after a random record and kept full. Without that right, a limit on the size of files takes its place.
"""

from __future__ import annotations

import json
import random
import re
import resource
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import safetensors

from benchmarks.soak import Line, Verdict
from benchmarks.soak.runs import differing, finish, reference, run, scratch, start, write_config

ROUNDS = 5
ALGORITHMS = 2
SMALL, FILLED = 3, 5  # cases of either kind
KILOBYTES = (4, 200)  # of a disk that is too small from the start: the run needs about 250
ROOM = "16m"
FULL = re.compile(r"no space left|file too large", re.IGNORECASE)


class Disk:
    """A disk in memory, mounted at a folder."""

    def __init__(self, folder: Path, size: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        _call("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))

    def grow(self) -> None:
        """Enlarge the disk."""
        _call("mount", "-o", f"remount,size={ROOM}", str(self.folder))

    def unmount(self) -> None:
        """Unmount the disk."""
        _call("umount", str(self.folder))


def _call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def may_mount() -> bool:
    """Try whether this process may mount a disk."""
    with tempfile.TemporaryDirectory(prefix="tinyproto-soak-") as folder:
        try:
            Disk(Path(folder) / "disk", "1m").unmount()
        except (OSError, subprocess.CalledProcessError):
            return False
    return True


@contextmanager
def filling(runs: Path, after: int, stop: threading.Event) -> Iterator[Path]:
    """Fill the disk once so many records are on it, and keep it full until told to stop."""
    filler = runs / "filler"

    def fill() -> None:
        while not stop.wait(0.002):
            if _records(runs) < after:
                continue
            try:
                with filler.open("ab", buffering=0) as file:
                    while file.write(bytes(4096)):
                        pass
            except OSError:
                pass

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        yield filler
    finally:
        stop.set()
        thread.join()
        filler.unlink(missing_ok=True)


def _records(runs: Path) -> int:
    """Count the records that a run has written."""
    found = 0
    for file in (runs / "trial" / "rounds.jsonl", *runs.glob("trial/cells/*/rounds.jsonl")):
        try:
            found += file.read_bytes().count(b"\n")
        except OSError:  # not there, or it went meanwhile
            continue
    return found


def half_written(run: Path) -> list[str]:
    """Return the incomplete files: lines or JSON cut off, tensors that cannot be read."""
    bad = []
    for file in sorted(path for path in run.rglob("*") if path.is_file()):
        try:
            if file.suffix == ".jsonl":
                text = file.read_text(encoding="utf-8")
                assert text == "" or text.endswith("\n")
                for line in text.splitlines():
                    json.loads(line)
            elif file.suffix == ".json":
                json.loads(file.read_text(encoding="utf-8"))
            elif file.suffix == ".safetensors":
                with safetensors.safe_open(file, framework="pt") as tensors:
                    tensors.keys()
        except (ValueError, AssertionError, safetensors.SafetensorError):
            bad.append(str(file.relative_to(run)))
    return [name for name in bad if not name.rpartition("/")[2].startswith(".")]  # partial ones are hidden


def written(said: str) -> str:
    """Return what could not be written, from the sentence that the run ended with."""
    if "state of client" in said:
        return "state of a client"
    found = re.search(r"cannot write \S*?([\w.]+): ", said)
    return found[1] if found else "?"


class Cases:
    """Runs that meet a full disk, each in a folder of its own."""

    def __init__(self, folder: Path, seed: int, rounds: int, expected: dict[str, bytes]) -> None:
        self.folder = folder
        self.seed = seed
        self.rounds = rounds
        self.expected = expected
        self.places = Counter[str]()
        self.failures: list[str] = []
        self._number = 0

    def too_small(self, kilobytes: int) -> None:
        """Run on a disk of this size from the start."""
        place = self._place()
        disk = Disk(place / "runs", f"{kilobytes}k")
        try:
            ended = run(place, "run", "trial.yaml")
            self._end(f"disk of {kilobytes} kB", place, ended, disk.grow)
        finally:
            disk.unmount()

    def filled(self, records: int) -> None:
        """Run on a disk that becomes full after so many records."""
        place = self._place()
        disk = Disk(place / "runs", ROOM)
        try:
            with filling(place / "runs", records, threading.Event()):
                ended = run(place, "run", "trial.yaml")
            self._end(f"disk full after {records} records", place, ended, lambda: None)
        finally:
            disk.unmount()

    def limited(self, size: int) -> None:
        """Run with files of at most this size."""
        place = self._place()
        process = start(place, "run", "trial.yaml")
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        self._end(f"files of at most {size} bytes", place, finish(process), lambda: None)

    def _place(self) -> Path:
        self._number += 1
        place = self.folder / str(self._number)
        write_config(place, rounds=self.rounds, workers=1 + self._number % 2, seed=self.seed)
        return place

    def _end(self, case: str, place: Path, ended: tuple[int, str], free: Callable[[], None]) -> None:
        """Check how a run ended, give it space, resume it, and check the result."""
        status, said = ended
        trial = place / "runs" / "trial"
        if status == 0:
            self.places["nothing: it had ended"] += 1
        elif status != 2 or len(said.strip().splitlines()) != 1 or not FULL.search(said):
            self.failures.append(f"{case}: exit status {status}: {said.strip()[-500:]}")
            return
        else:
            self.places[written(said)] += 1
        if bad := half_written(trial):
            self.failures.append(f"{case}: half-written: {', '.join(bad)}")
        free()
        begun = (trial / "config.yaml").exists()
        status, said = run(place, "resume", "runs/trial") if begun else run(place, "run", "trial.yaml", "--overwrite")
        if status != 0:
            self.failures.append(f"{case}, then resumed: exit status {status}: {said.strip()[-500:]}")
        elif files := differing(place, self.expected):
            self.failures.append(f"{case}, then resumed: {' and '.join(files)} differ from an undisturbed run's")


def soak(seed: int, small: int = SMALL, filled: int = FILLED, rounds: int = ROUNDS) -> Verdict:
    """Run the part."""
    line, verdict, draws = Line("disk"), Verdict(), random.Random(seed)
    mounts = may_mount()
    with scratch(verdict) as folder:
        expected = reference(folder / "alone", rounds=rounds, seed=seed)
        cases = Cases(folder, seed, rounds, expected)
        last = ALGORITHMS * (rounds + 1)
        moments = [*draws.sample(range(1, last), filled - 1), last] if filled else []
        for number in range(small):
            line.show(f"{number + 1} of {small + filled}")
            if mounts:
                cases.too_small(draws.randint(*KILOBYTES))
            else:
                cases.limited(draws.randint(500, 60_000))
        for number, records in enumerate(moments if mounts else [], small):
            line.show(f"{number + 1} of {small + filled}")
            cases.filled(records)
        verdict.failures += cases.failures
    line.end()
    verdict.figures = {"cases": cases.places.total(), "could not write": dict(cases.places.most_common())}
    if not mounts:
        verdict.figures["instead of a disk"] = "a limit on the size of files, since mounting one needs root"
    return verdict
