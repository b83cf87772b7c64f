"""Getting datasets from their official addresses: download, check, unpack into the layout that the sources read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tinyproto.data.sources.base import Progress, silent
from tinyproto.errors import DataError
from tinyproto.fetch.download import ARCHIVES, Archive, Unreachable, download, md5_of, unpack
from tinyproto.imports import unknown

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
