"""A process whose parent has gone does nothing, even if that happened while it was starting."""

from __future__ import annotations

import os
import subprocess
import sys


def test_a_process_with_another_parent_than_its_own_ends_without_reading() -> None:
    variables = {**os.environ, "TINYPROTO_PARENT": str(os.getppid())}
    command = [sys.executable, "-m", "tinyproto.grid.process"]
    process = subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    output, _ = process.communicate(b"\x01garbage that would be an error", timeout=120)
    assert (process.returncode, output) == (0, b"")
