"""A file of lines is followed while another process writes it."""

from __future__ import annotations

from pathlib import Path

from tinyproto.flower.follower import Follower


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
