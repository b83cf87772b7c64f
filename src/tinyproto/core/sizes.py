"""Amounts of bytes as text."""

from __future__ import annotations

import re


def bytes_of(text: str) -> int:
    """Return the bytes that a text such as `2GB`, `500 MB` or `1.5GiB` says; raise ValueError if it says none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(|[kmgt])(i?)b", text.strip().lower())
    if found is None or float(found[1]) == 0:
        raise ValueError(f"{text!r} is no amount of bytes; write a number above 0 with a unit, such as 500MB or 2kB")
    number, prefix, binary = found.groups()
    return max(1, int(float(number) * (1024 if binary else 1000) ** ("", "k", "m", "g", "t").index(prefix)))
