"""Print the table of docs/explain/what_communication_buys.md for the paper's networks, from the records of cells."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev

ROOT = Path(__file__).parents[1]
RULES = ("head", "global", "local")
TITLES: Mapping[str, str] = {
    "local": "Local",
    "anchors": "Anchors",
    "tinyproto_sphere": "TinyProto-Sphere",
    "tinyproto_ft": "TinyProto-FT",
    "fedtgp": "FedTGP",
    "feddistill": "FedDistill",
}
CELLS = "results/communication"
RECORDS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "CIFAR-10": (80, (f"{CELLS}/cifar10_80rounds",)),
    "CIFAR-100": (110, (f"{CELLS}/cifar100", f"{CELLS}/cifar100_150rounds", "paper/records/table1_cifar100@sound")),
}
"""By dataset, the round at which all methods have three seeds, and the folders of their cells."""

_EVALUATIONS = 10


def accuracy(cell: Path, last: int, rule: str) -> float | None:
    """Return the mean of the ten evaluations up to that of the model after round `last`, in %."""
    found = []
    for line in gzip.decompress((cell / "rounds.jsonl.gz").read_bytes()).splitlines():
        record = json.loads(line)
        if last - _EVALUATIONS < record["round"] - 1 <= last:  # a round first evaluates the model of the one before
            found.append(record["accuracy"][rule])
    assert len(found) == _EVALUATIONS, f"{cell} ends before round {last + 1}"
    return None if None in found else 100 * fmean(found)


def table() -> str:
    """Return mean ± sample deviation over seeds 0 to 2, by dataset, method and rule."""
    heads = [f"{data}, {rule}" for data in RECORDS for rule in RULES]
    lines = [f"| method | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for name, title in TITLES.items():
        cells = []
        for last, folders in RECORDS.values():
            places = [ROOT / folder / f"{name}-{seed}" for seed in range(3) for folder in folders]
            seeds = [place for place in places if place.is_dir()]
            assert len(seeds) == 3
            cells += [_spread([accuracy(place, last, rule) for place in seeds]) for rule in RULES]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _spread(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return "–" if len(known) < len(values) else f"{fmean(known):.1f} ± {stdev(known):.1f}"


if __name__ == "__main__":
    print(table(), end="")
