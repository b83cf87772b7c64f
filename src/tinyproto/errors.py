"""The exceptions a user can cause; each says what is wrong, where, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class TinyProtoError(Exception):
    """An error outside the program; its message explains it, so no traceback is shown."""


def one_line(error: BaseException) -> str:
    """Return the type and message of another library's error on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


class Interrupted(TinyProtoError):  # noqa: N818
    """A signal stopped the program; the message says how to resume, `status` is the exit status, 130 after Ctrl-C."""

    def __init__(self, words: str, status: int = 130) -> None:
        super().__init__(words)
        self.status = status


class ConfigError(TinyProtoError):
    """A config, an override or an argument is invalid."""


class ModelError(TinyProtoError):
    """A network does not fit the federation's images, prototype width or classes."""


class DataError(TinyProtoError):
    """A dataset or a partition cannot be made from what was given."""


class WireError(TinyProtoError):
    """A frame is malformed, of another federation, or carries values that no honest client sends."""


class DivergedError(WireError):
    """A frame carries values that training gives when it diverges: NaN, infinity, or norms beyond the limit."""


class LeftOutError(TinyProtoError):
    """Too many clients of a simulated round were left out; the round would fail again, so a resume does not help."""


class CheckpointError(TinyProtoError):
    """A checkpoint is damaged, or of another release or run."""


class DamagedError(TinyProtoError):
    """A file differs from what was written, or cannot be read."""


class ClientStateError(TinyProtoError):
    """A client's state cannot be written to disk, or read back."""


class WorkerError(TinyProtoError):
    """A worker process failed or died."""


class CellsFailed(TinyProtoError):  # noqa: N818
    """Cells of a grid failed; the others completed."""

    def __init__(self, words: str, failed: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(words)
        self.failed = failed  # label, seed and reason of each


class RunFolderError(TinyProtoError):
    """A run folder cannot be created, or holds another run."""


class InUseError(RunFolderError):
    """Another process is running in a run folder."""


class FederationError(TinyProtoError):
    """A federation over the network cannot start or continue."""
