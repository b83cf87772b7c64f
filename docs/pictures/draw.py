"""Draw accuracy against the bytes sent from committed records; the axis begins with a zero for methods that are silent.

Run from the root of the repository:  .venv/bin/python docs/pictures/draw.py
"""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "results" / "quickstart"
PICTURES = ROOT / "docs" / "pictures"
CIFAR = (ROOT / "results/communication/cifar100", ROOT / "paper/records/table1_cifar100@sound")

LEFT, TOP, WIDTH, HEIGHT = 70, 34, 600, 300
SILENT = 70
"""Width of the part of the axis that stands for no bytes."""

COLOURS = {
    "local": "#57606a", "anchors": "#4e1632", "fedproto": "#a3650c", "fedtgp": "#80309f", "tinyproto_fp": "#376edd",
    "tinyproto_ft": "#0f530d", "tinyproto_sphere": "#240584",
}  # fmt: skip
"""Dark enough for words on white, and apart with any colour vision; `tests/report/test_colours.py` measures it."""
NAMES = {
    "local": "Local", "anchors": "Anchors", "fedproto": "FedProto", "fedtgp": "FedTGP", "tinyproto_fp": "TinyProto-FP",
    "tinyproto_ft": "TinyProto-FT", "tinyproto_sphere": "TinyProto-Sphere",
}  # fmt: skip
UNITS = {3: "1 kB", 4: "10 kB", 5: "100 kB", 6: "1 MB", 7: "10 MB"}

Curve = list[tuple[float, float]]  # (payload bytes sent so far, accuracy)


class Axes(NamedTuple):
    """The ranges of a picture: decades of bytes, and accuracies."""

    decades: tuple[int, int]
    low: float
    high: float

    def x(self, count: float) -> float:
        """Return the pixel of a byte count: logarithmic, with nothing in the middle of the silent part."""
        if not count:
            return LEFT + SILENT / 2
        low, high = self.decades
        return LEFT + SILENT + (WIDTH - SILENT) * max(math.log10(count) - low, 0.0) / (high - low)

    def y(self, accuracy: float) -> float:
        """Return the pixel of an accuracy; one below the range lies on its edge."""
        return TOP + HEIGHT * (1 - (max(accuracy, self.low) - self.low) / (self.high - self.low))

    def grid(self, step: float, below: str, above: str) -> list[str]:
        """Return the lines and labels of both axes."""
        parts = ['<rect width="100%" height="100%" fill="#ffffff"/>']
        parts.append(f'<rect x="{LEFT}" y="{TOP}" width="{SILENT}" height="{HEIGHT}" fill="#f3f4f6"/>')
        for place in range(round((self.high - self.low) / step) + 1):
            accuracy = self.low + place * step
            parts.append(line([(LEFT, self.y(accuracy)), (LEFT + WIDTH, self.y(accuracy))], "#e5e7eb"))
            parts.append(text(LEFT - 8, self.y(accuracy) + 4, f"{accuracy:.0%}".replace("%", " %"), anchor="end"))
        parts.append(text(self.x(0), TOP + HEIGHT + 18, "0 B"))
        for exponent in range(self.decades[0], self.decades[1] + 1):
            left = self.x(10**exponent)
            parts.append(line([(left, TOP), (left, TOP + HEIGHT)], "#e5e7eb"))
            parts.append(text(left, TOP + HEIGHT + 18, UNITS[exponent]))
        parts.append(text(LEFT + WIDTH / 2, TOP + HEIGHT + 38, below))
        parts.append(text(LEFT, TOP - 14, above, anchor="start"))
        return parts


def text(left: float, top: float, words: str, colour: str = "#374151", anchor: str = "middle") -> str:
    """Return one label."""
    return f'<text x="{left:.1f}" y="{top:.1f}" fill="{colour}" text-anchor="{anchor}">{words}</text>'


def line(points: Curve, colour: str) -> str:
    """Return one polyline through pixel points."""
    path = " ".join(f"{left:.1f},{top:.1f}" for left, top in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'


def dot(left: float, top: float, colour: str) -> str:
    """Return a point."""
    return f'<circle cx="{left:.1f}" cy="{top:.1f}" r="5" fill="{colour}"/>'


def whole(title: str, parts: Sequence[str]) -> str:
    """Return the picture."""
    size = f"0 0 {LEFT + WIDTH + 30} {TOP + HEIGHT + 50}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" font-family="sans-serif" font-size="13" role="img">'
    )
    return "\n".join([head, f"<title>{title}</title>", *parts, "</svg>", ""])


def curves(records: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    """Return accuracy by the nearest global prototype, or by the head where there is none, over payload; seed 0."""
    spent: dict[str, float] = defaultdict(float)
    found: dict[str, Curve] = defaultdict(list)
    for record in records:
        if record["seed"] != 0:
            continue
        name, traffic = record["algorithm"], record["traffic"].get("training") or record["traffic"]["closing"]
        spent[name] += traffic["down"]["payload"]  # an evaluation uses what was just downloaded
        accuracy = record["accuracy"]["head" if name == "local" else "global"]
        if accuracy is not None:
            found[name].append((spent[name], accuracy))
        spent[name] += traffic["up"]["payload"]
    return found


def draw_quickstart(found: Mapping[str, Curve]) -> str:
    """Draw a curve for each method that sends something, and a point for those that do not."""
    axes = Axes((3, 7), 0.0, 1.0)
    summary = ", ".join(f"{NAMES[name]} ends at {curve[-1][1]:.1%}" for name, curve in found.items())
    parts = axes.grid(
        0.2, "payload sent so far, up and down, all 20 clients (log scale after 0)",
        "accuracy by nearest global prototype (Local: by its head), 30 rounds, seed 0",
    )  # fmt: skip
    for row, (name, curve) in enumerate(found.items()):
        end = curve[-1]
        if end[0]:
            parts.append(line([(axes.x(count), axes.y(accuracy)) for count, accuracy in curve], COLOURS[name]))
        parts.append(dot(axes.x(end[0]), axes.y(end[1]), COLOURS[name]))
        key = TOP + 24 + 20 * row
        parts.append(dot(LEFT + SILENT + 18, key - 4, COLOURS[name]))
        parts.append(text(LEFT + SILENT + 30, key, f"{NAMES[name]} {end[1]:.1%}", COLOURS[name], "start"))
    return whole(f"Accuracy against payload sent: {summary}", parts)


def draw_cifar100(points: Mapping[str, tuple[float, list[float]]]) -> str:
    """Draw the mean of each method with its seeds' range, over bytes per round."""
    axes = Axes((4, 7), 0.4, 0.5)
    parts = axes.grid(
        0.02, "payload per round, up and down, all 20 clients (log scale after 0)",
        "CIFAR-100, 300 rounds: mean of the last ten evaluations by each method's better rule",
    )  # fmt: skip
    for name, (count, values) in points.items():
        left, mean = axes.x(count), fmean(values)
        shift = {"local": 0, "tinyproto_sphere": -9, "tinyproto_ft": 9}.get(name, 0)
        parts.append(line([(left + shift, axes.y(min(values))), (left + shift, axes.y(max(values)))], COLOURS[name]))
        parts.append(dot(left + shift, axes.y(mean), COLOURS[name]))
        seeds = f"± {stdev(values):.1%}" if len(values) > 1 else "(one seed)"
        above = 22 if name == "tinyproto_ft" else -10
        side, anchor = (-10, "end") if left > LEFT + WIDTH * 0.8 else (8, "start")
        words = f"{NAMES[name]} {mean:.1%} {seeds}"
        parts.append(text(left + shift + side, axes.y(mean) + above, words, COLOURS[name], anchor))
    summary = ", ".join(f"{NAMES[name]} {fmean(values):.1%}" for name, (_, values) in points.items())
    return whole(f"Accuracy against payload per round on CIFAR-100: {summary}", parts)


def cifar100_points() -> dict[str, tuple[float, list[float]]]:
    """Return bytes per round and the accuracy of each seed by the rule with the best mean."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for folder in CIFAR:
        for file in sorted(folder.glob("*/summary.json")):
            for result in json.loads(file.read_text())["results"]:
                found[result["algorithm"]].append(result)
    points = {}
    for name in (name for name in COLOURS if name in found):
        rules = [[one["accuracy"]["last10"][rule] for one in found[name]] for rule in ("head", "global", "local")]
        values = max((seeds for seeds in rules if None not in seeds), key=fmean)
        points[name] = sum(found[name][0]["payload_bytes_per_round"].values()), values
    return points


def lines_of(record: Path) -> list[dict[str, Any]]:
    """Return all rounds of a record, packed or not."""
    plain, packed = record / "rounds.jsonl", record / "rounds.jsonl.gz"
    content = plain.read_text() if plain.is_file() else gzip.decompress(packed.read_bytes()).decode()
    return [json.loads(entry) for entry in content.splitlines()]


if __name__ == "__main__":
    (PICTURES / "quickstart.svg").write_text(draw_quickstart(curves(lines_of(RECORD))))
    (PICTURES / "what_communication_buys.svg").write_text(draw_cifar100(cifar100_points()))
