"""What a Flower message of ours holds: one ConfigRecord of this name, with a frame as bytes, both ways."""

from __future__ import annotations

RECORD = "tinyproto"

Values = dict[str, int | float | str | bytes]
"""What such a record may hold."""
