"""A file of lines is followed while another process writes it."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tinyproto.federation.journal import Follower, Journal


def test_each_event_comes_once_and_only_when_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "progress.jsonl"
    follower = Follower(file)
    assert follower.new() == []
    file.write_text('{"event": "a"}\n{"event": "b')
    assert follower.new() == [{"event": "a"}]
    assert follower.new() == []
    with file.open("a") as stream:
        stream.write('"}\n\n{"event": "c"}\n')
    assert follower.new() == [{"event": "b"}, {"event": "c"}]


def test_what_was_there_before_is_of_the_past(tmp_path: Path) -> None:
    file = tmp_path / "progress.jsonl"
    file.write_text('{"event": "finished"}\n')
    follower = Follower(file)
    with file.open("a") as stream:
        stream.write('{"event": "started"}\n')
    assert follower.new() == [{"event": "started"}]
    assert follower.past() == [{"event": "finished"}]


@pytest.mark.parametrize("line", ['{"event": "ha', '{"event": "ha{"event": "b"}', "[1]", "7", '{"event": 7}', "\udcff"])
def test_a_line_that_is_no_event_is_passed_over(line: str, tmp_path: Path) -> None:
    file = tmp_path / "progress.jsonl"
    follower = Follower(file)
    file.write_bytes(f'{{"event": "a"}}\n{line}\n{{"event": "c"}}\n'.encode(errors="surrogateescape"))
    assert follower.new() == [{"event": "a"}, {"event": "c"}]


FULL = """\
import resource, sys
from pathlib import Path
from tinyproto.federation.journal import Journal

journal = Journal(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
journal.tell("lost", reason="x" * 500)
"""


def test_without_room_an_event_is_lost_whole_and_the_next_one_is_not(tmp_path: Path) -> None:
    file = tmp_path / "progress.jsonl"
    follower = Follower(file)
    Journal(file).tell("first")
    before = file.read_bytes()
    subprocess.run([sys.executable, "-c", FULL, str(file), str(len(before) + 40)], check=True)
    assert file.read_bytes() == before
    subprocess.run([sys.executable, "-c", FULL, str(file), str(len(before))], check=True)
    assert file.read_bytes() == before
    Journal(file).tell("next")
    assert [event["event"] for event in follower.new()] == ["first", "next"]
    subprocess.run([sys.executable, "-c", FULL, str(file), str(resource.RLIM_INFINITY)], check=True)
    assert [event["event"] for event in follower.new()] == ["lost"]


def test_an_event_after_half_a_line_is_on_a_line_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "progress.jsonl"
    file.write_text('{"event": "cut o')
    follower = Follower(file)
    Journal(file).tell("next")
    assert [event["event"] for event in follower.new()] == ["next"]
    assert json.loads(file.read_text().splitlines()[-1])["event"] == "next"


def test_a_journal_that_cannot_be_written_at_all_stops_nothing(tmp_path: Path) -> None:
    Journal(tmp_path / "missing" / "progress.jsonl").tell("lost")
    assert not list(tmp_path.iterdir())
