"""What a Flower message of ours holds: one ConfigRecord of this name, with a frame as bytes, both ways."""

from __future__ import annotations

RECORD = "tinyproto"
NOTICE = "refused-"
"""How the values of a notice begin where one travels beside a frame; a client that knows none passes over them."""

Values = dict[str, int | float | str | bytes]
"""What such a record may hold."""
