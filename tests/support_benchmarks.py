"""Running `python -m benchmarks` in this process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import main


def benchmark(monkeypatch: pytest.MonkeyPatch, cwd: Path, *arguments: str) -> int:
    """Run the command in a folder; return its exit status."""
    monkeypatch.chdir(cwd)
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return 0 if ended.value.code is None else int(ended.value.code)
