"""The paper's claim on dead units, counted as its binary maps do: an entry above zero is drawn, any other is blank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from paper.experiments import DATASETS
from paper.page.convergence import Recorded
from paper.page.outcomes import Records
from paper.page.verdicts import Claim, Fact
from paper.printed import DATASET_NAMES, Address
from paper.records_reader import DRAWN
from tinyproto.report.runs import PrototypeValues
from tinyproto.report.studies import Cell
from tinyproto.report.words import counted, percent

LEAST, MOST = 0.4, 0.6
"""The shares that count as about half."""


def dead_units_claim(records: Records) -> Claim:
    """Judge by the local prototypes of FedProto, which only run folders and a few records keep."""
    facts = []
    for dataset, cell, values in _of_fedproto(records):
        drawn = DRAWN[dataset].classes if dataset in DRAWN else ()
        classes = [class_ for class_ in drawn if class_ < values.local.shape[1]]
        facts.append(_fact(_place(dataset, cell), values, cell.run.config["models"], classes))
    needs = (
        [] if facts else ["the run folder of a FedProto cell with its prototypes.safetensors, which most records omit"]
    )
    return Claim("About half of the units are dead for a class", facts, needs)


def recorded_prototypes(records: Records) -> list[Recorded]:
    """Return the local prototypes of FedProto that records keep."""
    return [
        Recorded(
            _place(dataset, cell),
            torch.from_numpy(values.local[values.local_present]),
            torch.from_numpy(values.local_present.nonzero()[1]),
            values.local.shape[1],
        )
        for dataset, cell, values in _of_fedproto(records)
    ]


def _of_fedproto(records: Records) -> Iterator[tuple[str, Cell, PrototypeValues]]:
    """Yield dataset, run and prototypes of FedProto's runs that keep some."""
    for dataset in DATASETS:
        outcome = records.find(Address(f"table1_{dataset}", "fedproto"))
        for cell in outcome.found if outcome is not None else []:
            values = cell.run.prototypes(cell.result["label"], cell.result["seed"])
            if values is not None and values.local_present.any():
                yield dataset, cell, values


def _place(dataset: str, cell: Cell) -> str:
    return f"{DATASET_NAMES[dataset]}, seed {cell.result['seed']}"


def _fact(place: str, values: PrototypeValues, networks: Sequence[Any], classes: Sequence[int]) -> Fact:
    kept = values.local[values.local_present]
    share = float((kept <= 0).mean())
    many, zero = counted(len(kept), "local prototype"), percent(float((kept == 0).mean()))
    words = (
        f"{place}: {percent(share)} of the entries of FedProto's {many} kept are not above zero, {zero} are zero. "
        f"By network: {', '.join(_by_network(values, networks))}"
    )
    maps = [f"{percent(_blank(values, class_))} of the map of class {class_}" for class_ in classes]
    if maps:
        words += f". With a blank row for each client without the class, {' and '.join(maps)} is blank"
    return Fact(LEAST <= share <= MOST, -abs(share - 0.5), words)


def _by_network(values: PrototypeValues, networks: Sequence[Any]) -> Iterator[str]:
    """Yield the share of each of N networks, whose last activations differ; client i has network i mod N."""
    for index, network in enumerate(networks):
        clients = slice(index, None, len(networks))
        kept = values.local[clients][values.local_present[clients]]
        if len(kept):
            yield f"{network} {percent(float((kept <= 0).mean()))} of {len(kept)}"


def _blank(values: PrototypeValues, class_: int) -> float:
    """Return the blank share of a class's binary map over all clients."""
    drawn = (values.local[:, class_] > 0) & values.local_present[:, class_, None]  # (M, d)
    return 1.0 - float(np.mean(drawn))
