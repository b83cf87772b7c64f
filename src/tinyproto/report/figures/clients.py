"""Figures of the clients: the accuracy each one reaches, and the classes each one holds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tinyproto.report import heatmap, svg
from tinyproto.report.figures import Figure
from tinyproto.report.studies import Series, Setting, Study
from tinyproto.report.words import class_labels, percent


def accuracy_per_client(study: Study, slug: str) -> Figure | None:
    """Draw the last evaluation by each method's headline rule; return None if no client has test samples."""
    found = [(series, _accuracies(setting, series, study)) for setting, series in study.series]
    known = [(series, values) for series, values in found if not np.isnan(values).all()]
    if not known:
        return None
    table = np.stack([values for _, values in known])
    present = ~np.isnan(table)
    lowest = float(np.nanmin(table))
    drawing = heatmap.Matrix(
        values=np.where(present, table, 0.0).astype(np.float32),
        present=present,
        row_names=[series.title for series, _ in known],
        column_names=[str(client) for client in range(table.shape[1])],
        column_title="client",
        low=max(0.0, min(0.9, np.floor(10 * lowest - 0.5) / 10)),
        high=1.0,
        number=lambda value: f"{100 * value:.0f}",
    )
    return Figure(
        slug=slug,
        title="Accuracy per client",
        caption=(
            "In %, at the last evaluation, by the rule each method is read by, mean over seeds. A stronger blue is "
            "better; grey clients have no test samples."
        ),
        alternative=" ".join(_describe(series, values) for series, values in known),
        svg=svg.figure(drawing.height, heatmap.draw(drawing), "Accuracy of each method at each client"),
        columns=("method", "client", "accuracy"),
        rows=[
            [series.title, client, None if np.isnan(value) else value]
            for series, values in known
            for client, value in enumerate(values.tolist())
        ],
    )


def _accuracies(setting: Setting, series: Series, study: Study) -> NDArray[np.float64]:
    """Return (M,) means over seeds, NaN for a client without test samples or without an evaluation."""
    rule = setting.headline_rule(series)
    clients = study.runs[0].results[0]["num_clients"]
    seeds: list[NDArray[np.float64]] = []
    for cell in series.cells:
        accuracies = np.full(clients, np.nan)
        last = cell.rounds[-1]["clients"]
        for client, samples, correct in zip(last["id"], last["test_samples"], last["correct"][rule], strict=True):
            if samples:
                accuracies[client] = (correct or 0) / samples
        seeds.append(accuracies)
    table = np.stack(seeds)
    known = ~np.isnan(table)
    mean: NDArray[np.float64] = np.where(known, table, 0.0).sum(0) / np.where(known.any(0), known.sum(0), np.nan)
    return mean


def _describe(series: Series, values: NDArray[np.float64]) -> str:
    known = values[~np.isnan(values)]
    worst = int(np.nanargmin(values))
    return (
        f"{series.title}: {percent(float(known.min()))} (client {worst}) to {percent(float(known.max()))}, "
        f"median {percent(float(np.median(known)))}."
    )


def who_holds_what(study: Study, slug: str) -> Figure | None:
    """Draw the samples of each class at each client; return None if no run of the study recorded them."""
    federation = next((run.federation for run in study.runs if run.federation is not None), None)
    if federation is None:
        return None
    counts = np.array(federation["counts"], dtype=np.float32).T  # (K, M)
    classes, clients = counts.shape
    names = study.runs[0].results[0].get("class_names")
    labels = class_labels(names, classes)
    drawing = heatmap.Matrix(
        values=np.sqrt(counts),  # small counts stay visible beside large ones
        present=np.ones_like(counts, dtype=bool),
        row_names=labels,
        column_names=[str(client) for client in range(clients)],
        column_title="client",
        low=0.0,
        high=float(np.sqrt(counts.max())),
        number=lambda root: f"{root * root:.0f}" if root else "",
        title="class",
    )
    held, sizes = (counts > 0).sum(0), counts.sum(0)
    return Figure(
        slug=slug,
        title="Who holds what",
        caption="Samples of each class at each client, train and test together; a stronger blue is more.",
        alternative=(
            f"Matrix of {classes} classes by {clients} clients. A client holds {held.min()} to {held.max()} classes "
            f"({held.mean():.1f} on average) and {sizes.min():.0f} to {sizes.max():.0f} samples."
        ),
        svg=svg.figure(drawing.height, heatmap.draw(drawing), "Samples of each class at each client"),
        columns=("client", "class", "samples", *(["class_name"] if names else [])),
        rows=[
            [client, class_, int(counts[class_, client]), *([labels[class_]] if names else [])]
            for client in range(clients)
            for class_ in range(classes)
        ],
    )
