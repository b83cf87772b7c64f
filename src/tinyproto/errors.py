"""The one exception a user can cause: what is wrong, where, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class TinyProtoError(Exception):
    """Something outside the program is wrong; the message is the whole explanation, so no traceback is shown."""


def one_line(error: BaseException) -> str:
    """Another library's error, named and without its line breaks."""
    return " ".join(f"{type(error).__name__}: {error}".split())


INTERRUPTED = 130
"""The exit status after Ctrl-C."""


class Interrupted(TinyProtoError):  # noqa: N818
    """A signal stopped it: where things stand, and the exit status."""

    def __init__(self, words: str, status: int = INTERRUPTED) -> None:
        super().__init__(words)
        self.status = status


class ConfigError(TinyProtoError):
    """A config, an override or an argument asks for something that cannot be."""


class ModelError(TinyProtoError):
    """A network does not fit the federation's images, prototype width or classes."""


class DataError(TinyProtoError):
    """A dataset or a partition cannot be made from what was given."""


class WireError(TinyProtoError):
    """A frame is malformed, foreign or carries values no client could honestly send."""


class LeftOutError(TinyProtoError):
    """Too many clients of a simulated round were left out; the same round would fail again, so no resume helps."""


class CheckpointError(TinyProtoError):
    """A checkpoint is damaged, foreign, or of another run."""


class DamagedError(TinyProtoError):
    """A file differs from what was written, or cannot be read."""


class ClientStateError(TinyProtoError):
    """A client's state cannot be put on disk, or read back from there."""


class WorkerError(TinyProtoError):
    """A worker process failed or died."""


class CellsFailed(TinyProtoError):  # noqa: N818
    """Cells of a grid could not be finished; the others were played."""

    def __init__(self, words: str, failed: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(words)
        self.failed = failed  # label, seed and reason of each


class RunFolderError(TinyProtoError):
    """A run folder cannot be created, or holds another run."""


class InUseError(RunFolderError):
    """Another process is running in a run folder."""


class FederationError(TinyProtoError):
    """A federation over the network cannot begin or go on."""
