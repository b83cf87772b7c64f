"""Networks that a run keeps: those that were evaluated last, wherever the clients lived, and buildable again."""

from __future__ import annotations

import errno
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch

import tinyproto as tp
from support import same_tensors
from support_cli import jsonl
from support_grid import StopsAfter, make_experiment
from tinyproto import grid
from tinyproto.errors import CellsFailed, ConfigError, ModelError, RunFolderError
from tinyproto.experiment import Experiment
from tinyproto.grid import cell as grid_cell
from tinyproto.models import build_model
from tinyproto.storage import network_files
from tinyproto.tracking import kept_models
from tinyproto.tracking.run_folder import RunFolder

CONFIG = """\
name: trial
partition: {num_clients: 3, alpha: 0.5, min_samples: 20}
models: [small_cnn_b, small_cnn_c]
prototypes: {dim: 12, cps_dim: 3}
train: {rounds: 2, batch_size: 64, participation: 0.7}
checkpoint: {every_seconds: 1000}
algorithms: [{name: fedproto, label: "proto/type"}, lg_fedavg]
keep_models: true
"""
LABELS = {"proto/type": "proto_type-0", "lg_fedavg": "lg_fedavg-0"}
CLIENTS = range(3)


def experiment(folder: Path, *overrides: str) -> Experiment:
    return make_experiment(folder, CONFIG, *overrides)


def kept(run: Path) -> dict[str, bytes]:
    """All that is in `models/`, whatever it is."""
    found = (run / "models").rglob("*")
    return {str(path.relative_to(run / "models")): path.read_bytes() for path in found if path.is_file()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    return grid.run(experiment(folder), folder / "runs")


def test_what_is_loaded_is_the_network_that_a_client_had_in_memory_at_the_end(
    tmp_path: Path, undisturbed: Path
) -> None:
    in_memory = experiment(tmp_path)
    assert [cell.entry.label for cell in in_memory.cells] == list(LABELS)
    for cell in in_memory.cells:
        host = in_memory.loopback(cell)
        list(in_memory.simulation(cell, host).rounds())
        for client in CLIENTS:
            loaded = tp.load_client(undisturbed, client, label=cell.entry.label).model
            assert not any(module.training for module in loaded.modules())
            assert same_tensors(loaded.state_dict(), host.store[client].model.state_dict())
            shape = in_memory.shape
            built = build_model(in_memory.config.model.models[client % 2], shape, in_memory.config.model.seeds[0])
            assert not same_tensors(loaded.state_dict(), built.state_dict())


def test_a_loaded_client_classifies_as_the_closing_exchange_says(tmp_path: Path, undisturbed: Path) -> None:
    data = experiment(tmp_path).data
    closing = {line["label"]: line["clients"] for line in jsonl(undisturbed / "rounds.jsonl") if line["closing"]}
    assert closing.keys() == LABELS.keys()
    for label, clients in closing.items():
        for row, client in enumerate(clients["id"]):
            loaded, test = tp.load_client(str(undisturbed), client, label=label, seed=0), data.test(client)
            recorded = {rule: column[row] for rule, column in clients["correct"].items() if column[row] is not None}
            assert {
                rule: int((loaded.predict(test.inputs, rule).labels == test.labels).sum()) for rule in loaded.rules
            } == recorded


def test_a_file_says_whose_network_it_is_and_how_to_build_it(undisturbed: Path) -> None:
    assert set(kept(undisturbed)) == {
        f"{folder}/client-{client}.safetensors" for folder in LABELS.values() for client in CLIENTS
    }
    file = undisturbed / "models" / "proto_type-0" / "client-1.safetensors"
    with safetensors.safe_open(file, framework="pt") as opened:
        facts = json.loads(opened.metadata()["tinyproto"])
    assert facts == {
        "schema_version": 2, "algorithm": "fedproto", "label": "proto/type", "seed": 0, "client": 1,
        "network": "small_cnn_c", "input_shape": [1, 8, 8], "proto_dim": 12, "num_classes": 10, "head_dropout": 0.0,
        "vocabulary": None, "head_dropout_in_place": False, "dataset": "digits", "class_names": None, "dtype": "uint8",
        "scale": 0.125, "shift": -1.0, "white": 16, "columns": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    "override",
    ["train.client_memory=1B", "train.workers=2", pytest.param("train.parallel_cells=2", marks=pytest.mark.slow)],
)
def test_wherever_the_clients_live_the_same_files_are_kept(tmp_path: Path, undisturbed: Path, override: str) -> None:
    other = experiment(tmp_path, override)
    assert (other.workers, other.cells_at_once).count(2) == (0 if "memory" in override else 1)
    assert kept(grid.run(other, tmp_path / "runs")) == kept(undisturbed)


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_run_that_is_resumed_keeps_the_same_networks(tmp_path: Path, undisturbed: Path, rounds: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        grid.run(experiment(tmp_path), tmp_path / "runs", observer=StopsAfter(rounds))
    folder = grid.resume(experiment(tmp_path), tmp_path / "runs" / "trial")
    assert kept(folder) == kept(undisturbed)


class Killed(BaseException):
    """The process is no more."""


@pytest.mark.parametrize(
    ("where", "step", "when"),
    [
        (network_files, "save_tensors", 2),
        (grid_cell, "keep_model", 3),
        (Path, "rename", 1),
        (RunFolder, "append_file", 1),
        (RunFolder, "write_prototypes", 2),
    ],
)
def test_a_kill_leaves_nothing_half_kept(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, where: Any, step: str, when: int
) -> None:
    real, calls = getattr(where, step), 0

    def killed(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == when:
            if step == "save_tensors":
                arguments[0].with_suffix(".partial").write_bytes(b"half a network")
            raise Killed
        return real(*arguments)

    monkeypatch.setattr(where, step, killed)
    with pytest.raises(Killed):
        grid.run(experiment(tmp_path), tmp_path / "runs")
    monkeypatch.undo()
    assert kept(grid.resume(experiment(tmp_path), tmp_path / "runs" / "trial")) == kept(undisturbed)


def test_without_the_key_no_network_is_kept_and_all_else_is_the_same(tmp_path: Path, undisturbed: Path) -> None:
    folder = grid.run(experiment(tmp_path, "keep_models=false"), tmp_path / "runs")
    assert {path.name for path in undisturbed.iterdir()} - {path.name for path in folder.iterdir()} == {"models"}
    assert (folder / "rounds.jsonl").read_bytes() == (undisturbed / "rounds.jsonl").read_bytes()
    with pytest.raises(RunFolderError, match="holds no networks, since it was run without keep_models=true"):
        tp.load_client(folder, 0)


def test_a_run_under_way_may_begin_to_keep_networks(tmp_path: Path, undisturbed: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        grid.run(experiment(tmp_path, "keep_models=false"), tmp_path / "runs", observer=StopsAfter(3))
    keeping = experiment(tmp_path)
    path = tmp_path / "runs" / "trial"
    RunFolder(path).write_config(keeping.config.resolved())
    folder = grid.resume(keeping, path)
    assert kept(folder) == {name: file for name, file in kept(undisturbed).items() if name.startswith("lg_fedavg")}
    with pytest.raises(RunFolderError, match=r"no networks of proto/type, seed 0: "):
        tp.load_client(folder, 0, label="proto/type", seed=0)


def test_a_run_that_no_longer_keeps_networks_leaves_none_that_were_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = kept_models.keep_model

    def killed(folder: RunFolder, facts: Any, tensors: Any) -> None:
        if facts["client"] == 2:
            raise Killed
        real(folder, facts, tensors)

    with monkeypatch.context() as then:
        then.setattr(grid_cell, "keep_model", killed)
        with pytest.raises(Killed):
            grid.run(experiment(tmp_path), tmp_path / "runs")
    assert list((tmp_path / "runs").rglob("client-1.safetensors"))
    folder = grid.resume(experiment(tmp_path, "keep_models=false"), tmp_path / "runs" / "trial")
    assert not (folder / "models").exists()


def test_a_run_that_kept_networks_can_be_replaced(tmp_path: Path) -> None:
    small = ("algorithms=[local]", "train.rounds=1")
    folder = grid.run(experiment(tmp_path, *small), tmp_path / "runs")
    assert kept(folder)
    grid.run(experiment(tmp_path, *small, "keep_models=false"), tmp_path / "runs", overwrite=True)
    assert not (folder / "models").exists()


def test_a_full_disk_is_an_error_that_names_the_file_and_the_run_can_be_resumed(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as then:
        then.setattr(network_files, "save_tensors", full)
        with pytest.raises(CellsFailed, match=r"cannot write .*models/client-0\.safetensors: No space left"):
            grid.run(experiment(tmp_path), tmp_path / "runs")
    assert kept(grid.resume(experiment(tmp_path), tmp_path / "runs" / "trial")) == kept(undisturbed)


def test_networks_of_cells_beyond_a_failed_one_are_there(tmp_path: Path) -> None:
    asked = experiment(
        tmp_path, "algorithms=[{name: fedproto, proto_weight: 1.0e9}, lg_fedavg]", "train.max_left_out=0.0"
    )
    for play in (partial(grid.run, asked, tmp_path / "runs"), partial(grid.resume, asked, tmp_path / "runs" / "trial")):
        with pytest.raises(CellsFailed, match="1 cell failed"):
            play()
        assert not tp.load_client(tmp_path / "runs" / "trial", 1, label="lg_fedavg").model.training


@pytest.mark.parametrize(
    ("label", "seed", "client", "words"),
    [
        ("fedproto", 0, 0, r"unknown label 'fedproto'.*: proto/type, lg_fedavg"),
        ("proto_type", 0, 0, "unknown label 'proto_type', did you mean 'proto/type'?"),  # the folder's name
        ("lg_fedavg", 7, 0, "unknown seed 7; known: 0"),
        ("lg_fedavg", 0, 3, "there is no client 3; lg_fedavg, seed 0, has 0 … 2"),
        ("lg_fedavg", None, None, "has networks of clients 0 … 2; choose one with --client"),
        (None, None, 0, "several algorithms; choose one with --algorithm .*: lg_fedavg, proto/type"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(
    undisturbed: Path, label: str | None, seed: int | None, client: int | None, words: str
) -> None:
    with pytest.raises(RunFolderError, match=words):
        tp.load_client(undisturbed, client, label=label, seed=seed)


def test_a_folder_that_cannot_have_networks_is_told(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(RunFolderError, match="give a run folder, the folder of `tinyproto join`, or"):
            tp.load_client(path, 0)
    (tmp_path / "config.yaml").write_text("schema_version: 1\n")
    with pytest.raises(RunFolderError, match="is not the resolved config of a run: KeyError: 'algorithms'"):
        tp.load_client(tmp_path, 0)
    (tmp_path / "serve.json").write_text("{}")
    with pytest.raises(RunFolderError, match="is a coordinator's folder; each client keeps its network on its own"):
        tp.load_client(tmp_path, 0)


def test_a_file_that_is_damaged_or_foreign_is_refused(tmp_path: Path) -> None:
    folder = grid.run(experiment(tmp_path, "algorithms=[local]", "train.rounds=1"), tmp_path / "runs")
    file = folder / "models" / "local-0" / "client-0.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(RunFolderError, match=r"client-0\.safetensors cannot be read: SafetensorError"):
        tp.load_client(folder, 0)
    for version in (b'schema_version\\": 3', b'schema_v_rsion\\": 2'):
        file.write_bytes(content.replace(b'schema_version\\": 2', version))
        with pytest.raises(RunFolderError, match="is not a network that this tinyproto kept"):
            tp.load_client(folder, 0)
    file.write_bytes(content)
    assert tp.load_client(folder, 0)


NETS = """\
from torch import nn


def flat(proto_dim):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, proto_dim), nn.ReLU())
"""


def test_a_network_of_ones_own_is_built_by_its_path_or_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget() -> None:
        monkeypatch.delitem(sys.modules, "nets_that_go", raising=False)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "nets_that_go.py").write_text(NETS)
    own = experiment(tmp_path, "models=[nets_that_go:flat]", "algorithms=[local]", "train.rounds=1")
    folder = grid.run(own, tmp_path / "runs")
    forget()
    assert tp.load_client(folder, 2).model(torch.zeros(1, 1, 8, 8)).logits.shape == (1, 10)

    (tmp_path / "nets_that_go.py").write_text(NETS.replace("nn.ReLU()", "nn.Linear(proto_dim, proto_dim)"))
    forget()
    with pytest.raises(ModelError, match=r"does not fit the network 'nets_that_go:flat'"):
        tp.load_client(folder, 2)
    (tmp_path / "nets_that_go.py").unlink()
    forget()
    with pytest.raises(ModelError, match="importing 'nets_that_go' failed with ModuleNotFoundError"):
        tp.load_client(folder, 2)


@pytest.mark.parametrize("labels", [("a b", "a_b"), ("A", "a"), ("x" * 90, "x" * 91)])
def test_labels_that_name_one_folder_are_refused_before_anything_is_trained(
    tmp_path: Path, labels: tuple[str, str]
) -> None:
    entries = ", ".join(f"{{name: local, label: {label}}}" for label in labels)
    with pytest.raises(ConfigError, match=rf"'{labels[0]}' and '{labels[1]}' would both write to models/"):
        experiment(tmp_path, f"algorithms=[{entries}]")
    assert experiment(tmp_path, f"algorithms=[{entries}]", "keep_models=false").cells
