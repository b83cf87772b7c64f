"""An archive's folder under the root: there whole or not at all, and nothing outside of it touched."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from tinyproto.data.sources.base import Progress
from tinyproto.errors import DataError


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
