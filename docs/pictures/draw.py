"""Draw the README's picture from the committed record: accuracy against the bytes sent.

Run from the root of the repository:  .venv/bin/python docs/pictures/draw.py
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "results" / "quickstart"
PICTURE = ROOT / "docs" / "pictures" / "quickstart.svg"

LEFT, TOP, WIDTH, HEIGHT = 70, 30, 600, 300
COLOURS = {"fedproto": "#b45309", "fedtgp": "#6d28d9", "tinyproto_fp": "#0e7490", "tinyproto_ft": "#15803d"}
NAMES = {"fedproto": "FedProto", "fedtgp": "FedTGP", "tinyproto_fp": "TinyProto-FP", "tinyproto_ft": "TinyProto-FT"}
DECADES = (4, 7)  # 10 kB to 10 MB

Curve = list[tuple[float, float]]  # (payload bytes sent so far, accuracy)


def curves(records: list[dict[str, Any]]) -> dict[str, Curve]:
    """Return accuracy by nearest global prototype over cumulative payload, seed 0."""
    spent: dict[str, float] = defaultdict(float)
    found: dict[str, Curve] = defaultdict(list)
    for record in records:
        if record["seed"] != 0 or record["algorithm"] not in COLOURS:
            continue
        name, traffic = record["algorithm"], record["traffic"].get("training") or record["traffic"]["closing"]
        spent[name] += traffic["down"]["payload"]  # an evaluation uses what was just downloaded
        if record["accuracy"]["global"] is not None:
            found[name].append((spent[name], record["accuracy"]["global"]))
        spent[name] += traffic["up"]["payload"]
    return found


def x(count: float) -> float:
    """Return the pixel of a byte count, logarithmic."""
    low, high = DECADES
    return LEFT + WIDTH * (math.log10(count) - low) / (high - low)


def y(accuracy: float) -> float:
    """Return the pixel of an accuracy."""
    return TOP + HEIGHT * (1 - accuracy)


def text(left: float, top: float, words: str, colour: str = "#374151", anchor: str = "middle") -> str:
    """Return one label."""
    return f'<text x="{left:.1f}" y="{top:.1f}" fill="{colour}" text-anchor="{anchor}">{words}</text>'


def line(points: Curve, colour: str, extra: str = "") -> str:
    """Return one polyline through pixel points."""
    path = " ".join(f"{left:.1f},{top:.1f}" for left, top in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" {extra}/>'


def draw(found: dict[str, Curve], local: float) -> str:
    """Return the picture."""
    summary = ", ".join(f"{NAMES[name]} ends at {curve[-1][1]:.1%}" for name, curve in found.items())
    parts = [f"<title>Accuracy by nearest global prototype against payload sent: {summary}</title>"]
    parts.append('<rect width="100%" height="100%" fill="#ffffff"/>')
    for percent in (0, 20, 40, 60, 80, 100):
        parts.append(line([(LEFT, y(percent / 100)), (LEFT + WIDTH, y(percent / 100))], "#e5e7eb"))
        parts.append(text(LEFT - 8, y(percent / 100) + 4, f"{percent} %", anchor="end"))
    for exponent, label in zip(range(DECADES[0], DECADES[1] + 1), ("10 kB", "100 kB", "1 MB", "10 MB"), strict=True):
        parts.append(line([(x(10**exponent), TOP), (x(10**exponent), TOP + HEIGHT)], "#e5e7eb"))
        parts.append(text(x(10**exponent), TOP + HEIGHT + 18, label))
    parts.append(
        text(LEFT + WIDTH / 2, TOP + HEIGHT + 38, "payload sent so far, up and down, all 20 clients (log scale)")
    )
    parts.append(text(LEFT, TOP - 12, "accuracy by nearest global prototype, 30 rounds, seed 0", anchor="start"))
    parts.append(line([(LEFT, y(local)), (LEFT + WIDTH, y(local))], "#6b7280", 'stroke-dasharray="5 4"'))
    parts.append(
        text(LEFT + 6, y(local) - 6, f"Local training alone, no parameters sent: {local:.1%}", "#6b7280", "start")
    )
    for row, (name, curve) in enumerate(found.items()):
        parts.append(line([(x(count), y(accuracy)) for count, accuracy in curve], COLOURS[name]))
        key = TOP + HEIGHT - 78 + 20 * row
        parts.append(line([(LEFT + WIDTH - 150, key - 4), (LEFT + WIDTH - 126, key - 4)], COLOURS[name]))
        parts.append(text(LEFT + WIDTH - 120, key, NAMES[name], COLOURS[name], "start"))
    size = f"0 0 {LEFT + WIDTH + 30} {TOP + HEIGHT + 50}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" font-family="sans-serif" font-size="13" role="img">'
    )
    return "\n".join([head, *parts, "</svg>", ""])


if __name__ == "__main__":
    results = json.loads((RECORD / "summary.json").read_text())["results"]
    alone = next(entry for entry in results if entry["algorithm"] == "local" and entry["seed"] == 0)
    lines = (RECORD / "rounds.jsonl").read_text().splitlines()
    PICTURE.write_text(draw(curves([json.loads(entry) for entry in lines]), alone["accuracy"]["last"]["head"]))
