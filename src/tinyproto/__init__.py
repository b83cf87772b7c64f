"""Federated learning where every client keeps its own network and only tiny class prototypes travel.

`tinyproto.simulate` runs a federation from Python; the command line is `tinyproto --help`. Heavy modules load on use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tinyproto.errors import TinyProtoError

if TYPE_CHECKING:
    from tinyproto import data
    from tinyproto.api import Result, simulate
    from tinyproto.models.split import SplitModel
    from tinyproto.report.frames import read_run
    from tinyproto.trained import TrainedClient, load_client

__version__ = "0.1.0"
__all__ = [
    "Result", "SplitModel", "TinyProtoError", "TrainedClient", "__version__", "data", "load_client", "read_run",
    "simulate",
]  # fmt: skip

_LAZY = {
    "simulate": "tinyproto.api",
    "Result": "tinyproto.api",
    "SplitModel": "tinyproto.models.split",
    "TrainedClient": "tinyproto.trained",
    "load_client": "tinyproto.trained",
    "read_run": "tinyproto.report.frames",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name == "data":
        return importlib.import_module("tinyproto.data")
    raise AttributeError(f"module 'tinyproto' has no attribute {name!r}")
