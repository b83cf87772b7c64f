"""Downloading from a local server that cuts off, corrupts, redirects and refuses."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from support_cli import in_process
from support_data import write_cifar10_binary
from tinyproto import fetch as fetching
from tinyproto.data import load
from tinyproto.errors import DataError
from tinyproto.fetch import Archive, fetch, unpack

FILLER = os.urandom(300_000)  # so that an archive is long enough to be cut


class Server(ThreadingHTTPServer):
    """Serves one file, with the mishaps it is told to have, one per request."""

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = content
        self.mishaps: list[str] = []
        self.requests: list[tuple[str, str | None]] = []

    def address(self, file: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{file}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *_: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.requests.append((self.path, asked))
        mishap = self.server.mishaps.pop(0) if self.server.mishaps else "none"
        if mishap.isdecimal():
            self.send_error(int(mishap))
        elif mishap == "redirect":
            self.send_response(302)
            self.send_header("Location", self.server.address("elsewhere/" + self.path.strip("/")))
            self.end_headers()
        elif mishap == "hang up":
            self.close_connection = True
        else:
            self._send(mishap, asked)

    def _send(self, mishap: str, asked: str | None) -> None:
        content = self.server.content
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and mishap != "whole file" else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            said = start + 1 if mishap == "wrong part" else start
            self.send_header("Content-Range", f"bytes {said}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        body = bytearray(content[start:])
        if mishap == "corrupt":
            body[len(body) // 2] ^= 1
        self.wfile.write(body[: len(body) // 2] if mishap == "cut off" else body)
        self.close_connection = True


def packed(folder: Path, name: str, root: str) -> bytes:
    """The folder as an archive of that name's kind, its files under `root/`."""
    out = io.BytesIO()
    if name.endswith(".zip"):
        with zipfile.ZipFile(out, "w") as zipped:
            for path in sorted(folder.iterdir()):
                zipped.write(path, f"{root}/{path.name}")
    else:
        with tarfile.open(fileobj=out, mode="w:gz") as tar:
            tar.add(folder, root)
    return out.getvalue()


class Offer:
    """A small CIFAR-10 on the local server, and what it takes to fetch it."""

    def __init__(self, tmp_path: Path, file: str = "cifar-10-binary.tar.gz") -> None:
        write_cifar10_binary(tmp_path / "made")
        (tmp_path / "made" / "readme.html").write_bytes(FILLER)
        content = packed(tmp_path / "made", file, "cifar-10-batches-bin")
        self.server = Server(content)
        self.archive = Archive(self.server.address(file), hashlib.md5(content).hexdigest(), "cifar-10-batches-bin")
        self.root = tmp_path / "data"
        self.waited: list[float] = []
        self.seen: list[tuple[str, int, int]] = []

    def fetch(self, url: str | None = None) -> Path:
        return fetch("cifar10", self.root, url=url, progress=lambda *seen: self.seen.append(seen))

    def refused(self, url: str | None = None) -> str:
        with pytest.raises(DataError) as error:
            self.fetch(url)
        return str(error.value)

    def assert_there(self) -> None:
        assert len(load("cifar10", self.root)) == 24
        assert [path.name for path in self.root.iterdir()] == ["cifar-10-batches-bin"]


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Offer]:
    monkeypatch.setenv("no_proxy", "*")
    made = Offer(tmp_path)
    monkeypatch.setattr(fetching, "time", SimpleNamespace(sleep=made.waited.append))
    monkeypatch.setitem(fetching.ARCHIVES, "cifar10", [made.archive])
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def test_a_dataset_is_downloaded_checked_and_unpacked_ready_to_load(offer: Offer) -> None:
    assert offer.fetch() == offer.root / "cifar-10-batches-bin"
    offer.assert_there()
    total = len(offer.server.content)
    downloads = [(done, all_) for what, done, all_ in offer.seen if what.startswith("downloading")]
    assert downloads[-1] == (total, total)
    assert [done for done, _ in downloads] == sorted(done for done, _ in downloads)
    assert any(what.startswith("unpacking") and done == all_ for what, done, all_ in offer.seen)


def test_what_is_there_already_is_left_alone(offer: Offer) -> None:
    offer.fetch()
    before = len(offer.server.requests)
    assert offer.fetch() == offer.root / "cifar-10-batches-bin"
    assert len(offer.server.requests) == before


def test_a_download_that_is_cut_off_goes_on_where_it_stopped(offer: Offer) -> None:
    offer.server.mishaps = ["cut off", "cut off", "hang up", "none"]
    offer.fetch()
    offer.assert_there()
    total = len(offer.server.content)
    starts = [None, f"bytes={total // 2}-", *[f"bytes={total // 2 + (total - total // 2) // 2}-"] * 2]
    assert [asked for _, asked in offer.server.requests] == starts
    assert offer.waited == [1, 1, 2]  # a gain starts the waiting anew


def test_a_second_call_goes_on_with_what_the_first_one_got(offer: Offer) -> None:
    offer.server.mishaps = ["cut off", *["hang up"] * 4]
    assert "is kept" in offer.refused()
    partial = offer.root / "cifar-10-binary.tar.gz.partial"
    half = len(offer.server.content) // 2
    assert partial.stat().st_size == half
    offer.fetch()
    assert offer.server.requests[-1][1] == f"bytes={half}-"
    offer.assert_there()


def test_a_server_that_does_not_do_parts_sends_it_all_again(offer: Offer) -> None:
    offer.server.mishaps = ["cut off", "whole file"]
    offer.fetch()
    offer.assert_there()


def test_a_server_that_sends_another_part_is_not_believed(offer: Offer) -> None:
    offer.server.mishaps = ["cut off", "wrong part", "none"]
    offer.fetch()
    offer.assert_there()


def test_a_corrupt_download_is_started_anew_once(offer: Offer) -> None:
    offer.server.mishaps = ["corrupt", "none"]
    offer.fetch()
    offer.assert_there()
    assert [asked for _, asked in offer.server.requests] == [None, None]


def test_a_download_that_stays_corrupt_is_refused_with_both_checksums_and_removed(offer: Offer) -> None:
    offer.server.mishaps = ["corrupt", "corrupt"]
    sentence = offer.refused()
    assert f"not {offer.archive.md5}" in sentence
    assert "--url" in sentence
    assert list(offer.root.iterdir()) == []


def test_the_beginning_of_another_file_does_not_spoil_the_download(offer: Offer) -> None:
    offer.root.mkdir()
    (offer.root / "cifar-10-binary.tar.gz.partial").write_bytes(b"old" * 1000)
    offer.fetch()
    offer.assert_there()


@pytest.mark.parametrize("good", [True, False])
def test_a_partial_file_that_is_already_whole_is_checked(offer: Offer, good: bool) -> None:
    offer.root.mkdir()
    content = offer.server.content if good else offer.server.content + b"more"
    (offer.root / "cifar-10-binary.tar.gz.partial").write_bytes(content)
    offer.fetch()
    offer.assert_there()
    assert len(offer.server.requests) == (1 if good else 2)


def test_redirects_are_followed_when_resuming_too(offer: Offer) -> None:
    offer.server.mishaps = ["redirect", "cut off", "redirect", "none"]
    offer.fetch()
    offer.assert_there()
    paths = [path for path, _ in offer.server.requests]
    assert paths[1] == paths[3] == "/elsewhere/cifar-10-binary.tar.gz"
    assert offer.server.requests[3][1] is not None


def test_a_busy_server_is_asked_again(offer: Offer) -> None:
    offer.server.mishaps = ["503", "429", "none"]
    offer.fetch()
    offer.assert_there()
    assert offer.waited == [1, 2]


@pytest.mark.parametrize("status", ["404", "403", "410"])
def test_a_file_that_is_gone_is_not_asked_for_again_and_says_what_to_do(offer: Offer, status: str) -> None:
    offer.server.mishaps = [status]
    sentence = offer.refused()
    assert f"answers {status}" in sentence
    assert f"put it at {offer.root / 'cifar-10-binary.tar.gz'} and run this again" in sentence
    assert len(offer.server.requests) == 1
    assert offer.waited == []


def test_offline_says_which_file_from_where_and_where_to_put_it(offer: Offer) -> None:
    nowhere = "http://127.0.0.1:9/cifar-10-binary.tar.gz"
    sentence = offer.refused(nowhere)
    assert f"cannot download {nowhere}" in sentence
    assert f"download {offer.archive.url} elsewhere (md5 {offer.archive.md5})" in sentence
    assert f"put it at {offer.root / 'cifar-10-binary.tar.gz'} and run this again" in sentence
    assert offer.waited == [1, 2, 4, 8]


def test_without_name_resolution_there_is_no_waiting(offer: Offer) -> None:
    assert "cannot download" in offer.refused("http://no-such-host.invalid/cifar-10-binary.tar.gz")
    assert offer.waited == []


def test_an_archive_put_there_by_hand_needs_no_network_and_is_kept(offer: Offer) -> None:
    offer.root.mkdir()
    by_hand = offer.root / "cifar-10-binary.tar.gz"
    by_hand.write_bytes(offer.server.content)
    offer.fetch()
    assert offer.server.requests == []
    assert by_hand.exists()
    assert len(load("cifar10", offer.root)) == 24


def test_a_damaged_archive_put_there_by_hand_is_named(offer: Offer) -> None:
    offer.root.mkdir()
    (offer.root / "cifar-10-binary.tar.gz").write_bytes(offer.server.content[:-1])
    assert f"{offer.root / 'cifar-10-binary.tar.gz'} is damaged" in offer.refused()


def test_another_address_is_held_to_the_published_checksum(offer: Offer) -> None:
    offer.fetch(offer.server.address("mirror/cifar-10-binary.tar.gz"))
    assert offer.server.requests[0][0] == "/mirror/cifar-10-binary.tar.gz"
    offer.assert_there()


@pytest.mark.parametrize("url", ["ftp://host/file", "file:///etc/passwd", "no address"])
def test_only_http_addresses_are_taken(offer: Offer, url: str) -> None:
    assert "has to begin with http" in offer.refused(url)


def test_a_root_that_cannot_be_written_is_named(offer: Offer) -> None:
    offer.root.write_text("a file")
    assert f"cannot write to {offer.root}: it is a file; name a folder" in offer.refused()


def test_a_full_disk_is_not_taken_for_a_bad_connection(offer: Offer) -> None:
    (offer.root / "cifar-10-binary.tar.gz.partial").mkdir(parents=True)
    assert f"cannot write to {offer.root}" in offer.refused()
    assert offer.waited == []


def test_a_dataset_that_nobody_publishes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="unknown dataset 'digits'; known: cifar10, cifar100, tiny_imagenet"):
        fetch("digits", tmp_path)


def test_another_address_may_have_the_python_archive() -> None:
    offered = fetching.ARCHIVES["cifar100"]
    chosen = fetching._chosen(offered, "https://mirror.example/files/cifar-100-python.tar.gz")
    assert chosen.folder == "cifar-100-python"
    assert fetching._chosen(offered, "https://mirror.example/get?id=7").folder == "cifar-100-binary"


# Unpacking


def test_a_zip_is_unpacked_as_well(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "a.txt").write_text("inside")
    (tmp_path / "x.zip").write_bytes(packed(tmp_path / "made", "x.zip", "folder"))
    assert (unpack(tmp_path / "x.zip", "folder", tmp_path, lambda *_: None) / "a.txt").read_text() == "inside"


def hostile_tar(path: Path, name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> None:
    with tarfile.open(path, "w:gz") as tar:
        for entry, entry_kind in (("folder/good.txt", tarfile.REGTYPE), (name, kind)):
            info = tarfile.TarInfo(entry)
            info.type, info.linkname, info.size = entry_kind, target, 4 if entry_kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(b"evil"))


def hostile_zip(path: Path, name: str) -> None:
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr("folder/good.txt", "good")
        zipped.writestr(name, "evil")


@pytest.mark.parametrize("name", ["../evil.txt", "folder/../../evil.txt", "/tmp/evil.txt", "folder/..\\evil.txt"])
@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str, suffix: str) -> None:
    archive, root = tmp_path / f"x{suffix}", tmp_path / "root"
    root.mkdir()
    hostile_zip(archive, name) if suffix == ".zip" else hostile_tar(archive, name)
    with contextlib.suppress(DataError):
        unpack(archive, "folder", root, lambda *_: None)
    assert {path.name for path in root.iterdir()} <= {"folder"}
    assert all(root / "folder" in path.parents for path in tmp_path.rglob("*evil.txt"))
    assert not Path("/tmp/evil.txt").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    hostile_tar(tmp_path / "x.tar.gz", "folder/link", kind, "/etc/passwd")
    with pytest.raises(DataError):
        unpack(tmp_path / "x.tar.gz", "folder", tmp_path, lambda *_: None)
    assert [path.name for path in tmp_path.iterdir()] == ["x.tar.gz"]


@pytest.mark.parametrize(("file", "folder"), [("x.tar.gz", "another"), ("x.zip", "folder"), ("y.tar.gz", "folder")])
def test_an_archive_without_the_folder_or_of_rubbish_is_refused(tmp_path: Path, file: str, folder: str) -> None:
    hostile_tar(tmp_path / "x.tar.gz", "folder/b")
    (tmp_path / "x.zip").write_bytes(b"PK rubbish")
    (tmp_path / "y.tar.gz").write_bytes((tmp_path / "x.tar.gz").read_bytes()[:60])
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(DataError, match=rf"{file} .*remove it and fetch it again"):
        unpack(tmp_path / file, folder, tmp_path, lambda *_: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


# The command


def test_the_command_says_what_it_does_and_how_a_config_reads_it(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_process(monkeypatch, tmp_path, "data", "fetch", "cifar10") == 0
    captured = capsys.readouterr()
    assert f"downloading {offer.archive.url}" in captured.out
    assert re.search("^data/cifar-10-batches-bin .*data: {name: cifar10, root: data}", captured.out, re.MULTILINE)
    assert captured.err == ""
    assert len(load("cifar10", tmp_path / "data")) == 24


def test_the_command_ends_in_one_sentence_where_it_fails(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offer.server.mishaps = ["404"]
    url = offer.server.address("cifar-100-binary.tar.gz")
    assert in_process(monkeypatch, tmp_path, "data", "fetch", "cifar100", "--root", "here", "--url", url) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "put it at here/cifar-100-binary.tar.gz" in lines[0]


def test_an_interruption_keeps_what_arrived(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tinyproto.cli.progress.LoadingBar.__call__", interrupted)
    url = offer.server.address("cifar-100-binary.tar.gz")
    assert in_process(monkeypatch, tmp_path, "data", "fetch", "cifar100", "--url", url) == 130
    assert re.search("interrupted; .*same command again", capsys.readouterr().err)
    assert (tmp_path / "data" / "cifar-100-binary.tar.gz.partial").stat().st_size > 0
