"""Checkpoints show when they are damaged, and the one before takes their place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import safetensors.torch
import torch

from tinyproto.algorithms.base import ClientInfo
from tinyproto.engine.server import ServerRuntime
from tinyproto.errors import CheckpointError, ClientStateError, DamagedError
from tinyproto.storage.checkpoint import (
    SCHEMA_VERSION,
    Checkpoint,
    Position,
    keep_newest,
    load_newest,
    save,
    set_aside,
    sweep,
)  # fmt: skip
from tinyproto.storage.client_files import ClientFiles, Stored
from tinyproto.storage.tensor_files import digest, load_sealed, save_sealed, sealed_facts


class Clients:
    """The keeper of one client with two parts, of which `changing` differs at every save and `lasting` never."""

    def __init__(self, folder: Path) -> None:
        self.files = ClientFiles(folder)
        self.saves = 0
        self.stored: dict[int, Stored] = {}

    def save(self) -> Mapping[int, Stored]:
        parts = {"changing": {"w": torch.full((2,), float(self.saves))}}
        if not self.saves:
            self._put({"lasting": {"w": torch.ones(3)}})
        self._put(parts)
        self.saves += 1
        return {client: dict(parts) for client, parts in self.stored.items()}

    def _put(self, parts: dict[str, dict[str, torch.Tensor]]) -> None:
        placed = self.files.put(4, parts, {part: digest(tensors) for part, tensors in parts.items()})
        self.stored[4] = {**self.stored.get(4, {}), **placed}


class Saved:
    """A run's checkpoints, each taken one round after the one before."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.clients = folder / "checkpoint", folder / "clients"
        self.host = Clients(self.clients)
        self.rounds = 1
        for _ in range(count):
            self.save()

    def save(self) -> None:
        self.rounds += 1
        server = SimpleNamespace(
            state={"prototypes": torch.arange(6.0).reshape(2, 3) * self.rounds, "step": torch.tensor(self.rounds)},
            infos={4: ClientInfo(4, 10, 12, 3)},
            held={4: torch.tensor([True, False, True])},
        )
        position = Position(0, self.rounds, 90, 80, {"name": "trial"})
        save(self.folder, position, cast("ServerRuntime", server), self.host.save())
        sweep(self.folder, self.clients)

    def load(self) -> Checkpoint:
        checkpoint = load_newest(self.folder, self.clients)
        assert checkpoint is not None
        return checkpoint

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.iterdir())

    def client_files(self) -> list[str]:
        return sorted(path.name for path in self.clients.iterdir())


def flip(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


def flips(file: Path, step: int) -> Iterator[int]:
    """Have every so-many-th bit of a file flipped in turn, and the file as it was at the end."""
    content = file.read_bytes()
    for bit in range(0, 8 * len(content), step):
        flip(file, bit)
        yield bit
        file.write_bytes(content)


EVERY = pytest.mark.parametrize(
    "step", [9, pytest.param(1, marks=pytest.mark.slow)], ids=["a bit of each byte", "each bit"]
)


@EVERY
def test_a_flipped_bit_anywhere_in_a_checkpoint_is_found(tmp_path: Path, step: int) -> None:
    file = tmp_path / "00000001.safetensors"
    facts = {"schema_version": SCHEMA_VERSION, "position": {"next_round": 3}, "clients": {"4": {"w": ["f", "0af9"]}}}
    save_sealed(file, {"prototypes": torch.arange(6.0).reshape(2, 3), "held": torch.tensor([True, False])}, facts)
    tried = 0
    for _ in flips(file, step):
        tried += 1
        with pytest.raises(DamagedError, match=re.escape(f"{file} is damaged")):
            load_sealed(file)
    assert tried > 3000 / step
    assert load_sealed(file)[0]["position"] == {"next_round": 3}


def test_a_flipped_bit_anywhere_in_what_a_checkpoint_needs_falls_back_to_the_one_before(tmp_path: Path) -> None:
    saved = Saved(tmp_path, 2)
    newest = saved.load()
    changing = saved.clients / newest.clients[4]["changing"].file
    for file in (saved.files[-1], changing):
        content = file.read_bytes()
        for bit in range(5, 8 * len(content), 211):  # hits each bit of a byte, and every region of the file
            flip(file, bit)
            found = saved.load()
            assert found.position.next_round == 2, f"bit {bit} of {file.name}"
            assert [str(file) in reason for reason in found.passed_over.values()] == [True]
            file.write_bytes(content)
    assert saved.load().position == newest.position
    assert saved.load().passed_over == {}


@EVERY
def test_a_flipped_bit_anywhere_in_a_client_file_is_found(tmp_path: Path, step: int) -> None:
    files = ClientFiles(tmp_path)
    parts = {"model": {"w": torch.arange(3.0), "n": torch.tensor(3)}, "local": {"present": torch.tensor([True])}}
    stored = files.put(7, parts, {part: digest(tensors) for part, tensors in parts.items()})
    (file,) = tmp_path.iterdir()
    for _ in flips(file, step):
        with pytest.raises(ClientStateError, match=re.escape(f"{file}, the state of client 7, is damaged")):
            files.get(7, stored)


def test_a_damaged_checkpoint_is_set_aside_and_never_the_newest_again(tmp_path: Path) -> None:
    saved = Saved(tmp_path, 2)
    older, damaged = saved.files
    flip(damaged, 8 * (damaged.stat().st_size - 2))
    (told,) = set_aside(saved.load())
    assert told.startswith(f"{damaged} is damaged ")
    assert "resuming from round 2" in told
    assert saved.files == [older, damaged.with_suffix(".damaged")]
    assert saved.load().passed_over == {}
    for later in range(3):
        saved.save()
        checkpoint = saved.load()
        assert (checkpoint.position.next_round, checkpoint.passed_over) == (4 + later, {})
    assert [path.name for path in saved.files] == ["00000003.safetensors", "00000004.safetensors"]


@pytest.mark.parametrize("what", ["facts", "tensors"])
def test_damaged_checkpoints_do_not_count_among_those_that_are_kept(tmp_path: Path, what: str) -> None:
    saved = Saved(tmp_path, 2)
    good, damaged = saved.files
    flip(damaged, 8 * (100 if what == "facts" else damaged.stat().st_size - 2))
    keep_newest(saved.folder, 1)
    assert saved.files == [good, damaged]
    saved.save()
    assert saved.files[:2] == [good, damaged]  # with the new one, two that are intact
    saved.save()
    assert [path.name for path in saved.files] == ["00000003.safetensors", "00000004.safetensors"]


def test_sweeping_keeps_what_only_the_older_checkpoint_needs_and_goes_on_after_a_fall_back(tmp_path: Path) -> None:
    saved = Saved(tmp_path, 2)
    older, damaged = saved.files
    before = saved.client_files()
    assert len(before) == 3  # the part that lasts, and one of each checkpoint
    flip(damaged, 8 * 100)
    (saved.clients / "000004-0123456789abcdef.safetensors").write_bytes(b"left behind")
    sweep(saved.folder, saved.clients)
    assert set(before) < set(saved.client_files())  # who knows what the damaged one needs
    checkpoint = saved.load()
    set_aside(checkpoint)
    sweep(saved.folder, saved.clients)
    assert saved.client_files() == sorted({place.file for place in checkpoint.clients[4].values()})
    assert sealed_facts(older)["position"]["next_round"] == saved.load().position.next_round


def test_a_client_file_that_every_checkpoint_needs_cannot_be_made_up_for(tmp_path: Path) -> None:
    saved = Saved(tmp_path, 2)
    lasting = saved.clients / saved.host.stored[4]["lasting"].file
    flip(lasting, 8 * (lasting.stat().st_size - 2))
    with pytest.raises(CheckpointError) as refused:
        saved.load()
    assert f" is intact: {lasting}, the state of client 4, is damaged: " in str(refused.value)
    assert str(refused.value).count(lasting.name) == 1
    assert f"delete {saved.folder} to start again" in str(refused.value)
    lasting.unlink()
    with pytest.raises(CheckpointError, match=f"{lasting.name}, the state of client 4, is missing; delete"):
        saved.load()


def test_without_an_intact_checkpoint_each_is_named_and_what_to_do(tmp_path: Path) -> None:
    saved = Saved(tmp_path, 2)
    for file in saved.files:
        flip(file, 8 * 100)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is intact: .*2\.safetensors is damaged .*1\.safe"):
        saved.load()
    with pytest.raises(CheckpointError, match=r"; start another run$"):
        load_newest(saved.folder, saved.clients, remedy="start another run")
    before = saved.client_files()
    sweep(saved.folder, saved.clients)
    assert saved.client_files() == before


def test_a_checkpoint_without_a_seal_counts_as_damaged(tmp_path: Path) -> None:
    saved = Saved(tmp_path, 2)
    newest = saved.files[-1]
    facts, tensors = load_sealed(newest)
    safetensors.torch.save_file(tensors, newest, metadata={"tinyproto": json.dumps(facts)})
    found = saved.load()
    assert found.position.next_round == 2
    assert "its facts differ from what was written" in next(iter(found.passed_over.values()))


@pytest.mark.parametrize(("version", "which"), [(SCHEMA_VERSION + 1, "newer"), (1, "older")])
def test_an_intact_checkpoint_of_another_release_is_refused_and_not_passed_over(
    tmp_path: Path, version: int, which: str
) -> None:
    saved = Saved(tmp_path, 2)
    facts, tensors = load_sealed(saved.files[-1])
    save_sealed(saved.files[-1], tensors, {**facts, "schema_version": version})
    with pytest.raises(CheckpointError, match=f"schema version {version}, .* with the {which} release"):
        saved.load()
