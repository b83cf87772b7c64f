"""A run folder is one process's at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from tinyproto.errors import RunFolderError
from tinyproto.tracking.lock import alone_in, locked


def test_a_second_one_is_told_and_takes_nothing_away(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "mine"
    with alone_in(folder):
        for _ in range(2):
            with pytest.raises(RunFolderError, match=f"another process is running in {folder}; "), alone_in(folder):
                pass
        with alone_in(folder.with_name("other")):
            pass
        assert not folder.exists()
    with alone_in(folder):
        pass
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_link_to_a_folder_is_that_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link").symlink_to(tmp_path / "mine")
    with (
        alone_in(tmp_path / "mine"),
        pytest.raises(RunFolderError, match=r"another process is running in .*link"),
        alone_in(tmp_path / "elsewhere" / "link"),
    ):
        pass


HOLDER = """\
import subprocess, sys
from pathlib import Path
from tinyproto.tracking.lock import alone_in
with alone_in(Path(sys.argv[1])):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=sys.stdin, close_fds=False)
    print(child.pid, flush=True)
    child.wait()
"""


def test_a_killed_process_lets_go_although_one_that_it_started_lives_on(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder.stdin, holder.stdout:
        child = int(holder.stdout.readline())
        with pytest.raises(RunFolderError, match="another process is running"), alone_in(folder):
            pass
        holder.kill()
        holder.wait()
        os.kill(child, 0)  # it is there
        assert (tmp_path / ".mine.lock").is_file()
        with alone_in(folder):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_its_holder_removed_meanwhile_is_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, flock, times = tmp_path / "lock", fcntl.flock, []

    def late(opened: IO[str], how: int) -> None:
        times.append(1)
        if len(times) == 1:  # between open and flock the holder goes
            file.unlink()
        if len(times) == 2:  # and another comes
            file.unlink()
            file.touch()
        flock(opened, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with locked(file, RunFolderError("taken")):
        assert len(times) == 3
        with pytest.raises(RunFolderError, match="taken"), locked(file, RunFolderError("taken")):
            pass
    assert not file.exists()


def test_where_there_are_no_locks_nobody_is_kept_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = errno.ENOLCK

    def unknown(_opened: IO[str], _how: int) -> None:
        raise OSError(said, os.strerror(said))

    monkeypatch.setattr(fcntl, "flock", unknown)
    with alone_in(tmp_path / "mine"), alone_in(tmp_path / "mine"):
        pass
    said = errno.EIO
    with pytest.raises(RunFolderError, match=r"cannot write the run folder .*mine: "), alone_in(tmp_path / "mine"):
        pass


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    below = tmp_path / "file" / "mine"
    with pytest.raises(RunFolderError, match=f"cannot write the run folder {below}: "), alone_in(below):
        pass
    taken = RunFolderError("taken")
    with pytest.raises(RunFolderError, match=f"cannot write {below}: Not a directory"), locked(below, taken):
        pass
