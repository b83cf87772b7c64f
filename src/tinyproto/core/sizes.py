"""Amounts of bytes as text."""

from __future__ import annotations

import re

from tinyproto.errors import ConfigError

_UNITS = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


def bytes_of(text: str) -> int:
    """Return the bytes that a text such as `2GB`, `500 MB` or `1.5GiB` says."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)", text.strip())
    units = {name.lower(): factor for name, factor in _UNITS.items()}
    if found is None or found[2].lower() not in units or float(found[1]) == 0:
        raise ConfigError(f"{text!r} is no amount of bytes; write a number above 0 with a unit, such as 500MB or 2kB")
    return max(1, int(float(found[1]) * units[found[2].lower()]))
