"""Measure accuracy against participation, with and without dropouts: train, write the records, draw the picture.

    python -m benchmarks participation

Each setting has the same number of client-rounds: with a tenth of the clients per round there are ten times as many
rounds. A curve thus shows the cost of few clients per round, not of less training. Dropouts reduce the client-rounds by
their share. The accuracy is that of the closing exchange, which evaluates all clients.
"""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.studies import Parser
from tinyproto import grid
from tinyproto.config import load_config
from tinyproto.experiment import Experiment
from tinyproto.report import svg
from tinyproto.report.compare import Spread, compare, share_cell
from tinyproto.report.page import figure_style
from tinyproto.report.standalone import standalone
from tinyproto.report.svg import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    LegendEntry,
    Linear,
    frame,
    in_percent,
    legend,
    span,
    stroke,
)
from tinyproto.tracking.run_folder import PACKED

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "quickstart.yaml"
RECORDS = ROOT / "results" / "participation"
PICTURE = ROOT / "docs" / "pictures" / "participation.svg"

SHARES = (0.1, 0.25, 0.5, 1.0)
DROPOUTS = (0.0, 0.2)
ALGORITHMS = ("local", "fedproto", "fedtgp", "tinyproto_fp", "tinyproto_ft")
PASSES = 15
"""Rounds with full participation: how often each client takes part on average, dropouts aside."""

Curves = dict[tuple[str, float], dict[float, Spread]]  # (title, dropout) → participation → accuracy over seeds


@dataclass(frozen=True)
class Setting:
    """One point of every curve."""

    share: float
    dropout: float

    @property
    def name(self) -> str:
        """The name of its record."""
        return f"participation{100 * self.share:.0f}_dropout{100 * self.dropout:.0f}"

    def overrides(self, seeds: Sequence[int], passes: int) -> list[str]:
        """Return what it changes in the quickstart's config."""
        rounds = round(passes / self.share)
        return [
            f"name={self.name}", f"train.participation={self.share}", f"train.dropout={self.dropout}",
            f"train.rounds={rounds}", f"evaluate.every={rounds}", "evaluate.statistic=last",
            "partition.alpha=0.1",
            f"algorithms=[{','.join(ALGORITHMS)}]", f"seeds=[{','.join(map(str, seeds))}]",
        ]  # fmt: skip


SETTINGS = [Setting(share, dropout) for dropout in DROPOUTS for share in SHARES]


def train(setting: Setting, seeds: Sequence[int], passes: int, records: Path) -> None:
    """Run one setting with all algorithms and seeds, and keep its record."""
    with tempfile.TemporaryDirectory() as runs:
        folder = grid.run(Experiment(load_config(CONFIG, setting.overrides(seeds, passes))), Path(runs))
        kept = records / setting.name
        kept.mkdir(parents=True, exist_ok=True)
        for name in ("config.yaml", "environment.json", "summary.json"):
            shutil.copyfile(folder / name, kept / name)
        lines = gzip.compress((folder / "rounds.jsonl").read_bytes(), 9, mtime=0)
        (kept / f"rounds.jsonl{PACKED}").write_bytes(lines)


def read_curves(records: Path) -> Curves:
    """Return the accuracies of all records: prototype methods by the headline rule, Local by its better one."""
    curves: Curves = {}
    for setting in SETTINGS:
        folder = records / setting.name
        if not folder.is_dir():
            continue
        config = load_config(folder / "config.yaml")
        results = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["results"]
        titles = {entry.label: entry.title for entry in config.algorithms}
        comparison = compare(results, titles, config.model.evaluate.rule, config.model.evaluate.statistic)
        for row in comparison.rows:
            better = comparison.baseline if row.algorithm == "local" else None
            found = row.accuracy[comparison.headline_rule(row) if better is None else better[0]]
            assert found is not None
            curves.setdefault((row.title, setting.dropout), {})[setting.share] = found
    return curves


def draw(curves: Curves) -> str:
    """Draw the picture: a line per method, dashed with dropouts, and bars of one standard deviation over seeds."""
    ends = [
        one.mean + sign * (one.deviation or 0.0)
        for curve in curves.values()
        for one in curve.values()
        for sign in (-1, 1)
    ]
    x = Linear(0.0, 1.05, LEFT, RIGHT, marked=SHARES)
    y = Linear(*span(ends, 0.1, 0.0, 1.0), BOTTOM, TOP)
    inks = {title: f"c{index}" for index, title in enumerate(dict.fromkeys(title for title, _ in curves))}
    parts = [
        svg.element("title", _in_words(curves)),
        svg.element("rect", width="100%", height="100%", fill="#ffffff"),
        *frame(x, y, "clients that take part in a round, %", "Accuracy in %, all clients, after training", in_percent),
    ]
    for (title, dropout), curve in curves.items():
        ink = f"{inks[title]} dashed" if dropout else inks[title]
        places = [(x(share), one) for share, one in sorted(curve.items())]
        parts.append(svg.path([(place, y(one.mean)) for place, one in places], f"curve {ink}"))
        for place, one in places:
            ends_of_bar = [(place, y(one.mean + sign * (one.deviation or 0.0))) for sign in (-1, 1)]
            parts.append(svg.path(ends_of_bar, f"curve thin {inks[title]}"))
            parts.append(svg.marker(place, y(one.mean), f"dot {inks[title]}", f"{title}: {one.mean:.1%}", radius=2.5))
    entries = [LegendEntry(title, stroke(f"curve {ink}")) for title, ink in inks.items()]
    lost = [dropout for dropout in dict.fromkeys(dropout for _, dropout in curves) if dropout]
    entries += [LegendEntry(f"{value:.0%} of them drop out", stroke("curve c0 dashed")) for value in lost]
    explained, bottom = legend(entries)
    picture = svg.figure(bottom, [*parts, *explained], "Accuracy against participation")
    return standalone(picture, figure_style()) + "\n"


def _in_words(curves: Curves) -> str:
    said = []
    for (title, dropout), curve in curves.items():
        low, high = min(curve), max(curve)
        lost = f" and {dropout:.0%} dropouts" if dropout else ""
        said.append(f"{title}{lost} {curve[low].mean:.1%} with {low:.0%}, {curve[high].mean:.1%} with {high:.0%}")
    return f"Accuracy against the share of clients that take part in a round: {'; '.join(said)}"


def table(curves: Curves) -> list[str]:
    """Return the curves as a Markdown table, in % with the standard deviation over seeds."""
    shares = sorted({share for curve in curves.values() for share in curve})
    rows = [
        ["algorithm", "dropouts", *(f"{share:.0%} of the clients" for share in shares)],
        ["---"] * (2 + len(shares)),
    ]
    rows += [[title, f"{dropout:.0%}", *_cells(curve, shares)] for (title, dropout), curve in curves.items()]
    return [f"| {' | '.join(row)} |" for row in rows]


def _cells(curve: Mapping[float, Spread], shares: Sequence[float]) -> list[str]:
    found = [curve.get(share) for share in shares]
    return [share_cell(one) for one in found]


def main(arguments: Sequence[str]) -> None:
    """Train all settings unless `--draw` is given, then draw all records."""
    parser = Parser("participation", __doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--passes", type=int, default=PASSES, help="rounds with full participation")
    parser.add_argument("--records", type=Path, default=RECORDS, help="folder of the records")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="file of the picture")
    parser.add_argument("--draw", action="store_true", help="only draw the existing records")
    asked = parser.parse_args(arguments)
    for number, setting in enumerate(() if asked.draw else SETTINGS, 1):
        print(f"[{number}/{len(SETTINGS)}] {setting.name}", flush=True)
        train(setting, asked.seeds, asked.passes, asked.records)
    curves = read_curves(asked.records)
    asked.picture.write_text(draw(curves), encoding="utf-8")
    print("\n".join(table(curves)))
