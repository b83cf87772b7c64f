"""One file over HTTP: goes on where it was cut off, tries again, and is there only once its checksum is right."""

from __future__ import annotations

import errno
import hashlib
import http.client
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tinyproto.data.sources.base import Progress
from tinyproto.errors import DataError

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
