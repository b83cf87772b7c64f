"""Two `tinyproto resume` of one run at once: exactly one resumes, the other is refused, and the result is the same."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.soak import Line, Verdict
from benchmarks.soak.runs import LONGEST, differing, finish, kill, reference, scratch, start, write_config

TIMES = 4
ROUNDS = 20
REFUSED = "another process is running in"
APART = 1.0  # seconds between the two starts, at most


def soak(seed: int, times: int = TIMES, rounds: int = ROUNDS) -> Verdict:
    """Run the part."""
    line, verdict, draws = Line("resumes"), Verdict(), random.Random(seed)
    refused = 0
    with scratch(verdict) as folder:
        expected = reference(folder / "alone", rounds=rounds, seed=seed)
        for number in range(1, times + 1):
            line.show(f"{number} of {times}")
            place = folder / str(number)
            write_config(place, rounds=rounds, workers=1 + number % 2, seed=seed)
            _run_until_checkpoint(place)
            both = [start(place, "resume", "runs/trial")]
            time.sleep(draws.uniform(0, APART) * (number > 1))
            both.append(start(place, "resume", "runs/trial"))
            ends = [finish(process) for process in both]
            if problem := _problem(ends, differing(place, expected)):
                verdict.failures.append(f"pair {number}: {problem}")
            refused += sum(status == 2 for status, _ in ends)
    line.end()
    verdict.figures = {"pairs": times, "refused": refused}
    return verdict


def _run_until_checkpoint(folder: Path) -> None:
    """Run until there is a checkpoint to resume from, and kill it."""
    process, until = start(folder, "run", "trial.yaml"), time.monotonic() + LONGEST
    while not any(folder.glob("runs/trial/cells/*/checkpoint/*.safetensors")) and time.monotonic() < until:
        time.sleep(0.01)
    kill(process)


def _problem(ends: Sequence[tuple[int, str]], differ: Sequence[str]) -> str | None:
    """Say what is wrong with how two resumes ended."""
    statuses = sorted(status for status, _ in ends)
    said = " | ".join(words.strip()[-300:] for _, words in ends)
    if statuses != [0, 2]:
        return f"exit statuses {statuses} instead of 0 and 2: {said}"
    sentences = [words.strip() for status, words in ends if status == 2]
    if REFUSED not in sentences[0] or "Traceback" in sentences[0] or len(sentences[0].splitlines()) != 1:
        return f"the refused one said: {sentences[0][-300:]}"
    return f"{' and '.join(differ)} differ from those of an undisturbed run" if differ else None
