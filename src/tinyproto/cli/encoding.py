"""Standard output that cannot show everything, or nothing any more."""

from __future__ import annotations

import codecs
import errno
import os
import sys

PLAIN = "tinyproto-plain"
"""The error handler of an encoding without some of our signs: the nearest one that it has, or ?."""

_NEAREST = {
    "−": "-",
    "–": "-",
    "…": ".",
    "•": "*",
    "×": "x",
    "Δ": "d",
    "→": ">",
    "“": '"',
    "”": '"',
    "’": "'",
    "\u00a0": " ",
}


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_NEAREST.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

codecs.register_error(PLAIN, _plain)


def is_output_broken(error: OSError) -> bool:
    """Whether it says that nothing more can be written to standard output; then nobody tries that again."""
    if error.filename is not None or error.errno not in _FULL:
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return True
