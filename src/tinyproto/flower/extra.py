"""Whether the extra `flower` is there."""

from __future__ import annotations

import importlib.util
import os

from tinyproto.errors import FederationError


def require_flower() -> None:
    """An error, in words, where `serve` and `join` cannot work."""
    if os.name != "posix":
        raise FederationError("serve and join need Linux or macOS")
    if importlib.util.find_spec("flwr") is None:
        raise FederationError("serve and join need Flower; install it with: pip install 'tinyproto[flower]'")
