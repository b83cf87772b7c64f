"""Find a client's file: in a run folder, in a device's folder, or given by its own path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tinyproto.errors import ConfigError, RunFolderError
from tinyproto.storage.network_files import FOLDER, file_name, read_facts
from tinyproto.trained.client import TrainedClient, read_client

_FILES = "client-*.safetensors"


def load_client(
    path: Path | str, client: int | None = None, *, label: str | None = None, seed: int | None = None
) -> TrainedClient:
    """Load a client as its training left it: its network, on the CPU and in eval mode, and its prototypes.

    Args:
        path: a run folder whose config has `keep_models: true`, the folder of a device that took part in a federation
            or trained offline, or one file `client-N.safetensors` of either.
        client: its number; a device's folder or a file needs none.
        label: of the algorithm's entry, as summary.json has it; needed if the run kept networks of several.
        seed: needed if the run kept networks of several seeds.

    """
    if client is not None and not isinstance(client, int):
        raise ConfigError(f"client is the number of a client, not {client!r}; the label is an argument `label=`")
    found = read_client(_file(Path(path).expanduser(), client, label, seed))
    for name, asked in (("client", client), ("label", label), ("seed", seed)):
        if asked is not None and found.facts[name] != asked:
            raise RunFolderError(f"{found.path} is of {name} {found.facts[name]!r}, not {asked!r}")
    return found


def _file(path: Path, client: int | None, label: str | None, seed: int | None) -> Path:
    if path.is_file():
        return path
    if (path / "config.yaml").is_file():
        return _kept_file(path, client, label, seed)
    states = [*path.glob(f"state/*/{_FILES}"), *path.glob(_FILES)]  # of a device's folder, or of one of its federations
    wanted = [file for file in states if client is None or file.name == file_name(client)]
    if wanted:
        return max(wanted, key=lambda file: file.stat().st_mtime)
    if states:
        there = ", ".join(sorted(file.stem.removeprefix("client-") for file in states))
        raise RunFolderError(f"{path} is the folder of client {there}, not {client}")
    if (path / "join.json").is_file():
        raise RunFolderError(f"{path} holds no network yet: the client has not completed a round")
    what = "is another folder" if path.exists() else "does not exist"
    raise RunFolderError(f"{path} {what}; give a run folder, the folder of `tinyproto join`, or a client-N.safetensors")


def _kept_file(run: Path, client: int | None, label: str | None, seed: int | None) -> Path:
    """Return a client's file of the one cell that fits label and seed; raise RunFolderError if it is missing."""
    cells: list[tuple[str, int, list[Path]]] = []
    for folder in sorted((run / FOLDER).glob("*/")):
        files = sorted(folder.glob(_FILES), key=lambda file: (len(file.name), file.name))
        if files:
            facts = read_facts(files[0])
            cells.append((facts["label"], facts["seed"], files))
    fitting = [cell for cell in cells if label in (None, cell[0]) and seed in (None, cell[1])]
    if not fitting:
        from tinyproto.tracking.kept_models import why_missing  # imports what reading a network does not need
        from tinyproto.tracking.run_folder import RunFolder

        raise RunFolderError(why_missing(RunFolder(run), label, seed))
    if len(fitting) > 1:
        also = "" if client is not None else "; and a client with --client (client=N in Python)"
        raise RunFolderError(f"{run} kept networks of several {_choices(fitting)}{also}")
    ((found, of_seed, files),) = fitting
    last = len(files) - 1
    if client is None:
        raise RunFolderError(f"{run} has networks of clients 0 … {last}; choose one with --client (client=N in Python)")
    wanted = [file for file in files if file.name == file_name(client)]
    if not wanted:
        raise RunFolderError(f"{run}: there is no client {client}; {found}, seed {of_seed}, has 0 … {last}")
    return wanted[0]


def _choices(cells: Sequence[tuple[str, int, list[Path]]]) -> str:
    """Return what differs among cells, and how to choose."""
    labels, seeds = ({cell[0]: None for cell in cells}, {cell[1]: None for cell in cells})
    wanted = []
    if len(labels) > 1:
        wanted.append(f"algorithms; choose one with --algorithm (label= in Python): {', '.join(labels)}")
    if len(seeds) > 1:
        wanted.append(f"seeds; choose one with --seed (seed= in Python): {', '.join(map(str, sorted(seeds)))}")
    return "; and of several ".join(wanted)
