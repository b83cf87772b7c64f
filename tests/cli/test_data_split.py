"""`tinyproto data split`: who holds what."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support_cli import called, in_process
from support_data import dirichlet_shares


@pytest.fixture
def labels_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stand-ins for CIFAR, whose partition needs labels only."""
    from tinyproto.data import from_arrays
    from tinyproto.data.sources import SOURCES, Source

    def put(name: str, num_classes: int) -> None:
        labels = np.repeat(np.arange(num_classes), 60000 // num_classes)
        found = from_arrays(np.zeros((len(labels), 1, 1), np.uint8), labels, name=name)
        monkeypatch.setitem(SOURCES, name, Source(lambda _: found, "here"))

    return put


@pytest.mark.parametrize(
    ("name", "classes", "digest", "train", "test"),
    [
        ("cifar10", 10, "a86e29383efd0f0dbebebd2180e92e79", 44995, 15005),
        ("cifar100", 100, "e0bb9e3cf0fed1349290d0724da70618", 44992, 15008),
    ],
)
def test_the_published_partitions_come_out_as_json(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], labels_of: Any,
    name: str, classes: int, digest: str, train: int, test: int,
) -> None:  # fmt: skip
    labels_of(name, classes)
    asked = (f"data.name={name}", "partition={num_clients: 20, alpha: 0.1}")
    assert in_process(monkeypatch, project, "data", "split", "trial.yaml", *asked, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["counts", "train", "test", "class_names"]
    assert hashlib.md5(np.array(found["counts"]).astype("<i8").tobytes()).hexdigest() == digest
    assert (sum(found["train"]), sum(found["test"])) == (train, test)
    assert [t + e for t, e in zip(found["train"], found["test"], strict=True)] == [sum(row) for row in found["counts"]]


def test_the_command_prints_nothing_but_the_json(project: Path) -> None:
    done = called("data", "split", "trial.yaml", "partition.num_clients=4", "--json", cwd=project)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (len(found["counts"]), len(found["counts"][0]), len(found["train"]), len(found["test"])) == (4, 10, 4, 4)


def test_the_table_has_a_row_per_client_and_a_column_per_class(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_process(monkeypatch, project, "data", "split", "trial.yaml", "partition.kind=iid") == 0
    out = capsys.readouterr().out
    assert re.search("^digits: .*iid, 5 clients, 10 classes, 1 797 samples", out)
    rows = [line.split() for line in out.splitlines() if line.strip()[:1].isdigit()]
    assert [row[0] for row in rows] == ["0", "1", "2", "3", "4"]
    assert rows[0][1:7] == ["360", "270", "90", "10", "of", "10"]
    assert sum(int(count) for count in rows[0][-10:]) == 360


def test_with_many_classes_the_table_says_how_many_a_client_holds(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], labels_of: Any
) -> None:
    labels_of("cifar100", 100)
    assert in_process(monkeypatch, project, "data", "split", "trial.yaml", "data.name=cifar100") == 0
    out = capsys.readouterr().out
    shares = dirichlet_shares(np.repeat(np.arange(100), 600), 5, 0.3, seed=1, min_samples=20)
    assert f"{len(shares[2].train):,}".replace(",", " ") in out
    assert "of 100" in out
    assert max(len(line) for line in out.splitlines()[1:]) < 80


def test_samples_that_a_fixed_split_leaves_out_are_told(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "split.json").write_text(json.dumps({"clients": [{"train": [0, 1, 2], "test": [3]}, {"train": [5]}]}))
    fixed = ("partition.kind=file", "partition.file=split.json")
    assert in_process(monkeypatch, project, "data", "split", "trial.yaml", *fixed) == 0
    assert "1 792 of 1 797 samples" in capsys.readouterr().out


def test_a_run_on_a_fixed_split_works(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clients = [{"train": list(range(0, 40)), "test": list(range(40, 60))}, {"train": list(range(100, 150))}]
    (project / "split.json").write_text(json.dumps({"clients": clients}))
    short = ("train.rounds=1", "seeds=[0]", "algorithms=[fedproto]", "partition={kind: file, file: split.json}")
    assert in_process(monkeypatch, project, "run", "trial.yaml", *short) == 0
    assert "2 clients" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing.yaml"], "nothing.yaml"),
        (["trial.yaml", "partition.kind=pathological"], "partition.classes_per_client"),
        (["trial.yaml", "data={name: cifar10, root: nowhere}"], "tinyproto data fetch cifar10 --root /"),
    ],
)
def test_what_cannot_be_shown_is_one_sentence_and_status_2(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert in_process(monkeypatch, project, "data", "split", *arguments, "--json") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert len(captured.err.splitlines()) == 1
