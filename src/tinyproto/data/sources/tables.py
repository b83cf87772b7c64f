"""Tables: a .csv file, or a .parquet file (extra `tables`), with a header, numbers, and one column of labels.

Columns are found by name, so their order does not matter. Labels are integers or names of classes.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinyproto.data.dataset import Dataset, SharedArray
from tinyproto.data.inputs import assembled
from tinyproto.data.labels import class_numbers_of_texts
from tinyproto.data.sources.base import Request, only_first_classes
from tinyproto.errors import DataError, one_line
from tinyproto.imports import nearest_name

PARQUET = (".parquet", ".pq")
SUFFIXES = (".csv", ".tsv", ".txt", *PARQUET)
_DELIMITERS = ",;\t"

Columns = Mapping[str, Sequence[Any]]
"""The cells of each column, from first to last row; text in a .csv file."""


def load(request: Request) -> Dataset:
    """Load a table; a text column or a missing value is an error unless `columns` leaves it out."""
    if request.root is None:
        raise DataError("data.root has to name the .csv or .parquet file")
    table = read_table(request.root)
    return only_first_classes(table_dataset(table, request), request.first_classes)


def table_dataset(table: Columns, request: Request, class_names: Sequence[str] | None = None) -> Dataset:
    """Return the dataset of a table that was read; the labels are among `class_names` if these are known."""
    file = Path(str(request.root))
    try:
        label = _texts(_column(table, request.label, "set data.label to the column that holds the classes"))
        labels, names = class_numbers_of_texts(label, f"column {request.label!r}", class_names)
        if request.columns is None:
            features = [name for name in table if name != request.label]
        else:
            features = list(request.columns)
        if not features or request.label in features:
            raise DataError(f"data.columns has to name the features, without the label {request.label!r}")
        kind = "float32" if request.vocabulary is None else "int64"
        shared = SharedArray.blank((len(labels), len(features)), kind)
        fill(shared.array, table, features, kind)
        return assembled(
            file.stem, shared.tensor, labels, names, columns=features, vocabulary=request.vocabulary, shared=shared
        )
    except DataError as error:
        raise DataError(f"{file}: {error}") from None


def fill(target: NDArray[Any], table: Columns, features: Sequence[str], kind: str) -> None:
    """Write the named columns to `target`, (rows, features), as float32 or as int64 for token ids."""
    for place, name in enumerate(features):
        cells = _column(table, name, "the file needs every column that data.columns or a trained network names")
        target[:, place] = _numbers(name, cells, kind)


def read_rows(file: Path, features: Sequence[str], kind: str) -> NDArray[Any]:
    """Return the named columns of a file, (rows, features); it needs no labels."""
    table = read_table(file)
    rows = np.empty((len(next(iter(table.values()))), len(features)), kind)
    try:
        fill(rows, table, features, kind)
    except DataError as error:
        raise DataError(f"{file}: {error}") from None
    return rows


def read_table(file: Path) -> Columns:
    """Read the columns of a file by name; raise DataError if it is no table."""
    if not file.is_file():
        raise DataError(f"{file} does not exist; it has to be a .csv or .parquet file")
    try:
        table = _read_parquet(file) if file.suffix.lower() in PARQUET else _read_csv(file)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} cannot be read as a table ({one_line(error)}); save it as UTF-8 .csv") from error
    if not any(len(cells) for cells in table.values()):
        raise DataError(f"{file} has no rows below its header")
    return table


def _read_csv(file: Path) -> Columns:
    with file.open(encoding="utf-8-sig", newline="") as stream:
        header = stream.readline()
        delimiter = max(_DELIMITERS, key=header.count)
        stream.seek(0)
        rows = csv.reader(stream, delimiter=delimiter)
        names = [name.strip() for name in next(rows, [])]
        _check_names(file, names)
        cells: list[list[str]] = []
        for row in rows:
            if len(row) != len(names) and row:
                raise DataError(
                    f"{file}, line {rows.line_num}: {len(row)} cells, the header has {len(names)}; fix the line"
                )
            if row:
                cells.append(row)
    return {name: [row[place].strip() for row in cells] for place, name in enumerate(names)}


def _check_names(file: Path, names: Sequence[str]) -> None:
    if not names or all(_is_number(name) for name in names):
        raise DataError(f"{file}: the first line has to name the columns")
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"{file} has two columns named {name!r}; rename one of them")


def _read_parquet(file: Path) -> Columns:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DataError(
            f'{file}: .parquet files need pyarrow: pip install "tinyproto-fl[tables]", or save it as .csv'
        ) from None
    try:
        table = pyarrow.parquet.read_table(file)
    except pyarrow.ArrowException as error:
        raise DataError(f"{file} is damaged or not a .parquet file ({one_line(error)})") from error
    _check_names(file, table.column_names)
    return {name: table.column(name).to_pylist() for name in table.column_names}


def _column(table: Columns, name: str, remedy: str) -> Sequence[Any]:
    if name not in table:
        hint = nearest_name(name, table)
        raise DataError(
            f"there is no column {name!r}{f'{hint} It' if hint else '; it'} has {', '.join(map(repr, table))}; {remedy}"
        )
    return table[name]


def _texts(cells: Sequence[Any]) -> list[str]:
    """Return the labels as text; raise DataError if one is missing."""
    for row, cell in enumerate(cells):
        if cell is None or str(cell).strip() == "":
            raise DataError(f"row {row + 1} has no label; fill it in or remove the row")
    return [str(int(cell)) if isinstance(cell, bool) else str(cell) for cell in cells]


def _numbers(name: str, cells: Sequence[Any], kind: str) -> NDArray[Any]:
    """Return a column as float32, or as int64 for token ids; raise DataError at the first cell that is no number."""
    if not name:
        raise DataError("a column has no name; if it is an index, leave it out: data.columns lists the features")
    for row, cell in enumerate(cells):
        if cell is None or cell == "" or not _is_number(cell):
            missing = cell is None or str(cell).strip() == ""
            raise DataError(
                f"column {name!r}, row {row + 1}: {'missing value' if missing else repr(cell) + ' is not a number'}; "
                + ("fill it in, remove the row, " if missing else "encode text as numbers, ")
                + "or list the other columns in data.columns"
            )
    with np.errstate(over="ignore"):
        values = np.array(cells, dtype=np.float64)
        stored = values.astype(kind) if kind == "float32" else values
    if not np.isfinite(stored).all():
        row = int(np.argmin(np.isfinite(stored)))
        raise DataError(
            f"column {name!r}, row {row + 1}: {cells[row]!r} is not a finite float32; fill it in or remove the row"
        )
    if kind == "int64" and ((values < 0).any() or (values % 1 != 0).any()):
        raise DataError(f"column {name!r} has values that are not token ids 0, 1, …; remove data.vocabulary")
    return stored


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True
