"""Download datasets from their official addresses, verify them and unpack them into the layout that the sources read.

`pooch` would replace part of this file, but it starts an interrupted download again from the first byte; the download
here resumes.
"""

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tinyproto.data.sources.base import Progress, silent
from tinyproto.errors import DataError
from tinyproto.imports import unknown

WAITS = (1, 2, 4, 8)
"""Seconds before each retry; a retry that gains a byte starts the sequence again."""

TIMEOUT = 30
CHUNK = 1 << 16
_RETRIED = (408, 425, 429, 500, 502, 503, 504)
_RANGE_NOT_SATISFIABLE = 416
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EISDIR)


@dataclass(frozen=True)
class Archive:
    """A file to download, and the folder in it."""

    url: str
    md5: str
    folder: str

    @property
    def file(self) -> str:
        """Return the file's name."""
        return self.url.rpartition("/")[2]


_CIFAR = "https://www.cs.toronto.edu/~kriz"
ARCHIVES: Mapping[str, Sequence[Archive]] = {
    "cifar10": (
        Archive(f"{_CIFAR}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", "cifar-10-batches-bin"),
        Archive(f"{_CIFAR}/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", "cifar-10-batches-py"),
    ),
    "cifar100": (
        Archive(f"{_CIFAR}/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary"),
        Archive(f"{_CIFAR}/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", "cifar-100-python"),
    ),
    "tiny_imagenet": (
        Archive(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", "tiny-imagenet-200"
        ),
    ),
}
"""The archives of each dataset; the first is the default, the others are used if `--url` names them."""


def fetch(name: str, root: Path, *, url: str | None = None, progress: Progress = silent) -> Path:
    """Return the dataset's official folder under `root`; download and unpack it if it is missing.

    An interrupted download resumes. An archive that is already in `root` is used instead of the network.
    """
    if name not in ARCHIVES:
        raise DataError(f"{unknown('dataset', name, ARCHIVES)}; the other datasets are your own files")
    there = next((root / archive.folder for archive in ARCHIVES[name] if (root / archive.folder).is_dir()), None)
    if there is not None:
        return there
    archive = _chosen(ARCHIVES[name], url)
    try:
        root.mkdir(parents=True, exist_ok=True)
        return _fetch(archive, root, url or archive.url, progress)
    except OSError as error:
        reason = "it is a file; name a folder with --root" if root.is_file() else error
        raise DataError(f"cannot write to {root}: {reason}") from error


def _chosen(offered: Sequence[Archive], url: str | None) -> Archive:
    """Return the archive whose file name the address has, or the first."""
    if url is None:
        return offered[0]
    if urlsplit(url).scheme not in ("http", "https"):
        raise DataError(f"--url: {url!r} has to begin with http:// or https://")
    file = urlsplit(url).path.rpartition("/")[2]
    return next((archive for archive in offered if archive.file == file), offered[0])


def _fetch(archive: Archive, root: Path, url: str, progress: Progress) -> Path:
    file = root / archive.file
    given = file.exists()
    if given and (found := _md5(file)) != archive.md5:
        raise DataError(f"{file} is damaged: its md5 is {found}, not {archive.md5}; remove it and run this again")
    if not given:
        try:
            _download(url, file, archive.md5, progress)
        except _Unreachable as unreachable:
            raise DataError(
                f"{unreachable}; the part downloaded so far is kept. Run this again to resume, or without a network: "
                f"download {archive.url} elsewhere (md5 {archive.md5}), put it at {file} and run this again"
            ) from unreachable
    folder = unpack(file, archive.folder, root, progress)
    if not given:
        file.unlink()
    return folder


class _Unreachable(Exception):  # noqa: N818
    """The address cannot be downloaded; the message says which and why."""


def _download(url: str, target: Path, md5: str, progress: Progress) -> None:
    """Download to `target` by way of a `.partial` file beside it, and verify the checksum."""
    partial = target.with_name(f"{target.name}.partial")
    for _ in range(2):  # a wrong checksum may come from an old partial file, so start afresh once
        _complete(url, partial, progress)
        found = _md5(partial)
        if found == md5:
            partial.replace(target)
            return
        partial.unlink()
    raise DataError(
        f"the md5 of {url} is {found}, not {md5}: it is damaged or another file, and was removed; try again later or "
        "another address with --url"
    )


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _complete(url: str, partial: Path, progress: Progress) -> None:
    """Connect until the file is complete; raise _Unreachable if retries no longer help."""
    waits = list(WAITS)
    while True:
        before = _size(partial)
        try:
            return _continue(url, partial, progress)
        except urllib.error.HTTPError as error:
            if error.code == _RANGE_NOT_SATISFIABLE:  # nothing is left to download
                return None
            problem: Exception = error
            if error.code not in _RETRIED:
                raise _Unreachable(f"{url} answers {error.code} {error.reason}") from error
        except (OSError, http.client.HTTPException) as error:
            if getattr(error, "errno", None) in _DISK_ERRORS:
                raise
            problem = error
            if isinstance(getattr(error, "reason", None), socket.gaierror):  # no network: waiting does not help
                waits = []
        if _size(partial) > before:
            waits = list(WAITS)
        if not waits:
            raise _Unreachable(f"cannot download {url} ({getattr(problem, 'reason', problem)})") from problem
        time.sleep(waits.pop(0))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _continue(url: str, partial: Path, progress: Progress) -> None:
    """Download the rest of the file over one connection, or all of it if the server does not support ranges."""
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
        raise ConnectionError(f"the connection ended after {done} of {total} bytes")


def _start(response: Any, asked: int) -> int:
    """Return the offset at which the response starts; 0 if the server sends the whole file."""
    if not asked or response.status != http.client.PARTIAL_CONTENT:
        return 0
    found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    if found is None or int(found[1]) != asked:
        sent = response.headers.get("Content-Range")
        raise ConnectionError(f"the server was asked for byte {asked} on and sends {sent}")
    return asked


def unpack(archive: Path, folder: str, root: Path, progress: Progress) -> Path:
    """Unpack to `root/folder`, by way of a temporary folder beside it."""
    waiting = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=root))
    try:
        _unpack_into(archive, waiting, progress)
        if not (waiting / folder).is_dir():
            raise DataError(f"{archive} does not hold the folder {folder}; remove it and fetch it again")
        return (waiting / folder).rename(root / folder)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(f"{archive} cannot be unpacked ({error}); remove it and fetch it again") from error
    finally:
        shutil.rmtree(waiting, ignore_errors=True)


def _unpack_into(archive: Path, waiting: Path, progress: Progress) -> None:
    """Unpack all files; zipfile keeps every name inside the folder, and so does tarfile with its data filter.

    Python 3.11.0 to 3.11.3 has no such filter; there only plain files with plain names are unpacked.
    """
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zipped:
            total, done = sum(info.file_size for info in zipped.infolist()), 0
            for info in zipped.infolist():
                zipped.extract(info, waiting)
                done += info.file_size
                progress(f"unpacking {archive.name}", done, total)
        return
    with tarfile.open(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 or newer
        total, done = sum(member.size for member in tar), 0
        for member in tar:
            plain = (member.isfile() or member.isdir()) and ".." not in Path(member.name).parts
            if not hasattr(tarfile, "data_filter") and (not plain or Path(member.name).is_absolute()):
                raise tarfile.TarError(f"{member.name!r} is not a plain file inside the folder")
            tar.extract(member, waiting)
            done += member.size
            progress(f"unpacking {archive.name}", done, total)
