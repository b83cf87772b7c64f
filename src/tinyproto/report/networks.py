"""Accuracy by network: which of the networks that a federation mixes a method serves, and which not."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tinyproto.report.columns import share_cell
from tinyproto.report.compare import Spread, on_a_network, spread
from tinyproto.report.studies import Cell, Series, Setting
from tinyproto.report.words import points
from tinyproto.tracking.summary import read_at


@dataclass(frozen=True)
class NetworkRow:
    """One algorithm, network by network, read by its headline rule where its headline number is read."""

    title: str
    label: str
    rule: str
    accuracy: Mapping[str, Spread | None]  # by network
    over_local: Mapping[str, float | None]  # over the same network where clients train alone

    def words(self) -> list[str]:
        """The name, then a cell for each network."""
        return [self.title, *(_words(self.accuracy[name], self.over_local[name]) for name in self.accuracy)]

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        accuracy = {name: None if found is None else asdict(found) for name, found in self.accuracy.items()}
        return {"label": self.label, "rule": self.rule, "accuracy": accuracy, "over_local": dict(self.over_local)}


def network_rows(setting: Setting) -> list[NetworkRow]:
    """A row for each algorithm; none where all clients have one network, or each brought its own over a network."""
    models = list(map(str, setting.runs[0].config["models"]))
    if len(set(models)) < 2 or any(on_a_network(cell.result) for series in setting.series for cell in series.cells):
        return []
    statistic = setting.comparison.statistic
    found = {one.key: _by_network(one, setting.headline_rule(one), statistic, models) for one in setting.series}
    local = _alone(setting, models)
    return [
        NetworkRow(
            one.name, one.cells[0].result["label"], setting.headline_rule(one), found[one.key],
            {name: _gain(own, local.get(name), one) for name, own in found[one.key].items()},
        )
        for one in setting.series
    ]  # fmt: skip


def _alone(setting: Setting, models: Sequence[str]) -> Mapping[str, Spread | None]:
    """What Local reaches by its better rule; nothing where it was not run."""
    local = next((one for one in setting.series if one.algorithm == "local"), None)
    baseline = setting.comparison.baseline
    if local is None or baseline is None:
        return {}
    return _by_network(local, baseline[0], setting.comparison.statistic, models)


def _by_network(series: Series, rule: str, statistic: str, models: Sequence[str]) -> dict[str, Spread | None]:
    return {
        name: spread([_accuracy(cell, rule, statistic, models, name) for cell in series.cells])
        for name in dict.fromkeys(models)
    }


def _accuracy(cell: Cell, rule: str, statistic: str, models: Sequence[str], name: str) -> float | None:
    """Correct of all test samples of the clients with this network; client i has network i modulo their number."""
    curve = [(record["round"] - 1, record["accuracy"][rule]) for record in cell.rounds]
    found = []
    for index in read_at(curve)[statistic]:
        asked = cell.rounds[index]["clients"]
        own = [
            (samples, correct)
            for client, samples, correct in zip(
                asked["id"], asked["test_samples"], asked["correct"][rule], strict=True
            )
            if samples and correct is not None and models[client % len(models)] == name
        ]  # fmt: skip
        if own:
            found.append(sum(correct for _, correct in own) / sum(samples for samples, _ in own))
    return statistics.fmean(found) if found else None


def _gain(own: Spread | None, local: Spread | None, series: Series) -> float | None:
    return None if own is None or local is None or series.algorithm == "local" else own.mean - local.mean


def _words(found: Spread | None, gain: float | None) -> str:
    return share_cell(found) + ("" if gain is None else f" ({points(gain)})")
