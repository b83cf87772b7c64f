"""Trained networks in a run folder: written at the end of each cell, then moved to `models/LABEL-SEED/`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml
from torch import Tensor

from tinyproto.errors import one_line
from tinyproto.imports import unknown
from tinyproto.storage.network_files import FOLDER, file_name, write_network
from tinyproto.tracking.run_folder import RunFolder, is_federation


def keep_model(cell: RunFolder, facts: Mapping[str, Any], parts: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Write a client's network and prototypes to the cell's folder; the facts name client and network."""
    folder, name = cell.inner(FOLDER), file_name(facts["client"])
    folder.make()
    with folder.writing(name):
        write_network(folder.path / name, facts, parts)


def keep_with_run(cell: RunFolder, run: RunFolder, name: str) -> None:
    """Move the networks of a completed cell, if it kept any, to the run's folder; no-op if they were moved."""
    kept, target = cell.inner(FOLDER), run.inner(FOLDER, name)
    if not kept.path.is_dir():
        return
    target.remove()
    run.inner(FOLDER).make()
    with target.writing():
        kept.path.rename(target.path)


def why_missing(folder: RunFolder, label: str | None, seed: int | None) -> str:
    """Return the reason why a run has no network of this label and seed (None: of any), as far as the folder tells."""
    path = folder.path
    if is_federation(path):
        return (
            f"{path} is a coordinator's folder; each client keeps its network on its own device: give the folder of "
            "`tinyproto join`, such as clients/client-0"
        )
    try:
        config = yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8"))
        labels, seeds = [entry["label"] for entry in config["algorithms"]], config["seeds"]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError, KeyError) as error:
        return f"{path / 'config.yaml'} is not the resolved config of a run: {one_line(error)}"
    if label is not None and label not in labels:
        return f"{path}: {unknown('label', label, labels)}"
    if seed is not None and seed not in seeds:
        return f"{path}: {unknown('seed', seed, map(str, seeds))}"
    if not config.get("keep_models"):
        return f"{path} holds no networks, since it was run without keep_models=true"
    which = "" if label is None else f" of {label}"
    which += "" if seed is None else f", seed {seed}"
    return f"{path} holds no networks{which}: it is not completed, or was before keep_models was set"
