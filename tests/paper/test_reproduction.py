"""The command on a small paper: records as undisturbed runs leave them, whatever happened on the way."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paper import records_reader
from paper.matching import PaperCell
from paper.plan import Selection, plan
from paper.records_reader import Drawn, finished_cells
from paper.run import Reproduction, Status
from support_cli import environment
from support_reproduce import in_process, miniature, paper, use
from tinyproto import grid
from tinyproto.builder import Cell
from tinyproto.config import parse_config
from tinyproto.data.sources import SOURCES
from tinyproto.errors import RunFolderError
from tinyproto.experiment import Experiment
from tinyproto.grid.cell import run_cell
from tinyproto.report.runs import read_run
from tinyproto.tracking.lock import alone_in
from tinyproto.tracking.run_folder import RunFolder, lines_kept

NETS = """\
from pathlib import Path

import torch
from torch import nn

steps = 0


class Moody(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, dim))

    def forward(self, images):
        global steps
        if self.training and len(images) > 2:
            steps += 1
            if steps == 25 and not Path("good").exists():
                raise torch.OutOfMemoryError("no memory here") if Path("scarce").exists() else RuntimeError("bad mood")
        return self.net(images)


def make(proto_dim):
    return Moody(proto_dim)
"""
LONGER = 20
RECORDS = Path("paper") / "records"
CELLS = {"table1_small/fedproto-0", "table1_small/local-0", "table1_other/fedproto-0"}


def undisturbed(folder: Path, rounds: int) -> dict[str, bytes]:
    """The rounds of every cell of table1 with seed 0, played in turn by `tinyproto run`."""
    found: dict[str, bytes] = {}
    for config in miniature()[:2]:
        values = {**config.values, "seeds": [0], "train": {**config.values["train"], "rounds": rounds}}
        run = grid.run(Experiment(parse_config(values)), folder)
        found |= {f"{config.stem}/{one.result['label']}-0": one.lines("rounds.jsonl") for one in finished_cells(run)}
    return found


def recorded(cwd: Path, rounds: int | None = None) -> dict[str, bytes]:
    """The rounds of every record, by its place; without the mark of another number of rounds."""
    mark = "" if rounds is None else f"@{rounds}rounds"
    return {
        str(file.parent.relative_to(cwd / RECORDS)).replace(mark, ""): lines_kept(file.with_suffix(""))
        for file in (cwd / RECORDS).glob("*/*/rounds.jsonl.gz")
    }


def reproduce(cwd: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "support_reproduce", *arguments]
    paths = os.pathsep.join(
        [str(Path(__file__).parents[1]), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    )
    return subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(PYTHONPATH=paths)
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


def wait_for(what: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def rounds_played(cwd: Path) -> int:
    under_way = list((cwd / "runs").rglob("rounds.jsonl"))
    done = [file.with_suffix("") for file in (cwd / RECORDS).rglob("rounds.jsonl.gz")]
    with suppress(FileNotFoundError):  # a cell's folder goes when its record is there
        return sum(lines_kept(file).count(b"\n") for file in (*under_way, *done))
    return 0


def test_cells_of_several_configs_are_played_at_once_and_each_becomes_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, miniature())
    wanted = ("table1", "train.parallel_cells=2", "--seeds", "0", "--json")
    assert in_process(monkeypatch, tmp_path, *wanted) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert "table1: 3 cells, 3 to do" in said.err
    assert "[3/3] table1_other: FedProto, seed 0: 3 rounds" in said.err
    assert "python -m paper report paper/records" in said.err
    assert [cell["state"] for cell in found["cells"]] == ["done"] * 3
    assert {cell["folder"] for cell in found["cells"]} == {f"paper/records/{cell}" for cell in CELLS}
    assert [(table["config"], len(table["rows"])) for table in found["tables"]] == [
        ("table1_small", 2), ("table1_other", 1)
    ]  # fmt: skip
    assert recorded(tmp_path) == undisturbed(tmp_path / "alone", 3)
    facts = json.loads((tmp_path / RECORDS / "table1_other/fedproto-0/environment.json").read_text())
    assert (facts["parallel_cells"], facts["device"], facts["trainer"]) == (2, "cpu", "eager")
    assert not list((tmp_path / "runs").rglob("config.yaml"))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / RECORDS).rglob("*")}
    assert in_process(monkeypatch, tmp_path, *wanted) == 0
    assert "table1: 3 cells, 3 done" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / RECORDS).rglob("*")} == before


class Observed(grid.Observer):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, Any]] = []
        self.words: list[str] = []

    def told(self, words: str) -> None:
        self.words.append(words)

    def started(self, cell: Cell, done: int) -> None:
        self.events.append(("started", cell.title, done))

    def finished(self, cell: Cell, result: dict[str, Any]) -> None:
        self.events.append(("finished", cell.title, result["rounds"]))

    def failed(self, cell: Cell, reason: str) -> None:
        self.events.append(("failed", cell.title, reason))

    def skipped(self, cell: Cell, reason: str) -> None:
        self.events.append(("skipped", cell.title, reason))


def one_cell(tmp_path: Path, *overrides: str, **part: Any) -> tuple[Reproduction, PaperCell]:
    asked = Selection(seeds=[0], algorithms=["local"], **part)
    cells = plan("table1", asked, ["train.parallel_cells=2", *overrides])
    return Reproduction(cells, tmp_path / RECORDS, tmp_path / "runs"), cells[0]


def left(reproduction: Reproduction) -> list[Status]:
    return [one for one in reproduction.status() if one.state != "done"]


def test_a_cell_that_ended_before_its_record_was_written_is_recorded_without_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, miniature())
    reproduction, cell = one_cell(tmp_path)
    experiment, folder = Experiment(cell.parsed), RunFolder(reproduction.work / cell.place)
    folder.make()
    folder.write_config(cell.parsed.resolved())
    folder.write_json("environment.json", {})
    run_cell(experiment, experiment.cells[0], folder, grid.Observer(), experiment.loopback)
    assert [(one.state, one.rounds) for one in reproduction.status()] == [("begun", 3)]
    told = Observed()
    outcome = reproduction.run(left(reproduction), told)
    assert (outcome.recorded, outcome.failed, outcome.stopped) == ([cell], [], False)
    assert told.events == [
        ("started", "table1_small: Local, seed 0", 3), ("finished", "table1_small: Local, seed 0", 3)
    ]  # fmt: skip
    assert [one.state for one in reproduction.status()] == ["done"]
    assert not folder.path.exists()


def test_what_a_kill_left_of_a_recorded_cell_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, miniature())
    reproduction, cell = one_cell(tmp_path)
    remove = RunFolder.remove
    monkeypatch.setattr(RunFolder, "remove", lambda folder: None if folder.path.name == "local-0" else remove(folder))
    reproduction.run(left(reproduction)[:1], Observed())
    monkeypatch.setattr(RunFolder, "remove", remove)
    assert (reproduction.work / cell.place / "config.yaml").is_file()
    again, _ = one_cell(tmp_path)
    again.run(again.status(), Observed())
    assert not (reproduction.work / cell.place).exists()


def test_a_folder_that_was_begun_with_another_config_is_left_alone_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, miniature())
    reproduction, cell = one_cell(tmp_path)
    folder = RunFolder(reproduction.work / cell.place)
    folder.make()
    folder.write_config({**cell.parsed.resolved(), "partition": {"alpha": 9.0}})
    outcome = reproduction.run(left(reproduction), Observed())
    ((failed, reason),) = outcome.failed
    assert failed == cell
    assert reason.startswith(f"{folder.path} was started with another config")
    assert (folder.path / "config.yaml").is_file()


def test_a_cell_under_way_goes_on_with_what_it_was_begun_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, miniature())
    reproduction, cell = one_cell(tmp_path)
    folder = RunFolder(reproduction.work / cell.place)
    folder.make()
    folder.write_config(cell.parsed.resolved())
    again, _ = one_cell(tmp_path, "checkpoint.every_seconds=7", "train.client_memory=3GB", root="elsewhere")
    told = Observed()
    outcome = again.run(left(again), told)
    assert [one.title for one in outcome.recorded] == ["Local"]
    (done,) = again.status()
    assert done.finished is not None
    config = done.finished.config
    assert (config["checkpoint"]["every_seconds"], config["train"]["client_memory"]) == (0.0, "3GB")
    assert any("Local, seed 0" in words and "checkpoint.every_seconds=0.0" in words for words in told.words)


def test_cells_played_to_be_drawn_keep_their_prototypes_whatever_their_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, miniature())
    monkeypatch.setattr(records_reader, "DRAWN", {"digits": Drawn((3,), 1)})
    cells = plan("table1", Selection(seeds=[1], algorithms=["fedproto"]))[:1]
    reproduction = Reproduction(cells, tmp_path / RECORDS, tmp_path / "runs", drawn=True)
    reproduction.run(left(reproduction), Observed())
    (done,) = reproduction.status()
    assert done.state == "done"
    values = read_run(done.folder).prototypes("fedproto", 1)
    assert values is not None
    assert values.local_present[1].any()
    assert not np.delete(values.local_present, 3, axis=1)[[0, 2]].any()


def test_no_second_one_plays_cells_in_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")
    use(monkeypatch, miniature())
    reproduction, _ = one_cell(tmp_path)
    (tmp_path / "runs" / "paper").mkdir(parents=True)
    with (tmp_path / "runs" / "paper" / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(RunFolderError, match=r"another process .*runs/paper"):
            reproduction.run(left(reproduction), Observed())


@pytest.mark.parametrize("shared", [RECORDS, Path("runs") / "paper"])
def test_a_cell_that_another_process_is_at_is_left_to_it_and_the_others_are_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: Path
) -> None:
    """Another with the same records has other --runs; one that resumes the cell's folder has no records."""
    use(monkeypatch, miniature())
    cells = plan("table1", Selection(seeds=[0], algorithms=["local", "fedproto"]))[:2]
    reproduction = Reproduction(cells, tmp_path / RECORDS, tmp_path / "runs")
    taken = tmp_path / shared / cells[0].place
    observed = Observed()
    with alone_in(taken):
        outcome = reproduction.run(left(reproduction), observed)
    assert (outcome.left, outcome.failed, outcome.recorded) == ([cells[0]], [], [cells[1]])
    assert observed.events[0][0::2] == ("skipped", "another process is running it")
    again = reproduction.run(left(reproduction), Observed())
    assert [cell.place for cell in again.recorded] == [cells[0].place]
    assert not list(tmp_path.rglob("*lock"))


def test_a_cell_that_another_process_recorded_meanwhile_is_not_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, miniature())
    ours, cell = one_cell(tmp_path)
    then = left(ours)
    other = Reproduction([cell], tmp_path / RECORDS, tmp_path / "other")
    assert other.run(left(other), Observed()).recorded == [cell]
    observed = Observed()
    outcome = ours.run(then, observed)
    assert (outcome.left, outcome.failed, outcome.recorded, outcome.stopped) == ([], [], [], False)
    assert [event[0::2] for event in observed.events] == [("skipped", "another process has recorded it")]
    assert not list(tmp_path.rglob("*lock"))


def test_a_record_of_fewer_rounds_in_its_place_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is named by the experiment's rounds, so this takes an older definition of it."""
    use(monkeypatch, miniature())
    reproduction, cell = one_cell(tmp_path)
    assert reproduction.run(left(reproduction), Observed()).recorded == [cell]
    assert reproduction.is_recorded(cell)
    summary = reproduction.records / cell.place / "summary.json"
    told = json.loads(summary.read_text())
    told["results"][0]["rounds"] -= 1
    summary.write_text(json.dumps(told))
    assert not reproduction.is_recorded(cell)


@pytest.mark.slow
def test_the_same_command_twice_shares_the_cells(tmp_path: Path) -> None:
    """With folders of their own for what is under way; together they play every cell once, to the same records."""
    wanted = ("table1", "--json", "train.parallel_cells=1")
    with alone_in(tmp_path / RECORDS / "table1_small" / "local-1"):  # a third one's
        both = [reproduce(tmp_path, *wanted, "--runs", name) for name in ("one", "other")]
        found = [ended(process) for process in both]
    assert [status for status, _, _ in found] == [0, 0], found
    told = [json.loads(output) for _, output, _ in found]
    assert not any(one["failed"] for one in told)
    for one in told:
        assert ("table1_small", "local", 1) in [(cell["config"], cell["label"], cell["seed"]) for cell in one["left"]]
    assert recorded(tmp_path).items() >= undisturbed(tmp_path / "alone", 3).items()
    played = [re.findall(r"(table1_\w+: \w+, seed \d): 3 rounds", errors) for _, _, errors in found]
    assert len(set(played[0] + played[1])) == len(played[0] + played[1]) == 5
    assert not list(tmp_path.rglob("*lock"))


def stops(*_: object) -> None:
    raise KeyboardInterrupt


def killed_before_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Reproduction, PaperCell]:
    """A cell that was played to its end, and what plays it."""
    use(monkeypatch, miniature())
    reproduction, cell = one_cell(tmp_path)
    with monkeypatch.context() as then:
        then.setattr(Reproduction, "record", stops)
        with pytest.raises(KeyboardInterrupt):
            reproduction.run(left(reproduction), Observed())
    return reproduction, cell


def test_a_finished_cell_becomes_no_record_while_another_process_is_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reproduction, cell = killed_before_its_record(tmp_path, monkeypatch)
    assert not list(tmp_path.rglob("*lock"))
    with alone_in(reproduction.records / cell.place):
        outcome = reproduction.run(left(reproduction), Observed())
    assert (outcome.left, outcome.failed) == ([cell], [])
    assert not (reproduction.records / cell.place).exists()
    assert reproduction.run(left(reproduction), Observed()).recorded == [cell]


def test_a_finished_cell_becomes_no_record_where_another_process_recorded_it_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reproduction, cell = killed_before_its_record(tmp_path, monkeypatch)
    before = left(reproduction)
    other = Reproduction([cell], tmp_path / RECORDS, tmp_path / "other")
    assert other.run(left(other), Observed()).recorded == [cell]
    assert reproduction.run(before, Observed()).recorded == []
    assert left(reproduction) == []


def test_a_dataset_that_is_not_there_fails_its_cells_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = paper("table1", "table1_absent", ["local", "fedproto"], data={"name": "cifar10"}, seeds=[0])
    present = paper("table1", "table1_present", ["local"], seeds=[0])
    use(monkeypatch, [absent, present])
    assert in_process(monkeypatch, tmp_path, "table1", "--data", "nowhere") == 2
    said = capsys.readouterr()
    (sentence,) = said.err.splitlines()
    assert sentence.startswith(
        "python -m paper: error: 2 cells failed (table1_absent: FedProto, seed 0, table1_absent: Local"
    )
    assert f"tinyproto data fetch cifar10 --root {tmp_path / 'nowhere'}" in sentence
    assert sentence.endswith("; the same command tries again")
    assert list(recorded(tmp_path)) == ["table1_present/local-0"]


def test_a_part_of_a_dataset_is_not_taken_for_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, miniature())
    load = SOURCES["digits"].load
    part = replace(SOURCES["digits"], read=lambda request: replace(load(request), name="digits (5 of 10 classes)"))
    monkeypatch.setitem(SOURCES, "digits", part)
    reproduction, _ = one_cell(tmp_path)
    outcome = reproduction.run(left(reproduction), Observed())
    reasons = {reason for _, reason in outcome.failed}
    assert reasons == {"the cells need all of digits, but data contains digits (5 of 10 classes)"}


def test_first_classes_are_played_beside_the_whole_dataset_and_recorded_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = paper("table1", "table1_whole", ["local"], seeds=[0])
    part = paper("table1", "table1_part", ["local"], data={"first_classes": 4}, seeds=[0])
    use(monkeypatch, [whole, part])
    assert in_process(monkeypatch, tmp_path, "table1", "--json") == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [(cell["config"], cell["dataset"], cell["state"]) for cell in cells] == [
        ("table1_whole", "digits", "done"), ("table1_part", "digits, first 4 classes", "done")
    ]  # fmt: skip
    (of_part,) = finished_cells(tmp_path / RECORDS / "table1_part" / "local-0")
    assert of_part.result["dataset"] == "digits, first 4 classes"
    assert of_part.config["data"]["first_classes"] == 4
    assert recorded(tmp_path)["table1_part/local-0"] != recorded(tmp_path)["table1_whole/local-0"]


def test_other_classes_are_not_played_as_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, [paper("table1", "table1_part", ["local"], data={"first_classes": 4}, seeds=[0])])
    load = SOURCES["digits"].load
    other = replace(SOURCES["digits"], read=lambda request: replace(load(request), name="digits (4 of 10 classes)"))
    monkeypatch.setitem(SOURCES, "digits", other)
    reproduction = Reproduction(plan("table1", Selection()), tmp_path / RECORDS, tmp_path / "runs")
    outcome = reproduction.run(left(reproduction), Observed())
    assert {reason for _, reason in outcome.failed} == {
        "the cells need digits, first 4 classes, but data contains digits (4 of 10 classes)"
    }


def test_no_minutes_play_nothing_and_say_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, miniature())
    assert in_process(monkeypatch, tmp_path, "table1", "--seeds", "0", "--max-minutes", "0") == 0
    assert "table1: 3 cells, 3 to do; the same command resumes" in capsys.readouterr().out
    assert recorded(tmp_path) == {}


# Through the command line, with kills and mishaps


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return undisturbed(tmp_path_factory.mktemp("longer"), LONGER)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "moment"),
    [
        ("kill", 1),
        ("kill", 12),
        ("kill", 40),
        ("interrupt", 12),
        ("terminate", 12),
        ("two interrupts", 12),
        ("minutes", 0),
    ],
)
def test_cut_off_in_the_middle_it_goes_on_to_the_same_bytes(
    tmp_path: Path, longer: dict[str, bytes], how: str, moment: int
) -> None:
    part = ("table1", "--seeds", "0", "--rounds", str(LONGER), "train.parallel_cells=3")
    process = reproduce(tmp_path, *part, *(("--max-minutes", "0.06") if how == "minutes" else ()))
    if how != "minutes":
        wait_for(lambda: rounds_played(tmp_path) >= moment)
        process.send_signal({"kill": signal.SIGKILL, "terminate": signal.SIGTERM}.get(how, signal.SIGINT))
        if how == "two interrupts":
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
    status, output, errors = ended(process)
    assert status == {"kill": -9, "minutes": 0, "terminate": 143}.get(how, 130)
    if how in ("interrupt", "terminate"):
        assert errors.startswith("python -m paper: interrupted; 3 cells, ")
        assert errors.endswith("; the same command resumes\n")
    if how == "minutes":
        assert errors == ""
        assert "; the same command resumes" in output
    listed = json.loads(ended(reproduce(tmp_path, *part, "--list", "--json"))[1])
    assert [cell["completed"] for cell in listed if cell["state"] == "begun"]
    status, output, errors = ended(reproduce(tmp_path, *part))
    assert (status, errors) == (0, "")
    assert recorded(tmp_path, LONGER) == longer
    assert not list((tmp_path / "runs").rglob("config.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("memory", "words"),
    [(False, "RuntimeError: bad mood"), (True, "out of memory although nothing ran beside it")],
)
def test_a_cell_that_fails_is_named_and_the_others_are_recorded(tmp_path: Path, memory: bool, words: str) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    if memory:
        (tmp_path / "scarce").touch()
    part = ("table1", "--seeds", "0", "--json", f"train.parallel_cells={1 if memory else 3}")
    status, output, errors = ended(reproduce(tmp_path, *part))
    assert status == 2
    sentence = errors.splitlines()[-1]
    assert sentence.startswith("python -m paper: error: 2 cells failed (table1_moody: ")
    assert words in sentence
    told = json.loads(output)
    assert [(cell["config"], cell["label"]) for cell in told["failed"]] == [
        ("table1_moody", "fedproto"), ("table1_moody", "local")
    ]  # fmt: skip
    assert recorded(tmp_path) == undisturbed(tmp_path / "alone", 3)
    (tmp_path / "good").touch()
    status, _, _ = ended(reproduce(tmp_path, *part))
    assert status == 0
    assert len(recorded(tmp_path)) == 5


@pytest.mark.slow
def test_what_tinyproto_run_has_played_is_not_played_again(tmp_path: Path) -> None:
    config = miniature()[0]
    (tmp_path / "mine.yaml").write_text(config.text())
    command = [sys.executable, "-m", "tinyproto.cli.main", "run", "mine.yaml", "name=mine", "--runs", "paper/records"]
    subprocess.run([*command, "train.workers=1"], cwd=tmp_path, env=environment(), check=True, capture_output=True)
    status, output, _ = ended(reproduce(tmp_path, "table1"))
    assert status == 0
    assert "table1: 6 cells, 4 done, 2 to do" in output
    assert recorded(tmp_path).keys() == {"table1_other/fedproto-0", "table1_other/fedproto-1"}
    status, output, _ = ended(reproduce(tmp_path, "--import", "paper/records/mine"))
    assert status == 0
    assert output.count("written to") == 4
    assert len(recorded(tmp_path)) == 6
