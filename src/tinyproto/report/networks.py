"""Accuracy by network, for federations whose clients have different networks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinyproto.report.compare import Spread, is_real, share_cell, spread
from tinyproto.report.studies import Cell, Series, Setting
from tinyproto.report.words import points
from tinyproto.tracking.summary import read_at


@dataclass(frozen=True)
class NetworkRow:
    """The accuracy of one algorithm for each network, by its headline rule and statistic."""

    title: str
    accuracy: Mapping[str, Spread | None]  # by network
    over_local: Mapping[str, float | None]  # over the same network trained by Local

    def words(self) -> list[str]:
        """Return the title and a cell for each network."""
        gains = {name: "" if gain is None else f" ({points(gain)})" for name, gain in self.over_local.items()}
        return [self.title, *(share_cell(found) + gains[name] for name, found in self.accuracy.items())]


def network_rows(setting: Setting) -> list[NetworkRow]:
    """Return a row per algorithm; none if all clients have one network or the federation is a real one."""
    models = list(map(str, setting.runs[0].config["models"]))
    if len(set(models)) < 2 or any(is_real(cell.result) for series in setting.series for cell in series.cells):
        return []
    statistic, baseline = setting.comparison.statistic, setting.comparison.baseline
    local: Mapping[str, Spread | None] = {}
    for series in setting.series:
        if series.algorithm == "local" and baseline is not None and not local:
            local = _by_network(series, baseline[0], statistic, models)
    rows = []
    for series in setting.series:
        found = _by_network(series, setting.headline_rule(series), statistic, models)
        gains = {name: _gain(one, local.get(name), series) for name, one in found.items()}
        rows.append(NetworkRow(series.name, found, gains))
    return rows


def _by_network(series: Series, rule: str, statistic: str, models: Sequence[str]) -> dict[str, Spread | None]:
    return {
        name: spread([_accuracy(cell, rule, statistic, models, name) for cell in series.cells])
        for name in dict.fromkeys(models)
    }


def _accuracy(cell: Cell, rule: str, statistic: str, models: Sequence[str], name: str) -> float | None:
    """Return the accuracy over the samples of the clients with a network; client i has network i mod their number."""
    curve = [(record["round"] - 1, record["accuracy"][rule]) for record in cell.rounds]
    found = []
    for index in read_at(curve)[statistic]:
        clients = cell.rounds[index]["clients"]
        counts = [
            (samples, correct)
            for client, samples, correct in zip(
                clients["id"], clients["test_samples"], clients["correct"][rule], strict=True
            )
            if samples and correct is not None and models[client % len(models)] == name
        ]  # fmt: skip
        if counts:
            found.append(sum(correct for _, correct in counts) / sum(samples for samples, _ in counts))
    return statistics.fmean(found) if found else None


def _gain(found: Spread | None, local: Spread | None, series: Series) -> float | None:
    return None if found is None or local is None or series.algorithm == "local" else found.mean - local.mean
