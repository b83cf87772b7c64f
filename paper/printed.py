"""Every accuracy and communication cost that the paper prints, with the cell that measures it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from paper.experiments import CPS_DIM, CPS_DIMS, DATASETS

DATASET_NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tiny_imagenet": "Tiny-ImageNet"}
SETTINGS = {"clients50": "50 clients", "alpha001": "α=0.01", "alpha05": "α=0.5"}

# Accuracy in %, its standard deviation, and millions of parameters a round: on CIFAR-10, CIFAR-100 and Tiny-ImageNet.
TABLE1 = """
lg_fedavg     86.91 0.14  0.20   38.54 0.21  2.00   22.30 0.37  4.00
fml           86.59 0.15 34.32   37.83 0.03 36.12   22.03 0.12 38.12
fedkd         87.10 0.02 30.66   39.74 0.42 32.26   23.08 0.17 34.05
feddistill    86.93 0.12 <0.01   39.52 0.33  0.29   22.98 0.15  1.17
fedproto      82.90 0.46  0.15   29.97 0.18  1.46   13.30 0.06  2.93
fedtgp        86.32 0.49  0.15   36.92 0.16  1.46   19.44 0.12  2.93
tinyproto_fp  84.52 0.06  0.02   31.82 0.24  0.15   16.01 0.21  0.29
tinyproto_ft  88.47 0.21  0.02   45.94 0.40  0.15   27.29 0.21  0.29
"""

# Accuracy in % and its standard deviation on CIFAR-100: with 50 clients, with α=0.01, with α=0.5.
TABLE3 = """
lg_fedavg     37.47 0.19  66.75 0.36  20.87 0.18
fml           37.61 0.12  64.29 0.19  20.66 0.20
fedkd         38.39 0.15  66.08 0.24  20.94 0.21
feddistill    40.70 0.40  60.11 0.21  22.28 0.12
fedproto      29.36 0.57  58.98 0.31  12.88 0.36
fedtgp        36.69 0.15  64.02 0.34  16.62 0.28
tinyproto_fp  32.43 0.31  61.52 0.54  17.01 0.45
tinyproto_ft  43.51 0.35  72.74 0.59  24.35 0.11
"""

# As Table 1; CPS dimension (- for none), then whether prototypes are scaled. FedProto and FedTGP have neither.
APPENDIX = """
fedproto       -  none   82.90 0.46 0.15   29.97 0.18 1.46   13.30 0.06 2.93
tinyproto_fp  50  none   84.18 0.71 0.02   29.27 0.28 0.15   10.02 0.24 0.29
tinyproto_fp 150  none   84.24 0.23 0.05   32.43 0.52 0.44   14.25 0.47 0.88
tinyproto_fp 250  none   84.30 0.16 0.08   33.00 0.28 0.73   15.70 0.47 1.46
tinyproto_fp 350  none   84.07 0.50 0.11   32.86 0.34 1.02   16.45 0.30 2.05
tinyproto_fp 450  none   83.32 0.18 0.14   31.58 0.42 1.31   15.48 0.24 2.64
tinyproto_fp   -  count  83.83 0.22 0.15   34.94 0.17 1.46   19.00 0.03 2.93
tinyproto_fp  50  count  84.52 0.06 0.02   31.82 0.24 0.15   16.01 0.21 0.29
tinyproto_fp 150  count  85.14 0.17 0.05   34.87 0.29 0.44   18.34 0.25 0.88
tinyproto_fp 250  count  85.07 0.14 0.08   35.61 0.10 0.73   18.74 0.20 1.46
tinyproto_fp 350  count  85.43 0.24 0.11   35.25 0.31 1.02   18.83 0.10 2.05
tinyproto_fp 450  count  85.26 0.17 0.14   35.13 0.16 1.31   19.07 0.23 2.64
fedtgp         -  none   86.32 0.49 0.15   36.92 0.16 1.46   19.44 0.12 2.93
tinyproto_ft  50  none   85.91 0.23 0.02   35.26 0.25 0.15   18.51 0.11 0.29
tinyproto_ft 150  none   86.05 0.20 0.05   36.05 0.06 0.44   18.68 0.19 0.88
tinyproto_ft 250  none   86.03 0.16 0.08   35.74 0.69 0.73   18.74 0.58 1.46
tinyproto_ft 350  none   86.27 0.09 0.11   35.57 0.28 1.02   18.83 0.15 2.05
tinyproto_ft 450  none   85.93 0.49 0.14   35.07 0.25 1.31   16.45 0.02 2.64
tinyproto_ft   -  count  88.40 0.11 0.15   46.10 0.24 1.46   26.82 0.12 2.93
tinyproto_ft  50  count  88.47 0.21 0.02   45.94 0.40 0.15   27.29 0.21 0.29
tinyproto_ft 150  count  88.56 0.06 0.05   46.34 0.05 0.44   27.41 0.10 0.88
tinyproto_ft 250  count  88.35 0.27 0.08   46.36 0.25 0.73   25.90 0.09 1.46
tinyproto_ft 350  count  88.55 0.06 0.11   46.53 0.17 1.02   25.59 0.09 2.05
tinyproto_ft 450  count  88.21 0.21 0.14   45.59 0.09 1.31   25.54 0.04 2.64
"""


@dataclass(frozen=True)
class Address:
    """The config and label of a cell."""

    stem: str
    label: str


@dataclass(frozen=True)
class Printed:
    """One number of the paper with its deviation, as fractions."""

    address: Address
    accuracy: float
    deviation: float
    communication: str | None  # millions of parameters a round, as printed; Table 3 has none


@dataclass(frozen=True)
class PrintedTable:
    """One table of the paper, or its part for one dataset or setting."""

    target: str
    part: str  # the dataset or the setting
    title: str
    stem: str
    rows: tuple[Printed, ...]


def printed_tables() -> list[PrintedTable]:
    """Return Table 1 and the appendix by dataset, and Table 3 by setting."""
    return [
        *(_table1(column, dataset) for column, dataset in enumerate(DATASETS)),
        *(_table3(column, setting) for column, setting in enumerate(SETTINGS)),
        *(_appendix(column, dataset) for column, dataset in enumerate(DATASETS)),
    ]


@cache
def printed_numbers() -> Mapping[Address, Printed]:
    """Return every printed number by its cell; some stand in two tables."""
    return {row.address: row for table in printed_tables() for row in table.rows}


def ablation(dataset: str, name: str, cps_dim: int | None, scaled: bool) -> Address:
    """Return the cell of TinyProto with these CPS dimensions, which may be in Table 1."""
    if cps_dim is None and not scaled:
        return Address(f"table1_{dataset}", {"tinyproto_fp": "fedproto", "tinyproto_ft": "fedtgp"}[name])
    if cps_dim == CPS_DIM and scaled:
        return Address(f"table1_{dataset}", name)
    told = "null" if cps_dim is None else str(cps_dim)
    return Address(f"appendix_{dataset}", f"{name}(cps_dim={told},scaling={'count' if scaled else 'none'})")


def _table1(column: int, dataset: str) -> PrintedTable:
    stem = f"table1_{dataset}"
    rows = tuple(_printed(Address(stem, label), values, column, 3) for label, *values in _lines(TABLE1))
    return PrintedTable("table1", dataset, f"Table 1: {DATASET_NAMES[dataset]}", stem, rows)


def _table3(column: int, setting: str) -> PrintedTable:
    stem = f"table3_{setting}"
    rows = tuple(_printed(Address(stem, label), values, column, 2) for label, *values in _lines(TABLE3))
    return PrintedTable("table3", setting, f"Table 3: CIFAR-100, {SETTINGS[setting]}", stem, rows)


def _appendix(column: int, dataset: str) -> PrintedTable:
    rows = []
    for name, width, scaling, *values in _lines(APPENDIX):
        method = {"fedproto": "tinyproto_fp", "fedtgp": "tinyproto_ft"}.get(name, name)
        cps_dim = None if width == "-" else int(width)
        assert cps_dim is None or cps_dim in CPS_DIMS
        rows.append(_printed(ablation(dataset, method, cps_dim, scaling == "count"), values, column, 3))
    title = f"Appendix: CPS and scaling on {DATASET_NAMES[dataset]}"
    return PrintedTable("appendix", dataset, title, f"appendix_{dataset}", tuple(rows))


def _printed(address: Address, values: list[str], column: int, width: int) -> Printed:
    accuracy, deviation, *communication = values[column * width : (column + 1) * width]
    return Printed(address, _fraction(accuracy), _fraction(deviation), communication[0] if communication else None)


def _fraction(percent: str) -> float:
    return round(float(percent) / 100, 4)


def _lines(text: str) -> Iterator[list[str]]:
    yield from (line.split() for line in text.strip().splitlines())
