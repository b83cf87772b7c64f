"""Images are decoded once; an invalid cache is written again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support_data import write_picture
from tinyproto.data import load
from tinyproto.data.dataset import Dataset
from tinyproto.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, shade in (("cats", 10), ("dogs", 90)):
        for index in range(3):
            write_picture(tmp_path / "pets" / name / f"{index}.png", shade + index)
    return tmp_path / "pets"


class Watch:
    """Progress that remembers."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.last = (0, 0)

    def __call__(self, what: str, done: int, total: int) -> None:
        self.said = [*self.said, what] if what not in self.said else self.said
        self.last = (done, total)


def loaded(folder: Path, cache: Path | None = None) -> tuple[Dataset, list[str]]:
    watch = Watch()
    images = load("image_folder", folder, cache=cache, progress=watch)
    assert not watch.said or watch.last == (len(images), len(images))
    return images, watch.said


def cache_of(folder: Path) -> Path:
    return folder / ".tinyproto-cache" / "image_folder-as_stored.pixels"


def test_a_second_load_decodes_nothing_and_gives_the_same(folder: Path) -> None:
    first, said = loaded(folder)
    assert said == [f"decoding 6 images of {folder.name}"]
    again, said = loaded(folder)
    assert said == []
    assert again.inputs.equal(first.inputs)
    assert again.labels.equal(first.labels)
    assert sorted(path.name for path in cache_of(folder).parent.iterdir()) == [
        "image_folder-as_stored.json", "image_folder-as_stored.pixels",
    ]  # fmt: skip


def test_nothing_can_write_through_to_the_cache(folder: Path) -> None:
    loaded(folder)[0].inputs[:] = 0
    assert loaded(folder)[1] == []
    loaded(folder)[0].inputs[:] = 0
    assert int(loaded(folder)[0].inputs.max()) > 0


def truncate(cache: Path) -> None:
    cache.write_bytes(cache.read_bytes()[:-5])


def flip(cache: Path) -> None:
    content = bytearray(cache.read_bytes())
    content[-3] ^= 1
    cache.write_bytes(content)


def remove(cache: Path) -> None:
    cache.unlink()


def spoil_note(cache: Path) -> None:
    cache.with_suffix(".json").write_text("{")


@pytest.mark.parametrize(
    ("harm", "word"),
    [
        (truncate, "damaged"),
        (flip, "damaged"),
        (remove, "damaged"),
        (spoil_note, "damaged"),
    ],
)
def test_a_cache_of_no_use_is_made_anew_with_a_word(folder: Path, harm: Callable[[Path], None], word: str) -> None:
    good = loaded(folder)[0].inputs.clone()
    harm(cache_of(folder))
    again, said = loaded(folder)
    assert said == [f"decoding 6 images of {folder.name} again: the cache is {word}"]
    assert again.inputs.equal(good)
    assert loaded(folder)[1] == []


def test_a_changed_an_added_and_a_removed_image_are_noticed(folder: Path) -> None:
    loaded(folder)
    word = "again: the cache is of other images"
    write_picture(folder / "cats" / "1.png", 200)
    images, said = loaded(folder)
    assert said == [f"decoding 6 images of {folder.name} {word}"]
    assert int(images.inputs[1, 0, 3, 3]) == 200
    write_picture(folder / "cats" / "7.png", 200)
    assert loaded(folder)[1] == [f"decoding 7 images of {folder.name} {word}"]
    (folder / "cats" / "7.png").unlink()
    assert loaded(folder)[1] == [f"decoding 6 images of {folder.name} {word}"]


def test_a_cache_of_a_later_format_is_made_anew(folder: Path) -> None:
    loaded(folder)
    note = cache_of(folder).with_suffix(".json")
    note.write_text(json.dumps({**json.loads(note.read_text()), "format": 3}))
    assert loaded(folder)[1] == [f"decoding 6 images of {folder.name} again: the cache is of other images"]


def test_the_user_may_say_where_the_cache_is(folder: Path, tmp_path: Path) -> None:
    loaded(folder, tmp_path / "fast" / "disk")
    assert not (folder / ".tinyproto-cache").exists()
    assert [path.suffix for path in sorted((tmp_path / "fast" / "disk").iterdir())] == [".json", ".pixels"]
    assert loaded(folder, tmp_path / "fast" / "disk")[1] == []


def test_a_folder_that_cannot_be_written_has_its_cache_with_the_user_s(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / ".tinyproto-cache").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert len(loaded(folder)[1]) == 1
    assert len(list((tmp_path / "home" / "tinyproto").glob("pets-*.pixels"))) == 1
    assert loaded(folder)[1] == []


def test_where_nothing_can_be_written_the_remedy_is_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        DataError, match=r"cannot write the 1152 bytes of decoded images .* set data\.cache to a folder"
    ):
        load("image_folder", folder, cache=tmp_path / "file")


def test_a_full_disk_is_told_before_anything_is_decoded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DataError, match="No space left on device"):
        load("image_folder", folder, cache=folder.parent / "cache")
    assert list((folder.parent / "cache").iterdir()) == []


def test_a_load_that_is_killed_leaves_no_cache_that_counts(folder: Path) -> None:
    killed = """
import os, sys
import tinyproto.data.decode as decode, tinyproto.data as data
decode._decode = lambda *_: os._exit(9)
data.load("image_folder", sys.argv[1])
"""
    assert subprocess.run([sys.executable, "-c", killed, str(folder)], check=False).returncode == 9
    images, said = loaded(folder)
    assert said == [f"decoding 6 images of {folder.name}"]
    assert int(images.inputs[0, 0, 3, 3]) == 10
