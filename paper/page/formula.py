"""The paper's Table 2 at widths that were not run, from one that was."""

from __future__ import annotations

from functools import cache

from torch import nn

from paper.page.records import Outcome, paper_cell
from paper.printed import Address
from tinyproto.algorithms import FederationSpec
from tinyproto.config.load import parse_config


def formula_at(cell: Address, known: Outcome) -> float | None:
    """Parameters a round of a cell on the same partition as a known one of its method.

    Table 2 is a product: what the partition makes travel, which the record of the known cell has counted, times what
    the method sends of one class.
    """
    counted, own, wanted = known.row.formula_parameters, _of_one_class(known.paper.address), _of_one_class(cell)
    return None if counted is None or own is None or wanted is None else counted * wanted / own


@cache
def _of_one_class(cell: Address) -> int | None:
    """By the cell's formula, were there one client and one class; None where the method has no formula."""
    paper = paper_cell(cell)
    config = parse_config(paper.paper.values, paper.stem)
    entry = next(entry for entry in config.algorithms if entry.label == paper.label)
    dim = config.model.prototypes.dim
    smallest = nn.Linear(1, dim)  # the head after it is that of every network
    federation = FederationSpec(1, dim, config.model.train.learning_rate, (1,), networks=(smallest,))
    return entry.build(federation).table2_parameters([1])
