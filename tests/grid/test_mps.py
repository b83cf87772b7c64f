"""CUDA MPS behind a control program of our own: it starts, refuses, hangs, or is not there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tinyproto.grid import mps

CONTROL = """\
#!/bin/sh
echo "call $* visible=${CUDA_VISIBLE_DEVICES-none}" >> "$FAKE_LOG"
case "$1" in
-d) START ;;
*) while read -r line; do
     echo "said $line" >> "$FAKE_LOG"
     case "$line" in
     start_server*) SERVER ;;
     get_server_list) if [ -e "$CUDA_MPS_PIPE_DIRECTORY/server" ]; then echo 4711; fi ;;
     quit*) QUIT ;;
     esac
   done ;;
esac
"""
GOOD = {
    "START": 'touch "$CUDA_MPS_PIPE_DIRECTORY/daemon"',
    "SERVER": 'touch "$CUDA_MPS_PIPE_DIRECTORY/server"',
    "QUIT": ":",
}


class Machine:
    """A folder on the PATH with a control program that behaves as told, and what it was called with."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.log.touch()
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("FAKE_LOG", str(self.log))
        monkeypatch.setenv("TMPDIR", str(self.temporary))
        monkeypatch.setattr("tempfile.tempdir", None)
        monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
        monkeypatch.setattr(mps, "START_SECONDS", 1.0)
        monkeypatch.setattr(mps, "STOP_SECONDS", 5.0)
        monkeypatch.setattr(mps, "PROBE", "pass")

    def install(self, **behaviour: str) -> None:
        text = CONTROL
        for name, does in {**GOOD, **behaviour}.items():
            text = text.replace(name, does)
        program = self.folder / mps.CONTROL
        program.write_text(text)
        program.chmod(0o755)

    def left_behind(self) -> list[str]:
        return [path.name for path in self.temporary.iterdir()]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_private_daemon_runs_while_it_is_needed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(mps, "PROBE", "import os; assert os.environ['CUDA_VISIBLE_DEVICES'] == '3'")
    machine.install()
    with mps.shared_gpu("cuda") as sharing:
        assert sharing.words == "cells share the GPU through CUDA MPS"
        pipes = Path(sharing.variables["CUDA_MPS_PIPE_DIRECTORY"])
        assert (pipes / "daemon").exists()
        assert (pipes / "server").exists()
        assert "quit" not in machine.log.read_text()
    log = machine.log.read_text()
    assert log.startswith("call -d visible=none\n")  # it has to see all devices
    assert f"said start_server -uid {os.getuid()}" in log
    assert log.count("said quit -t 5") == 1
    assert machine.left_behind() == []


def test_the_daemon_goes_when_the_run_fails(machine: Machine) -> None:
    machine.install()
    with pytest.raises(KeyboardInterrupt), mps.shared_gpu("cuda"):
        raise KeyboardInterrupt
    assert machine.log.read_text().count("said quit") == 1
    assert machine.left_behind() == []


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ({"START": 'echo "An instance is already running"; exit 1'}, "did not start: An instance is already running"),
        ({"START": "exit 3"}, "did not start: status 3"),
        ({"START": "sleep 30"}, "did not start within 1 s"),
        ({"SERVER": ":"}, "did not start its server"),
        ({"SERVER": "sleep 30"}, "did not start its server within 1 s"),
    ],
)
def test_where_it_does_not_start_cells_share_by_time_slices(
    machine: Machine, behaviour: dict[str, str], words: str
) -> None:
    machine.install(**behaviour)
    with mps.shared_gpu("cuda") as sharing:
        assert sharing.words == f"cells share the GPU by time slices, because CUDA MPS {words}"
        assert sharing.variables == {}
        assert machine.left_behind() == []  # nothing waits for the end of the run
    assert "said quit -t 5" in machine.log.read_text()


@pytest.mark.parametrize(
    ("probe", "words"),
    [
        ("raise SystemExit('CUDA error: MPS client failed to connect')", ": CUDA error: MPS client failed to connect"),
        ("import time; time.sleep(30)", " within 1 s"),
    ],
)
def test_a_daemon_through_which_no_process_reaches_the_gpu_is_not_used(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, probe: str, words: str
) -> None:
    monkeypatch.setattr(mps, "PROBE", probe)
    monkeypatch.setattr(mps, "PROBE_SECONDS", 1.0)
    machine.install()
    with mps.shared_gpu("cuda") as sharing:
        assert sharing.words.endswith(f"because CUDA MPS does not let a process reach the GPU{words}")


def test_without_the_program_there_is_no_mps(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(machine.folder))
    with mps.shared_gpu("cuda") as sharing:
        assert "MPS is not installed (nvidia-cuda-mps-control" in sharing.words
    assert machine.left_behind() == []


def test_a_program_that_cannot_be_run_is_no_mps(machine: Machine) -> None:
    machine.install()
    (machine.folder / mps.CONTROL).write_text("#!/no/such/interpreter\n")
    with mps.shared_gpu("cuda") as sharing:
        assert sharing.words.endswith("because CUDA MPS did not start: No such file or directory")


def test_a_daemon_that_hangs_at_its_end_is_left_behind(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps, "STOP_SECONDS", 0.5)
    machine.install(QUIT="sleep 30")
    start = time.monotonic()
    with mps.shared_gpu("cuda"):
        pass
    assert time.monotonic() - start < 10
    assert machine.left_behind() == []


def test_a_daemon_of_the_user_s_is_used_as_it_is(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.install()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/theirs")
    with mps.shared_gpu("cuda") as sharing:
        assert sharing.variables == {}
        assert "that CUDA_MPS_PIPE_DIRECTORY names" in sharing.words
    assert machine.log.read_text() == ""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_daemon_goes_even_where_the_run_is_killed(machine: Machine, number: signal.Signals) -> None:
    machine.install()
    code = (
        "import time\nfrom tinyproto.grid import mps\nmps.PROBE = 'pass'\n"
        "with mps.shared_gpu('cuda') as sharing:\n    print(sharing.words, flush=True)\n    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "cells share the GPU through CUDA MPS\n"
    process.send_signal(number)
    process.wait(timeout=10)
    process.stdout.close()
    deadline = time.monotonic() + 10
    while machine.left_behind() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert machine.left_behind() == []
    assert "said quit -t 5" in machine.log.read_text()
