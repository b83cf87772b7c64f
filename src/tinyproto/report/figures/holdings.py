"""Who holds what: samples of each class at each client."""

from __future__ import annotations

import numpy as np

from tinyproto.report.draw import matrix, svg
from tinyproto.report.figures.figure import Figure
from tinyproto.report.studies import Study


def who_holds_what(study: Study, slug: str) -> Figure | None:
    """None where no run of the study recorded it."""
    federation = next((run.federation for run in study.runs if run.federation is not None), None)
    if federation is None:
        return None
    counts = np.array(federation["counts"], dtype=np.float32).T  # (K, M)
    classes, clients = counts.shape
    drawing = matrix.Matrix(
        values=np.sqrt(counts),  # few samples stay visible beside many
        present=np.ones_like(counts, dtype=bool),
        row_names=[str(class_) for class_ in range(classes)],
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
        caption="Samples of each class at each client, train and test together; the stronger the blue, the more.",
        alternative=(
            f"Matrix of {classes} classes by {clients} clients. A client holds {held.min()} to {held.max()} classes "
            f"({held.mean():.1f} on average) and {sizes.min():.0f} to {sizes.max():.0f} samples."
        ),
        svg=svg.figure(drawing.height, matrix.draw(drawing), "Samples of each class at each client"),
        columns=("client", "class", "samples"),
        rows=[[client, class_, int(counts[class_, client])] for client in range(clients) for class_ in range(classes)],
    )
