"""What the README quotes is what the committed record says, and what it shows runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tinyproto.config import load_config
from tinyproto.report.compare import Row, Spread, compare
from tinyproto.report.words import points, size

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results" / "quickstart"


def quoted(row: Row, gain: float | None) -> str:
    def cell(spread: Spread | None) -> str:
        return "–" if spread is None else f"{100 * spread.mean:.1f} ± {100 * spread.deviation:.1f}"

    accuracies = " | ".join(cell(row.accuracy[rule]) for rule in ("head", "global", "local"))
    over = "–" if gain is None else points(gain)
    return f"| {row.title} | {accuracies} | {over} | {size(row.payload_bytes)} |"


def test_the_readme_s_table_is_the_record_s() -> None:
    config = load_config(RECORD / "config.yaml")
    titles = {entry.label: entry.title for entry in config.algorithms}
    results = json.loads((RECORD / "summary.json").read_text())["results"]
    comparison = compare(results, titles, config.model.evaluate.rule, config.model.evaluate.statistic)
    readme = (ROOT / "README.md").read_text()
    for row in comparison.rows:
        assert quoted(row, comparison.over_local(row, comparison.rule)) in readme


def test_the_record_is_of_the_quickstart_config_and_says_where_it_was_made() -> None:
    seeds = "seeds=[0,1,2]"
    assert (
        load_config(RECORD / "config.yaml").resolved()
        == load_config(ROOT / "configs/quickstart.yaml", [seeds]).resolved()
    )
    environment = json.loads((RECORD / "environment.json").read_text())
    assert len(environment["commit"]) == 40
    assert environment["packages"]["torch"]
    cells = {(line["algorithm"], line["seed"]) for line in map(json.loads, (RECORD / "rounds.jsonl").open())}
    assert len(cells) == 15


def test_the_readme_s_python_runs_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    exec(snippet, {"__name__": "readme"})
    printed = capsys.readouterr().out
    assert "'up': " in printed
    assert "Linear(in_features=64, out_features=30" in printed
