"""Getting datasets from their official addresses: download, check, unpack into the layout that the sources read."""

from __future__ import annotations

import errno
import hashlib
import http.client
import re
import shutil
import socket
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple
from urllib.parse import urlsplit

from tinyproto.data.sources.base import Progress, silent
from tinyproto.errors import DataError
from tinyproto.imports import unknown

WAITS = (1, 2, 4, 8)
"""Seconds before each new try; trying stops when they are used up without a byte gained."""

TIMEOUT = 30
CHUNK = 1 << 16
_WORTH_ANOTHER_TRY = (408, 425, 429, 500, 502, 503, 504)
_NOTHING_LEFT = 416
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EISDIR)


class Unreachable(Exception):  # noqa: N818
    """The address gives nothing (more): a sentence that says which and why."""


class _CutOff(Exception):  # noqa: N818
    """The connection ended before the file did."""


def download(url: str, target: Path, md5: str, progress: Progress, sleep: Callable[[float], None]) -> None:
    """Have the file at `target`; what has arrived so far waits beside it as `.partial`."""
    partial = target.with_name(f"{target.name}.partial")
    for _ in range(2):  # a wrong checksum may come from an old partial file, so one fresh start is worth it
        _complete(url, partial, progress, sleep)
        found = md5_of(partial)
        if found == md5:
            partial.replace(target)
            return
        partial.unlink()
    raise DataError(
        f"{url} gives a file whose md5 is {found}, published is {md5}: it is damaged or another one, and was removed; "
        "try again later or from another address with --url"
    )


def md5_of(path: Path) -> str:
    """A file's checksum."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _complete(url: str, partial: Path, progress: Progress, sleep: Callable[[float], None]) -> None:
    """Connect as often as it takes, as long as it gets on."""
    waits = list(WAITS)
    while True:
        before = _size(partial)
        try:
            return _continue(url, partial, progress)
        except urllib.error.HTTPError as error:
            if error.code == _NOTHING_LEFT:
                return None
            problem: Exception = error
            if error.code not in _WORTH_ANOTHER_TRY:
                raise Unreachable(f"{url} answers {error.code} {error.reason}") from error
        except (OSError, http.client.HTTPException, _CutOff) as error:
            if getattr(error, "errno", None) in _OF_THE_DISK:
                raise
            problem = error
            if isinstance(getattr(error, "reason", None), socket.gaierror):  # no network: waiting does not help
                waits = []
        if _size(partial) > before:
            waits = list(WAITS)
        if not waits:
            raise Unreachable(f"cannot get {url} ({getattr(problem, 'reason', problem)})") from problem
        sleep(waits.pop(0))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _continue(url: str, partial: Path, progress: Progress) -> None:
    """One connection: the rest of the file, or all of it where the server does not do parts."""
    start = _size(partial)
    headers = {"User-Agent": "tinyproto", **({"Range": f"bytes={start}-"} if start else {})}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as response:
        start = _start(response, start)
        length = response.headers.get("Content-Length")
        total = start + int(length) if length is not None else 0
        done = start
        with partial.open("ab" if start else "wb") as file:
            while data := response.read(CHUNK):
                file.write(data)
                done += len(data)
                progress(f"downloading {url}", done, total)
    if done < total:
        raise _CutOff(f"it was cut off after {done} of {total} bytes")


def _start(response: Any, asked: int) -> int:
    """From which byte on the answer is; 0 where the server sends the whole file."""
    if not asked or response.status != http.client.PARTIAL_CONTENT:
        return 0
    found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    if found is None or int(found[1]) != asked:
        raise _CutOff(f"the server was asked for byte {asked} on and sends {response.headers.get('Content-Range')}")
    return asked


class _Entry(NamedTuple):
    """A file in an archive, open for reading."""

    name: str
    size: int
    content: IO[bytes]


def unpack(archive: Path, folder: str, root: Path, progress: Progress) -> Path:
    """Unpack to `root/folder`, by way of a temporary folder beside it."""
    waiting = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=root))
    try:
        _unpack_into(archive, folder, waiting, progress)
        if not (waiting / folder).is_dir():
            raise DataError(f"{archive} does not hold the folder {folder}; remove it and fetch it again")
        return (waiting / folder).rename(root / folder)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(f"{archive} cannot be unpacked ({error}); remove it and fetch it again") from error
    finally:
        shutil.rmtree(waiting, ignore_errors=True)


def _unpack_into(archive: Path, folder: str, waiting: Path, progress: Progress) -> None:
    """Files below the folder only, as plain files whatever their owner and rights; a name that leads out is refused."""
    total, entries = _opened(archive)
    done = 0
    for entry in entries:
        path = PurePosixPath(entry.name)
        if path.is_absolute() or ".." in path.parts or "\\" in entry.name:
            raise DataError(f"{archive} holds {entry.name!r}, which leads out of its folder; nothing was unpacked")
        if path.parts[0] == folder:
            target = waiting / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                shutil.copyfileobj(entry.content, file)
        done += entry.size
        progress(f"unpacking {archive.name}", done, total)


def _opened(archive: Path) -> tuple[int, Iterator[_Entry]]:
    """The size of all files together, and the files one by one."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zipped:
            return sum(info.file_size for info in zipped.infolist()), _from_zip(archive)
    with tarfile.open(archive) as tar:
        return sum(member.size for member in tar), _from_tar(archive)


def _from_zip(archive: Path) -> Iterator[_Entry]:
    with zipfile.ZipFile(archive) as zipped:
        for info in zipped.infolist():
            if not info.is_dir():
                with zipped.open(info) as content:
                    yield _Entry(info.filename, info.file_size, content)


def _from_tar(archive: Path) -> Iterator[_Entry]:
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isdir():
                continue
            content = tar.extractfile(member) if member.isfile() else None
            if content is None:
                raise DataError(f"{archive} holds {member.name!r}, which is no plain file; nothing was unpacked")
            with content:
                yield _Entry(member.name, member.size, content)


@dataclass(frozen=True)
class Archive:
    """A file to download, and the folder that is in it."""

    url: str
    md5: str
    folder: str

    @property
    def file(self) -> str:
        """Its name."""
        return self.url.rpartition("/")[2]


ARCHIVES: Mapping[str, Sequence[Archive]] = {
    "cifar10": (
        Archive(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            "cifar-10-batches-bin",
        ),
        Archive(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
            "cifar-10-batches-py",
        ),
    ),
    "cifar100": (
        Archive(
            "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            "03b5dce01913d631647c71ecec9e9cb8",
            "cifar-100-binary",
        ),
        Archive(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
            "cifar-100-python",
        ),
    ),
    "tiny_imagenet": (
        Archive(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "90528d7ca1a48142e341f4ef8d21d0de",
            "tiny-imagenet-200",
        ),
    ),
}
"""By dataset; the first is what is fetched, the others are taken where another address names them."""


__all__ = ["ARCHIVES", "Archive", "fetch"]


def fetch(
    name: str,
    root: Path,
    *,
    url: str | None = None,
    progress: Progress = silent,
    sleep: Callable[[float], None] = time.sleep,
    archives: Mapping[str, Sequence[Archive]] = ARCHIVES,
) -> Path:
    """Have a dataset's official folder under `root`, which is returned; one that is there already stays as it is.

    What was downloaded before an interruption is kept and gone on with. An archive that somebody put under `root` by
    hand is used instead of the network.
    """
    if name not in archives:
        raise DataError(f"{unknown('dataset', name, archives)}; the others are files of your own")
    there = next((root / archive.folder for archive in archives[name] if (root / archive.folder).is_dir()), None)
    if there is not None:
        return there
    archive = _chosen(archives[name], url)
    try:
        root.mkdir(parents=True, exist_ok=True)
        return _fetch(archive, root, url or archive.url, progress, sleep)
    except OSError as error:
        raise DataError(f"cannot write to {root}: {error}") from error


def _chosen(offered: Sequence[Archive], url: str | None) -> Archive:
    """The archive that another address has by its name, or the first."""
    if url is None:
        return offered[0]
    if urlsplit(url).scheme not in ("http", "https"):
        raise DataError(f"--url: {url!r} has to begin with http:// or https://")
    file = urlsplit(url).path.rpartition("/")[2]
    return next((archive for archive in offered if archive.file == file), offered[0])


def _fetch(archive: Archive, root: Path, url: str, progress: Progress, sleep: Callable[[float], None]) -> Path:
    file = root / archive.file
    by_hand = file.exists()
    if by_hand and (found := md5_of(file)) != archive.md5:
        raise DataError(
            f"{file} is damaged: its md5 is {found}, published is {archive.md5}; remove it and run this again"
        )
    if not by_hand:
        try:
            download(url, file, archive.md5, progress, sleep)
        except Unreachable as unreachable:
            raise DataError(
                f"{unreachable}; what has arrived is kept. Run this again to go on, or without a network: download "
                f"{archive.url} elsewhere (md5 {archive.md5}), put it at {file} and run this again"
            ) from unreachable
    folder = unpack(file, archive.folder, root, progress)
    if not by_hand:
        file.unlink()
    return folder
