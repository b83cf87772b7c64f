from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import tinyproto
from tinyproto.tracking.environment import source_commit


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed package of two modules, which stands for ours."""
    package = tmp_path / "src" / "tinyproto"
    (package / "core").mkdir(parents=True)
    for name in ("__init__.py", "core/cps.py"):
        (package / name).write_text("")
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    for arguments in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "Begin")):
        subprocess.run(("git", *arguments), cwd=tmp_path, check=True)
    monkeypatch.setattr(tinyproto, "__file__", str(package / "__init__.py"))
    return package


def test_the_commit_is_told_and_a_change_anywhere_in_the_package_marked(checkout: Path) -> None:
    commit = source_commit()
    assert commit is not None
    assert len(commit) == 40
    (checkout.parent.parent / "notes.txt").write_text("not of the package")
    assert source_commit() == commit
    (checkout / "core" / "cps.py").write_text("changed = True\n")
    assert source_commit() == f"{commit}-modified"


def test_asking_for_the_commit_writes_nothing_that_a_kill_could_leave_in_the_checkout(checkout: Path) -> None:
    index = checkout.parent.parent / ".git" / "index"
    os.utime(checkout / "core" / "cps.py", (1, 1))  # git would write down the new time, under index.lock
    before = index.stat().st_mtime_ns
    source_commit()
    assert index.stat().st_mtime_ns == before


def test_a_package_outside_a_checkout_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tinyproto, "__file__", str(tmp_path / "__init__.py"))
    assert source_commit() is None
