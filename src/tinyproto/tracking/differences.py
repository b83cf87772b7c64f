"""Nested values as flat ones, to say in which keys two configs differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The dotted keys in which the configs are not all alike, with the value in each; None where there is none."""
    flats = [dict(_flat(config)) for config in configs]
    columns = {key: [values.get(key) for values in flats] for values in flats for key in values}
    return {key: values for key, values in columns.items() if any(value != values[0] for value in values)}


def _flat(values: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every single value with its dotted key."""
    if isinstance(values, Mapping) and values:
        for key, value in values.items():
            yield from _flat(value, f"{place}.{key}" if place else str(key))
    elif isinstance(values, list) and values:
        for index, value in enumerate(values):
            yield from _flat(value, f"{place}[{index}]")
    else:
        yield place, values
