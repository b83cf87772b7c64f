"""Labels as people have them, integers or names, to class numbers 0 … K−1 and class names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinyproto.errors import DataError
from tinyproto.imports import unknown

Labels = NDArray[np.int64]
Names = tuple[str, ...]


def class_numbers(labels: Any, class_names: Sequence[str] | None = None) -> tuple[Labels, Names | None]:
    """Return the class number of each sample, and the names of the classes if they have any.

    Integers are class numbers already. Text is the name of a class; without `class_names` the names are sorted.
    """
    values = np.asarray(labels)
    names = None if class_names is None else tuple(map(str, class_names))
    if names is not None and len(set(names)) < len(names):
        raise DataError("class_names has a name twice")
    if values.dtype.kind in "iub":
        return values.astype(np.int64), names
    if values.dtype.kind == "O" and all(isinstance(value, str) for value in values.flat):
        values = values.astype(np.str_)
    if values.dtype.kind not in "UT":
        raise DataError(f"labels have to be integers 0 … K−1 or names, not {values.dtype}")
    found = sorted(map(str, np.unique(values)))
    names = tuple(found) if names is None else names
    for name in found:
        if name not in names:
            raise DataError(f"labels: {unknown('class', name, names)}")
    numbers = {name: number for number, name in enumerate(names)}
    return np.array([numbers[str(value)] for value in values.flat], dtype=np.int64).reshape(values.shape), names


def class_numbers_of_texts(
    texts: Sequence[str], where: str, class_names: Sequence[str] | None = None
) -> tuple[Labels, Names | None]:
    """Return the same for the label column of a table, where integers such as 1, 2, 3 are names, too.

    Without `class_names`, classes are sorted, integers by value; integers that are exactly 0 … K−1 need no names.
    """
    if class_names is not None:
        return class_numbers(np.array(texts, dtype=np.str_), class_names)
    distinct = set(texts)
    try:
        order = sorted(distinct, key=int)
    except ValueError:
        for text in distinct:
            if _is_fraction(text):
                raise DataError(
                    f"{where} has {text!r}: classes are integers or names; for a number to predict there is no method"
                ) from None
        order = sorted(distinct)
    numbers = {text: number for number, text in enumerate(order)}
    names = None if order == [str(number) for number in range(len(order))] else tuple(order)
    return np.array([numbers[text] for text in texts], dtype=np.int64), names


def _is_fraction(text: str) -> bool:
    try:
        return not float(text).is_integer()
    except ValueError:
        return False
