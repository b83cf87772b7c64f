"""A real federation: the algorithms, engine and frames of a simulation, between processes and machines.

`terms` is what both ends agree on, `coordinator` and `channel` the server's end, `member` a client's. They know no
transport: a package beside them, `flower` or `mqtt`, implements `channel.Transport` and hands messages to
`member.respond`.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Literal

from tinyproto.errors import FederationError

_PACKAGES = {"flower": ("Flower", "flwr"), "mqtt": ("paho-mqtt", "paho")}


def require_transport(name: Literal["flower", "mqtt"] | None) -> None:
    """Raise FederationError if `serve` and `join` cannot work here; None if any transport will do, as for keys."""
    if os.name != "posix":
        raise FederationError("serve and join need Linux or macOS")
    if name is None:
        if importlib.util.find_spec("cryptography") is None:
            raise not_installed("serve needs the package cryptography", "mqtt")
        return
    title, package = _PACKAGES[name]
    if importlib.util.find_spec(package) is None:
        how = " with --transport mqtt" if name == "mqtt" else ""
        other = "; or use --transport mqtt" if name == "flower" and importlib.util.find_spec("paho") else ""
        raise not_installed(f"serve and join{how} need {title}", name, other)


def not_installed(missing: str, extra: str, otherwise: str = "") -> FederationError:
    """Return the error for a missing package, with the command that installs it."""
    where = "in an environment of its own, " if extra == "flower" else ""
    return FederationError(
        f"{missing}; {where}in the folder of the clone: "
        f'pip install --constraint constraints.txt --editable ".[{extra}]"{otherwise}'
    )
