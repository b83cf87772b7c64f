"""Trained networks in a run folder, `models/LABEL-SEED/client-N.safetensors`, with the facts to build them again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import yaml
from torch import Tensor

from tinyproto.errors import ModelError, RunFolderError, one_line
from tinyproto.imports import unknown
from tinyproto.models import ModelShape, SplitModel, build_model
from tinyproto.storage.tensor_files import save_tensors
from tinyproto.tracking.run_folder import RunFolder, cell_name, is_federation, reading

FOLDER = "models"
SCHEMA_VERSION = 1
_TAG = "tinyproto"


def keep_model(cell: RunFolder, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a client's state dict to the cell's folder, completely or not at all; the facts name client and network."""
    folder, name = cell.inner(FOLDER), _file_name(facts["client"])
    folder.make()
    with folder.writing(name):
        tag = json.dumps({"schema_version": SCHEMA_VERSION, **facts})
        save_tensors(folder.path / name, tensors, {_TAG: tag})


def keep_with_run(cell: RunFolder, run: RunFolder, name: str) -> None:
    """Move the networks of a completed cell, if it kept any, to the run's folder; no-op if they were moved."""
    kept, target = cell.inner(FOLDER), run.inner(FOLDER, name)
    if not kept.path.is_dir():
        return
    target.remove()
    run.inner(FOLDER).make()
    with target.writing():
        kept.path.rename(target.path)


def load_client(run: Path | str, label: str, seed: int, client: int) -> SplitModel:
    """Load a client's network as it was at the end of its run, on the CPU and in eval mode.

    Args:
        run: a run folder whose config has `keep_models: true`.
        label: of the algorithm's entry, as summary.json has it: its name, unless the config says otherwise.
        seed: of the cell.
        client: its number.

    """
    folder = RunFolder.open(Path(run))
    file = folder.path / FOLDER / cell_name(label, seed) / _file_name(client)
    facts, tensors = _read(file) if file.is_file() else ({}, {})
    if (facts.get("label"), facts.get("seed")) != (label, seed):  # two labels may share a folder
        raise RunFolderError(_why_not(folder, label, seed, client))
    shape = ModelShape(
        tuple(facts["input_shape"]), facts["proto_dim"], facts["num_classes"], facts["head_dropout"],
        facts.get("vocabulary"),
    )  # fmt: skip
    model = build_model(facts["network"], shape, seed=0)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise ModelError(
            f"{file} does not fit the network {facts['network']!r}, which has changed since: {one_line(error)}"
        ) from error
    return model.eval()


def _file_name(client: int) -> str:
    return f"client-{client}.safetensors"


def _read(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a file's facts of a network, and its tensors."""
    with reading(file), safetensors.safe_open(file, framework="pt") as opened:
        tag = (opened.metadata() or {}).get(_TAG)
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    facts: dict[str, Any] = {} if tag is None else json.loads(tag)
    if facts.get("schema_version") != SCHEMA_VERSION:
        raise RunFolderError(
            f"{file} is not a network that this tinyproto kept; load it with the release that wrote it"
        )
    return facts, tensors


def _why_not(folder: RunFolder, label: str, seed: int, client: int) -> str:
    """Return the reason why a network is missing, as far as the folder tells."""
    path = folder.path
    if is_federation(path):
        return f"{path} holds a federation, whose clients keep their networks in their own state files"
    try:
        config = yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8"))
        labels, seeds = [entry["label"] for entry in config["algorithms"]], config["seeds"]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError, KeyError) as error:
        return f"{path / 'config.yaml'} is not the resolved config of a run: {one_line(error)}"
    if label not in labels:
        return f"{path}: {unknown('label', label, labels)}"
    if seed not in seeds:
        return f"{path}: {unknown('seed', seed, map(str, seeds))}"
    there = len(list((path / FOLDER / cell_name(label, seed)).glob("client-*.safetensors")))
    if there:
        return f"{path}: there is no client {client}; {label}, seed {seed}, has 0 … {there - 1}"
    if not config.get("keep_models"):
        return f"{path} holds no networks, since it was run without keep_models=true"
    return f"{path} holds no networks of {label}, seed {seed}: it is not completed, or was before keep_models was set"
