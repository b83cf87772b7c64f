"""The adapter to Flower: its two apps, its processes, and the gate and relay between them and the network.

Only this package imports flwr; the extra `flower` installs it. A second transport is a package beside this one.
"""

from __future__ import annotations

import importlib.util
import os

from tinyproto.errors import FederationError

RECORD = "tinyproto"
"""Name of the one record in each Flower message."""


def require_flower() -> None:
    """Raise FederationError if `serve` and `join` cannot work here."""
    if os.name != "posix":
        raise FederationError("serve and join need Linux or macOS")
    if importlib.util.find_spec("flwr") is None:
        raise not_installed("serve and join need Flower")


def not_installed(missing: str) -> FederationError:
    """Return the error for a missing part of Flower, with the command that installs it."""
    return FederationError(
        f"{missing}; in an environment of its own, in the folder of the clone: "
        'pip install --constraint constraints.txt --editable ".[flower]"'
    )
