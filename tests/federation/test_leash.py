"""A command on a leash ends with whoever holds it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

leash = pytest.importorskip("tinyproto.federation.leash", reason="psutil comes with the extra `flower`")
pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(sys.platform != "linux", reason="what is left running is found in /proc"),
]

FAMILY = """
import signal, subprocess, sys, time
from pathlib import Path
if {stubborn}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
code = "import time; time.sleep(600)"
detached = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
quick = (
    "import subprocess, sys; command = [sys.executable, '-c', 'import time; time.sleep(600)']; "
    "print(subprocess.Popen(command, start_new_session=True, stdout=-3, stderr=-3).pid)"
)
orphan = subprocess.run([sys.executable, "-c", quick], capture_output=True, text=True).stdout.strip()
Path({file!r}).write_text(f"{{detached.pid}} {{orphan}}")
time.sleep(600)
"""


class OnALeash:
    """A command that starts a process in another session, and one that is orphaned at once."""

    def __init__(self, folder: Path, stubborn: bool = False) -> None:
        file = folder / "pids"
        command = [sys.executable, "-c", FAMILY.format(stubborn=stubborn, file=str(file))]
        self.process = subprocess.Popen([sys.executable, "-I", leash.__file__, *command], stdin=subprocess.PIPE)
        give_up = time.monotonic() + 20
        while not (file.exists() and len(file.read_text().split()) == 2):
            assert time.monotonic() < give_up
            time.sleep(0.05)
        self.descendants = [int(number) for number in file.read_text().split()]

    def all_gone(self, seconds: float = 20) -> bool:
        give_up = time.monotonic() + seconds
        while any(runs(number) for number in self.descendants):
            if time.monotonic() > give_up:
                return False
            time.sleep(0.05)
        return True


def runs(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


@pytest.fixture
def held(tmp_path: Path) -> Iterator[OnALeash]:
    found = OnALeash(tmp_path)
    yield found
    for process in (found.process.pid, *found.descendants):
        if runs(process):
            os.kill(process, signal.SIGKILL)


def test_letting_go_ends_the_command_and_all_that_came_of_it(held: OnALeash) -> None:
    assert held.process.stdin is not None
    assert all(runs(process) for process in held.descendants)
    held.process.stdin.close()
    assert held.process.wait(20) == 128 + signal.SIGTERM
    assert held.all_gone()


def test_a_signal_to_the_leash_ends_them_too(held: OnALeash) -> None:
    held.process.send_signal(signal.SIGTERM)
    held.process.wait(20)
    assert held.all_gone()


def test_processes_that_are_stopped_end_as_well(held: OnALeash) -> None:
    for process in held.descendants:
        os.kill(process, signal.SIGSTOP)
    assert held.process.stdin is not None
    held.process.stdin.close()
    held.process.wait(20)
    assert held.all_gone()


def test_a_command_that_hears_nothing_is_killed(tmp_path: Path) -> None:
    held = OnALeash(tmp_path, stubborn=True)
    assert held.process.stdin is not None
    held.process.stdin.close()
    assert held.process.wait(4 * leash.GRACE_SECONDS) == 128 + signal.SIGKILL
    assert held.all_gone()


def test_the_status_of_the_command_is_passed_on() -> None:
    command = [sys.executable, "-I", leash.__file__, sys.executable, "-c", "raise SystemExit(7)"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.wait(20) == 7
