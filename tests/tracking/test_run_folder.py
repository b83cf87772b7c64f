from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from tinyproto.config import parse_config
from tinyproto.engine.measure import Cost
from tinyproto.engine.round import ClientRecord, RoundRecord
from tinyproto.errors import RunFolderError
from tinyproto.tracking.run_folder import RunFolder
from tinyproto.tracking.summary import RoundResult

RESOLVED = parse_config({"models": ["small_cnn_a"], "algorithms": ["fedproto"]}).resolved()
IDENTITY = {"algorithm": "fedproto", "label": "weak", "seed": 3}


def played(number: int = 1, seconds: float = 0.5) -> RoundResult:
    record = RoundRecord(
        round=number,
        closing=False,
        participants=(0, 2),
        accuracy={"head": 0.5, "global": None, "local": 0.25},
        client_mean={"head": 0.5, "global": None, "local": 0.25},
        loss={"cross_entropy": 1.5},
        traffic={"training": {"up": Cost(3, 12, 80), "down": Cost(0, 0, 40)}},
        clients={
            0: ClientRecord(
                None, dict.fromkeys(("head", "global", "local")), {"up": 0, "down": 0}, {"up": 30, "down": 20}
            ),
            2: ClientRecord(4, {"head": 2, "global": None, "local": 1}, {"up": 12, "down": 0}, {"up": 50, "down": 20}),
        },
    )
    return RoundResult(record, {"total": seconds})


def tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def a_run(path: Path) -> RunFolder:
    """A run folder with something in it."""
    folder = RunFolder.create(path, overwrite=False)
    folder.write_config(RESOLVED)
    folder.write_json("environment.json", {"tinyproto": "0.1.0"})
    folder.append_round(IDENTITY, played())
    folder.write_json("summary.json", {"schema_version": 1, "results": []})
    return folder


def test_a_new_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs" / "deep" / "mine", overwrite=False)
    assert folder.path == tmp_path / "runs" / "deep" / "mine"
    assert list(folder.path.iterdir()) == []


def test_an_existing_run_is_refused_with_the_ways_out_and_left_as_it_is(tmp_path: Path) -> None:
    path = a_run(tmp_path / "mine").path
    before = tree(path)
    with pytest.raises(RunFolderError, match=r"mine exists already.*--overwrite.*name=NEW or --runs DIR"):
        RunFolder.create(path, overwrite=False)
    assert tree(path) == before


@pytest.mark.parametrize(
    ("served", "verb"), [(True, "tinyproto serve '{}' --resume"), (False, "tinyproto resume '{}'")]
)
def test_a_refusal_names_the_verb_that_goes_on_with_what_is_there(served: bool, verb: str, tmp_path: Path) -> None:
    path = a_run(tmp_path / "my run").path  # to be pasted into a shell
    if served:
        (path / "serve.json").write_text("{}")
    with pytest.raises(RunFolderError, match=f"`{verb.format(path)}` to resume it"):
        RunFolder.create(path, overwrite=False)


def test_overwriting_a_run_leaves_nothing_of_it(tmp_path: Path) -> None:
    path = a_run(tmp_path / "mine").path
    RunFolder.create(path, overwrite=True)
    assert list(path.iterdir()) == []


def test_an_interrupted_run_can_be_overwritten(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "mine", overwrite=False)
    folder.write_config(RESOLVED)
    RunFolder.create(folder.path, overwrite=True)
    assert list(folder.path.iterdir()) == []


def test_an_empty_folder_may_be_used_if_told_to_overwrite(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert RunFolder.create(tmp_path / "mine", overwrite=True).path.is_dir()


@pytest.mark.parametrize(
    "files",
    [
        {"thesis.tex": "years of work"},
        {"summary.json": "{}", "notes/today.txt": "other"},
        {"config.yaml": "optimizer: adam\n", "thesis.tex": "years of work"},  # many projects have a config.yaml
        {"config.yaml": "optimizer: adam\n"},
    ],
)
@pytest.mark.parametrize("overwrite", [True, False])
def test_a_folder_that_is_no_run_is_never_deleted(tmp_path: Path, files: dict[str, str], overwrite: bool) -> None:
    project = tmp_path / "project"
    for name, text in files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    before = tree(project)
    with pytest.raises(RunFolderError, match="project"):
        RunFolder.create(project, overwrite=overwrite)
    assert tree(project) == before


def test_a_file_in_the_place_of_the_folder_is_never_deleted(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("a file")
    with pytest.raises(RunFolderError, match="mine is not a run folder"):
        RunFolder.create(tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine").read_text() == "a file"


def test_what_a_link_points_to_is_never_deleted(tmp_path: Path) -> None:
    path = a_run(tmp_path / "mine").path
    (tmp_path / "link").symlink_to(path)
    before = tree(path)
    with pytest.raises(RunFolderError, match="link"):
        RunFolder.create(tmp_path / "link", overwrite=True)
    assert tree(path) == before


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_folder_below_a_file_is_refused_with_the_path(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"cannot write .*file/mine"):
        RunFolder.create(tmp_path / "file" / "mine", overwrite=overwrite)


def test_the_config_comes_back_as_it_was_written_and_in_its_order(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "mine", overwrite=False)
    written = {"name": "mine", "algorithms": [{"name": "local", "label": "größer"}], "data": {"root": None}}
    folder.write_config(written)
    text = (folder.path / "config.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(text) == written
    assert list(yaml.safe_load(text)) == list(written)
    assert "größer" in text


def test_a_json_file_that_cannot_be_written_leaves_the_old_one_whole(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "mine")
    before = tree(folder.path)
    with pytest.raises(TypeError):
        folder.write_json("summary.json", {"results": [torch.zeros(1)]})
    assert tree(folder.path) == before


def test_records_and_clocks_go_to_different_files_one_line_each(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "mine", overwrite=False)
    for number in (1, 2):
        folder.append_round(IDENTITY, played(number))
    records = [json.loads(line) for line in (folder.path / "rounds.jsonl").read_text().splitlines()]
    timings = [json.loads(line) for line in (folder.path / "timings.jsonl").read_text().splitlines()]
    assert timings == [{**IDENTITY, "round": number, "seconds": {"total": 0.5}} for number in (1, 2)]
    assert [record["round"] for record in records] == [1, 2]
    assert records[0] == {
        **IDENTITY,
        "round": 1,
        "closing": False,
        "participants": [0, 2],
        "accuracy": {"head": 0.5, "global": None, "local": 0.25},
        "client_mean": {"head": 0.5, "global": None, "local": 0.25},
        "loss": {"cross_entropy": 1.5},
        "traffic": {
            "training": {
                "up": {"parameters": 3, "payload": 12, "wire": 80},
                "down": {"parameters": 0, "payload": 0, "wire": 40},
            }
        },
        "refused": {},
        "clients": {
            "id": [0, 2],
            "test_samples": [None, 4],
            "correct": {"head": [None, 2], "global": [None, None], "local": [None, 1]},
            "payload_bytes": {"up": [0, 12], "down": [0, 0]},
            "wire_bytes": {"up": [30, 50], "down": [20, 20]},
        },
    }


def test_a_slower_clock_leaves_the_records_byte_for_byte_equal(tmp_path: Path) -> None:
    fast, slow = (RunFolder.create(tmp_path / name, overwrite=False) for name in ("fast", "slow"))
    fast.append_round(IDENTITY, played(seconds=0.1))
    slow.append_round(IDENTITY, played(seconds=9.9))
    assert (fast.path / "rounds.jsonl").read_bytes() == (slow.path / "rounds.jsonl").read_bytes()
    assert (fast.path / "timings.jsonl").read_bytes() != (slow.path / "timings.jsonl").read_bytes()


def test_prototypes_come_back_as_they_were_written(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "mine", overwrite=False)
    values = torch.arange(6.0).reshape(2, 3).T  # a view that is not contiguous
    folder.write_prototypes({"fedproto/3/global/values": values})
    loaded = load_file(folder.path / "prototypes.safetensors")
    assert torch.equal(loaded["fedproto/3/global/values"], values)
    assert [file.name for file in folder.path.iterdir()] == ["prototypes.safetensors"]


def test_a_folder_in_which_only_the_first_write_was_begun_is_a_run_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".config.yaml.partial").write_text("schema")
    assert RunFolder.create(tmp_path / "mine", overwrite=True).path.is_dir()
    assert list((tmp_path / "mine").iterdir()) == []
