"""Whether the extra `flower` is there, and how it gets there."""

from __future__ import annotations

import importlib.util
import os

from tinyproto.errors import FederationError


def require_flower() -> None:
    """An error, in words, where `serve` and `join` cannot work."""
    if os.name != "posix":
        raise FederationError("serve and join need Linux or macOS")
    if importlib.util.find_spec("flwr") is None:
        raise not_installed("serve and join need Flower")


def not_installed(lack: str) -> FederationError:
    """What is missing, and where it comes from: the clone, since the name on the public index is another's."""
    return FederationError(
        f"{lack}; in an environment of its own, in the folder of the clone: "
        'pip install --constraint constraints.txt --editable ".[flower]"'
    )
