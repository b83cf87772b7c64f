"""A device's folder after a federation, or after training alone, classifies as its last evaluation did."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import tinyproto as tp
from support_members import CLASSES, TOKEN, small_values, write_arrays, write_join
from tinyproto.algorithms.base import Round
from tinyproto.config import parse_config
from tinyproto.engine.measure import Meter, Stopwatch
from tinyproto.engine.participation import plan_round
from tinyproto.engine.round import RoundRecord, play_round
from tinyproto.engine.server import Reply
from tinyproto.engine.training import EagerTrainer
from tinyproto.errors import RunFolderError
from tinyproto.federation.client_data import client_data
from tinyproto.federation.member import Member
from tinyproto.federation.offline import train_offline
from tinyproto.federation.terms import accepted_terms, agree, offered_terms
from tinyproto.storage.tensor_files import load_sealed, save_sealed

NAMES = ["ant", "bee", "cat", "dog"]


class Direct:
    """The channel straight to the members in their folders."""

    def __init__(self, folders: Mapping[int, Path]) -> None:
        self.folders = folders

    def exchange(self, round_number: int, frames: Mapping[int, bytes]) -> Iterator[Reply]:
        for client, frame in frames.items():
            yield Reply(client, Member(self.folders[client], client).answer(TOKEN, frame))


def federate(folder: Path, values: Mapping[str, Any], closing: bool = True) -> tuple[dict[int, Path], RoundRecord]:
    """Run a federation of two, without Flower; return its clients' folders and its last record."""
    config = parse_config(values)
    terms = offered_terms(config, TOKEN)
    setup = agree(terms, config.model.models)
    folders = {}
    for client, model in enumerate(config.model.models):
        arrays = write_arrays(folder / str(client) / "data.npz", client)
        folders[client] = write_join(folder / str(client), model, {"path": str(arrays)})
        Member(folders[client], client).hello(terms.text())
    channel, rounds = Direct(folders), terms.train.rounds
    server = setup.server(EagerTrainer(), Stopwatch(lambda: 0.0))
    server.greet(channel, [0, 1], Meter())
    for number in range(1, rounds + 1 + closing):
        plan = plan_round([0, 1], Round(number, rounds), 1.0, 1, "all", server.streams)
        record = play_round(server, channel, plan, Meter())
    return folders, record


def correct_by_rule(folder: Path, client: int) -> dict[str, int]:
    """Classify the test samples of a device with what `load_client` finds in its folder."""
    loaded, member = tp.load_client(folder), Member(folder, client)
    (text,) = [file.read_text() for file in folder.glob("state/*/terms.json")]
    test = client_data(member.join.data, client, accepted_terms(text, member.join.model)[0]).test(0)
    assert not any(module.training for module in loaded.model.modules())
    return {rule: int((loaded.predict(test.inputs, rule).labels == test.labels).sum()) for rule in loaded.rules}


@pytest.fixture(scope="module")
def federated(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, Path], RoundRecord]:
    return federate(tmp_path_factory.mktemp("federated"), small_values("fedproto", clients=2, classes=NAMES))


def test_a_device_classifies_as_the_closing_evaluation_says(federated: tuple[dict[int, Path], RoundRecord]) -> None:
    folders, record = federated
    assert record.closing
    for client, folder in folders.items():
        recorded = {rule: found for rule, found in record.clients[client].correct.items() if found is not None}
        assert recorded.keys() == {"head", "global", "local"}
        assert correct_by_rule(folder, client) == recorded


def test_a_device_knows_the_federation_s_classes_and_how_far_it_came(
    tmp_path: Path, federated: tuple[dict[int, Path], RoundRecord]
) -> None:
    loaded = tp.load_client(federated[0][1])
    assert loaded.classes == tuple(NAMES)
    assert (loaded.facts["client"], loaded.facts["network"], loaded.facts["rounds"]) == (1, "small_cnn_b", 2)
    begun, _ = federate(tmp_path, small_values("fedproto", clients=2), closing=False)
    assert tp.load_client(begun[0]).facts["rounds"] == 2
    assert tp.load_client(begun[0]).classes == tuple(map(str, range(CLASSES)))


def test_a_device_alone_classifies_as_its_closing_evaluation_says(tmp_path: Path) -> None:
    values = {
        "data": {"name": "digits"}, "partition": {"num_clients": 3, "alpha": 10.0}, "models": ["small_cnn_a"],
        "prototypes": {"dim": 20, "cps_dim": 4}, "train": {"rounds": 1, "batch_size": 64}, "algorithms": ["anchors"],
    }  # fmt: skip
    share = {key: values[key] for key in ("data", "partition")}
    folder = write_join(tmp_path / "client", "small_cnn_a", {"share": share})
    *_, record = train_offline(folder, 1, parse_config(values))
    recorded = {rule: found for rule, found in record.clients[1].correct.items() if found is not None}
    assert "head" in recorded
    assert correct_by_rule(folder, 1) == recorded


def test_the_newest_of_several_federations_is_taken_and_another_can_be_named(
    federated: tuple[dict[int, Path], RoundRecord], tmp_path: Path
) -> None:
    state = federated[0][0] / "state" / TOKEN
    for day, token in enumerate(("a" * 32, "b" * 32), start=1):
        file = tmp_path / "state" / token / "client-0.safetensors"
        file.parent.mkdir(parents=True)
        file.write_bytes((state / "client-0.safetensors").read_bytes())
        os.utime(file, (day, day))
    assert tp.load_client(tmp_path).path.parent.name == "b" * 32
    assert tp.load_client(tmp_path / "state" / ("a" * 32)).path.parent.name == "a" * 32


def test_a_folder_without_such_a_network_is_told(
    tmp_path: Path, federated: tuple[dict[int, Path], RoundRecord]
) -> None:
    with pytest.raises(RunFolderError, match="is the folder of client 0, not 1"):
        tp.load_client(federated[0][0], 1)
    with pytest.raises(RunFolderError, match="holds no network yet: the client has not completed a round"):
        tp.load_client(write_join(tmp_path, "small_cnn_a", {"path": "data.npz"}))
    facts, tensors = load_sealed(tp.load_client(federated[0][0]).path)
    old = tmp_path / "client-0.safetensors"
    save_sealed(old, tensors, {name: facts[name] for name in ("client", "model", "parts")})
    with pytest.raises(RunFolderError, match="written by an earlier release"):
        tp.load_client(old)


@pytest.mark.flower
def test_after_a_federation_on_flower_each_device_classifies_as_the_records_say(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="the extra `flower`")
    from support_flower import small_federation

    federation = small_federation(tmp_path, small_values("tinyproto_fp"))
    federation.play()
    *_, closing = federation.records()
    for row, client in enumerate(closing["clients"]["id"]):
        (join,) = [file for file in tmp_path.rglob("join.json") if list(file.parent.glob(f"state/*/client-{client}.*"))]
        recorded = {rule: column[row] for rule, column in closing["clients"]["correct"].items()}
        assert correct_by_rule(join.parent, client) == recorded, json.dumps(closing)
