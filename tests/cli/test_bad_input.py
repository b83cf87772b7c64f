"""User errors: one line, exit status 2, and no file left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from support_cli import CONFIG, GoodRun, called, command, environment, in_process, jsonl, tree


@dataclass(frozen=True)
class Bad:
    """A user error, and the facts that its one line names."""

    name: str
    says: Sequence[str]
    arguments: Sequence[str] = ("trial.yaml",)
    files: Mapping[str, str] = field(default_factory=dict)


BAD = [
    Bad("an unknown key", ["'train.round'", "'train.rounds'"], ["trial.yaml", "train.round=3"]),
    Bad(
        "an unknown algorithm", ["'fedprotto'", "'fedproto'"],
        ["trial.yaml", "algorithms=[fedprotto]"],
    ),
    Bad("an unknown preset", ["'sond'", "'sound'"], ["trial.yaml", "preset=sond"]),
    Bad(
        "a CPS dimension above the prototype dimension", ["prototypes.cps_dim (21)", "prototypes.dim (20)"],
        ["trial.yaml", "prototypes.cps_dim=21"],
    ),
    Bad(
        "more clients than samples", ["5000 clients", "1797", "partition.num_clients"],
        ["trial.yaml", "partition.num_clients=5000", "partition.min_samples=1"],
    ),
    Bad(
        "a model that does not fit", ["nets:too_wide", "prototypes.dim", "(2, 21)", "(2, 20)"],
        ["trial.yaml", "models=[small_cnn_a, nets:too_wide]"],
    ),
    Bad("a missing config file", ["nothing.yaml"], ["nothing.yaml"]),
    Bad("a config that is not YAML", ["trial.yaml, line 2", "YAML"], files={"trial.yaml": "a: [1\nb: 2\n"}),
    Bad(
        "a file in the place of the folder of runs", ["--runs: trial.yaml is a file", "folder"],
        ["trial.yaml", "--runs", "trial.yaml/below"],
    ),
    Bad("a wrong type", ["command line: train.rounds", "integer", "'many'"], ["trial.yaml", "train.rounds=many"]),
    Bad("an override without =", ["'train.rounds'", "key=value"], ["trial.yaml", "train.rounds"]),
]  # fmt: skip

MORE_BAD = [
    Bad(
        "an unknown key in the file", ["'modles'", "'models'"],
        files={"trial.yaml": CONFIG.replace("models", "modles")},
    ),
    Bad("a model that does not exist", ["'nets:flatt'", "'flat'"], ["trial.yaml", "models=[nets:flatt]"]),
    Bad("a config without keys", ["trial.yaml"], files={"trial.yaml": "just words\n"}),
    Bad("a preset of a wrong type", ["preset"], ["trial.yaml", "preset=[sound]"]),
    Bad("a module that is nowhere", ["'nits'", "current folder"], ["trial.yaml", "models=[nits:flat]"]),
    Bad("an unknown dataset", ["'digit'", "'digits'"], ["trial.yaml", "data.name=digit"]),
    *(
        Bad(
            f"first classes that are {count}", ["data.first_classes", "2", str(count)],
            ["trial.yaml", f"data.first_classes={count}"],
        )
        for count in (-1, 0, 1)
    ),
    Bad(
        "more first classes than there are", ["first_classes", "11", "digits", "10 classes"],
        ["trial.yaml", "data.first_classes=11"],
    ),
    Bad(
        "more first classes than a file has", ["data.first_classes", "3", "4"],
        ["trial.yaml", "data.name=image_folder", "data.root=pictures", "data.first_classes=4"],
        files={f"pictures/{name}/a.png": "" for name in "abc"},
    ),
    Bad(
        "masks that do not fit", ["algorithm tinyproto_ft", "cps_dim", "block"],
        ["trial.yaml", "prototypes.masks=blocks", "prototypes.cps_dim=3"],
    ),
    Bad(
        "a model whose own error has several lines", ["nets:talkative", "several", "reasons"],
        ["trial.yaml", "models=[nets:talkative]"],
    ),
]  # fmt: skip


def assert_refused(bad: Bad, project: Path, refuse: Callable[[], tuple[int, str]]) -> None:
    """Assert status 2, one line with the facts, and an unchanged folder."""
    for name, text in bad.files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    before = tree(project)
    status, stderr = refuse()
    assert status == 2
    assert len(stderr.splitlines()) == 1, stderr
    assert stderr.startswith("tinyproto: error: ")
    assert "Traceback" not in stderr
    assert [text for text in bad.says if text not in stderr] == []
    assert tree(project) == before
    assert not (project / "runs").exists()


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_bad_input_is_one_line_and_status_2_and_leaves_nothing(project: Path, bad: Bad) -> None:
    def refuse() -> tuple[int, str]:
        run = command if bad is BAD[0] else called
        done = run("run", *bad.arguments, cwd=project, PYTHONDONTWRITEBYTECODE="1")
        return done.returncode, done.stderr

    assert_refused(bad, project, refuse)


@pytest.mark.parametrize("bad", MORE_BAD, ids=lambda bad: bad.name)
def test_other_bad_input_is_one_line_and_status_2_too(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bad: Bad
) -> None:
    def refuse() -> tuple[int, str]:
        return in_process(monkeypatch, project, "run", *bad.arguments), capsys.readouterr().err

    assert_refused(bad, project, refuse)


@pytest.mark.parametrize("device", ["meta", "mps", "gpu", "cuda:99"])
def test_a_device_that_cannot_be_used_is_refused_before_a_run_folder_exists(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], device: str
) -> None:
    if device == "mps" and torch.backends.mps.is_available():
        pytest.skip("this machine has one")
    assert in_process(monkeypatch, project, "run", "trial.yaml", f"train.device={device}", "seeds=[0]") == 2
    assert "train.device" in capsys.readouterr().err
    assert not (project / "runs").exists()


def test_an_existing_run_folder_is_refused_and_kept(good: GoodRun) -> None:
    before = tree(good.folder)
    done = called("run", "trial.yaml", cwd=good.cwd)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "runs/trial" in done.stderr
    assert "--overwrite" in done.stderr
    assert tree(good.folder) == before


def test_a_bad_config_does_not_cost_the_run_it_would_overwrite(
    good: GoodRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tree(good.folder)
    arguments = ("run", "trial.yaml", "models=[nets:too_wide]", "--overwrite")
    assert in_process(monkeypatch, good.cwd, *arguments) == 2
    assert tree(good.folder) == before


def test_overwrite_replaces_a_run(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ("run", "trial.yaml", "seeds=[0]", "train.rounds=1")
    assert in_process(monkeypatch, project, *short, "algorithms=[fedproto]") == 0
    assert in_process(monkeypatch, project, *short, "algorithms=[local]", "--overwrite") == 0
    results = json.loads((project / "runs" / "trial" / "summary.json").read_text())["results"]
    assert [result["algorithm"] for result in results] == ["local"]
    assert len(jsonl(project / "runs" / "trial" / "rounds.jsonl")) == 2


@pytest.mark.parametrize("files", [("thesis.tex",), ("thesis.tex", "config.yaml")])
def test_a_folder_that_is_no_run_is_never_deleted(project: Path, files: tuple[str, ...]) -> None:
    folder = project / "runs" / "trial"
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).write_text("years: of work\n")
    done = called("run", "trial.yaml", "algorithms=[local]", "seeds=[0]", "--overwrite", cwd=project)
    assert sorted(path.name for path in folder.iterdir()) == sorted(files)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "runs/trial" in done.stderr


def test_no_name_of_a_run_reaches_out_of_the_runs_folder(project: Path) -> None:
    (project / "trial.yaml").rename(project / "config.yaml")
    (project / "runs").mkdir()
    before = tree(project)
    arguments = ("config.yaml", "name=..", "algorithms=[local]", "seeds=[0]", "--overwrite")
    done = called("run", *arguments, cwd=project, PYTHONDONTWRITEBYTECODE="1")
    assert tree(project) == before  # or the user's whole folder is gone
    assert done.returncode == 2
    assert "name" in done.stderr


def test_an_interruption_before_the_first_round_has_its_status_and_no_traceback(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tinyproto.cli.run.load_config", interrupted)
    assert in_process(monkeypatch, project, "run", "trial.yaml") == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("verb", "path", "says"),
    [
        ("resume", "nothing", "nothing is not a run folder: it does not exist"),
        ("resume", "trial.yaml", "trial.yaml is not a run folder: it is a file"),
        ("report", "empty", "empty is not a run folder: it has no config.yaml"),
        ("report", "mine", "mine is not a run folder: it does not exist; did you mean runs/mine?"),
    ],
)
def test_a_path_without_a_run_is_refused_with_the_run_that_was_meant(
    project: Path, verb: str, path: str, says: str
) -> None:
    for folder in ("empty", "runs/mine"):
        (project / folder).mkdir(parents=True)
    (project / "runs" / "mine" / "config.yaml").touch()
    done = called(verb, path, cwd=project)
    assert (done.returncode, done.stderr) == (2, f"tinyproto: error: {says}\n")


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="/dev/full is Linux's")
@pytest.mark.parametrize("arguments", [("--version",), ("run", "trial.yaml", "algorithms=[local]", "seeds=[0]")])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_to_a_full_disk_is_one_line(project: Path, arguments: tuple[str, ...], unbuffered: str) -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tinyproto", *arguments], cwd=project, stdout=full, stderr=subprocess.PIPE,
            env=environment(PYTHONUNBUFFERED=unbuffered), text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "tinyproto: error: cannot write to standard output: No space left on device\n"


def test_a_real_federation_is_not_resumed_by_simulating_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs" / "trial"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "serve.json").write_text("{}")
    before = tree(tmp_path)
    assert in_process(monkeypatch, tmp_path, "resume", "runs/trial") == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "tinyproto serve runs/trial --resume" in said
    assert tree(tmp_path) == before
