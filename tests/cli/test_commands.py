"""The command line as a user meets it: what it prints, what it leaves behind, and with which status it ends."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

import tinyproto
from tinyproto.cli.main import main

CLIENTS, ROUNDS, DIM, CPS_DIM, CLASSES = 5, 2, 20, 4, 10
CONFIG = """\
name: trial
partition: {num_clients: 5, alpha: 0.3, min_samples: 20}
models: [nets:flat, small_cnn_c]
prototypes: {dim: 20, cps_dim: 4}
train: {rounds: 2, batch_size: 64}
algorithms: [local, fedproto, {name: tinyproto_ft, server_epochs: 2}]
seeds: [0, 1]
"""
NETS = """\
from torch import nn


def flat(proto_dim):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, proto_dim), nn.ReLU())


def too_wide(proto_dim):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, proto_dim + 1))


def talkative():
    raise RuntimeError("several\\nlines of\\nreasons")
"""
RUN_FILES = {
    "config.yaml", "environment.json", "rounds.jsonl", "timings.jsonl", "prototypes.safetensors", "summary.json",
}  # fmt: skip
CELLS = [(name, seed) for seed in (0, 1) for name in ("local", "fedproto", "tinyproto_ft")]


def environment(**more: str) -> dict[str, str]:
    """Ours, less what makes rich and typer believe that they write to a terminal."""
    unwanted = {"FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "CLICOLOR_FORCE", "PYTHONIOENCODING"}
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**kept, "COLUMNS": "120", "PYTHONUTF8": "1", **more}


def command(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tinyproto.cli.main", *arguments],
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=120,
        check=False,
    )


def in_process(monkeypatch: pytest.MonkeyPatch, cwd: Path, *arguments: str) -> int:
    """The same entry point in this process, which saves importing torch again; its exit status."""
    monkeypatch.chdir(cwd)
    monkeypatch.setattr(sys, "argv", ["tinyproto", *arguments])
    monkeypatch.setattr(sys, "path", [str(cwd), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    with pytest.raises(SystemExit) as ended:
        main()
    return 0 if ended.value.code is None else int(ended.value.code)


def write_project(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trial.yaml").write_text(CONFIG)
    (folder / "nets.py").write_text(NETS)
    return folder


def tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's folder: a config and a module with networks."""
    return write_project(tmp_path / "project")


@dataclass(frozen=True)
class GoodRun:
    cwd: Path
    folder: Path
    stdout: str

    @property
    def results(self) -> list[dict[str, Any]]:
        summary = json.loads((self.folder / "summary.json").read_text())
        assert summary["schema_version"] == 1
        results: list[dict[str, Any]] = summary["results"]
        return results


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> GoodRun:
    cwd = write_project(tmp_path_factory.mktemp("good"))
    done = command("run", "trial.yaml", cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    return GoodRun(cwd, cwd / "runs" / "trial", done.stdout)


# A good run


def test_a_run_leaves_every_file_of_a_run_folder_and_no_scraps(good: GoodRun) -> None:
    names = {path.name for path in good.folder.iterdir()}
    assert names >= RUN_FILES
    assert not [name for name in names if name.startswith(".")]


def test_the_grid_is_every_algorithm_with_every_seed(good: GoodRun) -> None:
    assert [(result["algorithm"], result["seed"]) for result in good.results] == CELLS


def test_every_result_has_the_fields_of_the_summary(good: GoodRun) -> None:
    rules = {"head", "global", "local"}
    for result in good.results:
        assert result["dataset"] == "digits"
        assert (result["rounds"], result["num_clients"], result["preset"]) == (ROUNDS, CLIENTS, "sound")
        assert set(result["accuracy"]) == {"best", "last", "last10", "client_mean"}
        assert all(set(by_rule) == rules for by_rule in result["accuracy"].values())
        assert set(result["payload_bytes_per_round"]) == set(result["wire_bytes_per_round"]) == {"up", "down"}
        assert result["socket_bytes_per_round"] is None
        assert set(result["seconds_per_round"]) == {"total", "train", "prototypes", "server", "evaluate"}
        assert 0 < result["seconds_per_round"]["train"] <= result["seconds_per_round"]["total"]
        assert result["peak_memory_bytes"] > 10_000_000
        known = [value for by_rule in result["accuracy"].values() for value in by_rule.values() if value is not None]
        assert all(0.0 <= value <= 1.0 for value in known)


def test_only_local_training_has_no_global_rule(good: GoodRun) -> None:
    for result in good.results:
        for by_rule in result["accuracy"].values():
            assert (by_rule["global"] is None) == (result["algorithm"] == "local")
            assert by_rule["head"] is not None
            assert by_rule["local"] is not None


def test_parameters_and_bytes_follow_from_the_rows_that_clients_hold(good: GoodRun) -> None:
    prototypes = load_file(good.folder / "prototypes.safetensors")
    for result in good.results:
        present = prototypes[f"{result['algorithm']}/{result['seed']}/local/present"]
        assert present.shape == (CLIENTS, CLASSES)
        width = {"local": 0, "fedproto": DIM, "tinyproto_ft": CPS_DIM}[result["algorithm"]]
        up, down = int(present.sum()) * width, CLIENTS * CLASSES * width
        assert result["params_per_round"] == up + down
        assert result["payload_bytes_per_round"] == {"up": 4 * up, "down": 4 * down}
        assert result["wire_bytes_per_round"]["up"] > 4 * up
        assert result["wire_bytes_per_round"]["down"] > 4 * down
        assert result["params_per_round_formula"] >= result["params_per_round"]


def test_the_formula_counts_classes_over_train_and_test(good: GoodRun) -> None:
    # Σ_i (K_i + K)·w for both methods, so the ratio is that of the widths.
    formulas = {result["algorithm"]: result["params_per_round_formula"] for result in good.results}
    assert formulas["local"] == 0
    assert formulas["fedproto"] * CPS_DIM == formulas["tinyproto_ft"] * DIM
    assert formulas["fedproto"] % DIM == 0
    assert CLIENTS * (CLASSES + 1) <= formulas["fedproto"] // DIM <= CLIENTS * 2 * CLASSES


def test_rounds_give_one_record_each_and_a_closing_one(good: GoodRun) -> None:
    records = jsonl(good.folder / "rounds.jsonl")
    expected = [(name, seed, number) for name, seed in CELLS for number in range(1, ROUNDS + 2)]
    assert [(record["algorithm"], record["seed"], record["round"]) for record in records] == expected
    assert [record["closing"] for record in records] == [False, False, True] * len(CELLS)
    for record in records:
        no_prototypes_yet = record["round"] == 1
        assert (record["accuracy"]["local"] is None) == no_prototypes_yet
        assert record["accuracy"]["head"] is not None


def test_an_accuracy_is_correct_samples_over_test_samples_of_all_clients(good: GoodRun) -> None:
    for record in jsonl(good.folder / "rounds.jsonl"):
        clients = record["clients"]
        assert clients["id"] == list(range(CLIENTS))
        for rule, value in record["accuracy"].items():
            if value is not None:
                assert value == pytest.approx(sum(clients["correct"][rule]) / sum(clients["test_samples"]))


def test_the_summary_agrees_with_the_records(good: GoodRun) -> None:
    records = jsonl(good.folder / "rounds.jsonl")
    for result in good.results:
        own = [r for r in records if (r["algorithm"], r["seed"]) == (result["algorithm"], result["seed"])]
        heads = [record["accuracy"]["head"] for record in own]
        assert result["accuracy"]["best"]["head"] == max(heads)
        assert result["accuracy"]["last"]["head"] == heads[-1]
        assert result["accuracy"]["last10"]["head"] == pytest.approx(sum(heads[1:]) / len(heads[1:]))


def test_clocks_are_kept_apart_from_records(good: GoodRun) -> None:
    timings = jsonl(good.folder / "timings.jsonl")
    assert len(timings) == len(CELLS) * (ROUNDS + 1)
    assert all(timing["seconds"]["total"] > 0 for timing in timings)
    assert "seconds" not in (good.folder / "rounds.jsonl").read_text()


def test_the_environment_says_what_the_run_ran_on(good: GoodRun) -> None:
    found = json.loads((good.folder / "environment.json").read_text())
    assert found["tinyproto"] == tinyproto.__version__
    assert found["python"] == platform.python_version()
    assert found["packages"]["torch"] == torch.__version__
    assert found["packages"]["numpy"] == np.__version__
    assert found["device"] in ("cpu", "cuda")


def test_the_table_and_the_verdict_are_printed(good: GoodRun) -> None:
    for text in ("Local", "FedProto", "TinyProto-FT", "By nearest global prototype", "Local training alone"):
        assert text in good.stdout
    assert "5 clients, 2 networks on digits" in good.stdout
    assert f"Written to {Path('runs', 'trial')}" in good.stdout


def test_no_escape_codes_are_printed_where_there_is_no_terminal(good: GoodRun) -> None:
    assert "\x1b" not in good.stdout


def test_another_seed_gives_other_records(good: GoodRun) -> None:
    # Without this the tests of equal bytes below could pass on constants.
    records = jsonl(good.folder / "rounds.jsonl")
    by_seed = [[r["loss"] for r in records if r["seed"] == seed and not r["closing"]] for seed in (0, 1)]
    assert by_seed[0] != by_seed[1]


def test_the_same_config_and_seed_leave_the_same_bytes(good: GoodRun) -> None:
    done = command("run", "trial.yaml", "--runs", "again", cwd=good.cwd)
    assert done.returncode == 0
    again = good.cwd / "again" / "trial" / "rounds.jsonl"
    assert again.read_bytes() == (good.folder / "rounds.jsonl").read_bytes()


def test_the_resolved_config_repeats_the_run_byte_for_byte(good: GoodRun) -> None:
    done = command("run", str(good.folder / "config.yaml"), "--runs", "resolved", cwd=good.cwd)
    assert done.returncode == 0
    repeated = good.cwd / "resolved" / "trial"
    assert (repeated / "rounds.jsonl").read_bytes() == (good.folder / "rounds.jsonl").read_bytes()
    assert (repeated / "config.yaml").read_bytes() == (good.folder / "config.yaml").read_bytes()


def test_the_resolved_config_says_every_setting(good: GoodRun) -> None:
    resolved = yaml.safe_load((good.folder / "config.yaml").read_text())
    assert resolved["train"]["learning_rate"] == 0.01
    assert resolved["models"] == ["nets:flat", "small_cnn_c"]
    assert resolved["algorithms"][2]["server_epochs"] == 2
    assert resolved["algorithms"][2]["global_scale"] == "auto"


# Bad input


@dataclass(frozen=True)
class Bad:
    """Something a user gets wrong, and what the one line has to say about it."""

    name: str
    says: Sequence[str]
    arguments: Sequence[str] = ("trial.yaml",)
    files: Mapping[str, str] = field(default_factory=dict)


BAD = [
    Bad("an unknown key", ["'train.round'", "did you mean 'train.rounds'"], ["trial.yaml", "train.round=3"]),
    Bad(
        "an unknown algorithm", ["unknown algorithm 'fedprotto'", "did you mean 'fedproto'"],
        ["trial.yaml", "algorithms=[fedprotto]"],
    ),
    Bad("an unknown preset", ["unknown preset 'sond'", "did you mean 'sound'"], ["trial.yaml", "preset=sond"]),
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
    Bad("a missing config file", ["no config file at nothing.yaml"], ["nothing.yaml"]),
    Bad("a config that is not YAML", ["trial.yaml, line 2", "not valid YAML"], files={"trial.yaml": "a: [1\nb: 2\n"}),
    Bad(
        "a run folder that cannot be written", ["cannot write the run folder", "trial.yaml"],
        ["trial.yaml", "--runs", "trial.yaml"],
    ),
    Bad("a wrong type", ["train.rounds", "integer", "'many'"], ["trial.yaml", "train.rounds=many"]),
    Bad("an override without =", ["'train.rounds'", "key=value"], ["trial.yaml", "train.rounds"]),
]  # fmt: skip

MORE_BAD = [
    Bad(
        "an unknown key in the file", ["unknown key 'modles'", "did you mean 'models'"],
        files={"trial.yaml": CONFIG.replace("models", "modles")},
    ),
    Bad("a model that does not exist", ["'nets:flatt'", "did you mean 'flat'"], ["trial.yaml", "models=[nets:flatt]"]),
    Bad("a config without keys", ["trial.yaml is not a config"], files={"trial.yaml": "just words\n"}),
    Bad("a preset of a wrong type", ["preset"], ["trial.yaml", "preset=[sound]"]),
    Bad("an unknown dataset", ["unknown dataset 'digit'", "did you mean 'digits'"], ["trial.yaml", "data.name=digit"]),
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
    """Status 2, one line that says what it has to, and the folder as it was."""
    for name, text in bad.files.items():
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
        done = command("run", *bad.arguments, cwd=project, PYTHONDONTWRITEBYTECODE="1")
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
    done = command("run", "trial.yaml", cwd=good.cwd)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "exists already" in done.stderr
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
    done = command("run", "trial.yaml", "algorithms=[local]", "seeds=[0]", "--overwrite", cwd=project)
    assert sorted(path.name for path in folder.iterdir()) == sorted(files)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "is not a run folder" in done.stderr


def test_no_name_of_a_run_reaches_out_of_the_runs_folder(project: Path) -> None:
    (project / "trial.yaml").rename(project / "config.yaml")
    (project / "runs").mkdir()
    before = tree(project)
    arguments = ("config.yaml", "name=..", "algorithms=[local]", "seeds=[0]", "--overwrite")
    done = command("run", *arguments, cwd=project, PYTHONDONTWRITEBYTECODE="1")
    assert tree(project) == before  # or the user's whole folder is gone
    assert done.returncode == 2
    assert "name" in done.stderr


def test_an_interruption_is_said_in_one_line(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tinyproto.cli.run.load_config", interrupted)
    assert in_process(monkeypatch, project, "run", "trial.yaml") == 130
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("tinyproto: interrupted")


# What is printed


def test_a_label_with_brackets_is_printed_as_it_is(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = "algorithms=[{name: local, label: 'alone [s=5]'}, {name: fedproto, label: 'd [/20]'}]"
    assert in_process(monkeypatch, project, "run", "trial.yaml", entries, "seeds=[0]", "train.rounds=1") == 0
    table = capsys.readouterr().out.partition("algorithm ")[2]
    assert "alone [s=5]" in table
    assert "d [/20]" in table


@pytest.mark.parametrize("runs", ["runs[a]", "runs[", "[/a]"])
def test_a_runs_folder_with_brackets_is_printed_as_it_is(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], runs: str
) -> None:
    short = ("algorithms=[local]", "seeds=[0]", "train.rounds=1")
    assert in_process(monkeypatch, project, "run", "trial.yaml", *short, "--runs", runs) == 0
    assert f"Written to {Path(runs, 'trial')}" in capsys.readouterr().out


def test_several_seeds_are_shown_with_their_spread(good: GoodRun) -> None:
    (line,) = [line for line in good.stdout.splitlines() if line.strip().startswith("FedProto")]
    heads = [r["accuracy"]["last10"]["head"] for r in good.results if r["algorithm"] == "fedproto"]
    assert f"{100 * np.mean(heads):.1f} ± {100 * np.std(heads):.1f}" in line


def test_a_terminal_without_unicode_gets_its_table_all_the_same(project: Path) -> None:
    arguments = ("run", "trial.yaml", "algorithms=[local, fedproto]", "seeds=[0]", "train.rounds=1")
    done = command(*arguments, cwd=project, PYTHONIOENCODING="latin-1", PYTHONUTF8="0")
    assert "Traceback" not in done.stderr
    assert done.returncode == 0
    assert "FedProto" in done.stdout


# Help, version, doctor


def test_help_names_the_verbs(tmp_path: Path) -> None:
    done = command("--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(verb in done.stdout for verb in ("run", "doctor", "--version"))
    assert command("-h", cwd=tmp_path).stdout == done.stdout


def test_help_of_run_names_its_arguments_and_gives_examples_that_work(tmp_path: Path) -> None:
    done = command("run", "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(word in done.stdout for word in ("--overwrite", "--runs", "KEY=VALUE"))
    assert "tinyproto run configs/quickstart.yaml name=three 'seeds=[0,1,2]'" in done.stdout
    assert "'algorithms=[local,fedproto]'" in done.stdout


def test_without_a_verb_the_help_is_shown(tmp_path: Path) -> None:
    done = command(cwd=tmp_path)
    assert "doctor" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_version_is_printed(tmp_path: Path) -> None:
    done = command("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"tinyproto {tinyproto.__version__}\n")


def test_doctor_prints_versions_and_devices(tmp_path: Path) -> None:
    done = command("doctor", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert tinyproto.__version__ in lines["tinyproto"]
    assert platform.python_version() in lines["python"]
    assert torch.__version__ in lines["torch"]
    assert np.__version__ in lines["numpy"]
    assert f"{os.cpu_count()} cores" in lines["cpu"]
    assert "cpu" in lines["devices"]
    assert "scikit-learn" in lines["data"]


def test_doctor_says_where_the_checkout_differs_from_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tinyproto.cli.doctor.source_commit", lambda: f"{'0123456789' * 4}-modified")
    assert in_process(monkeypatch, tmp_path, "doctor") == 0
    assert "modified" in capsys.readouterr().out


# Speed


def best_of_five_is_below(limit: float, measure: Callable[[], float]) -> bool:
    """Whether the best of five stays below a limit; stops at the first that does."""
    return any(measure() < limit for _ in range(5))


def test_help_comes_in_half_a_second(tmp_path: Path) -> None:
    def measure() -> float:
        start = time.perf_counter()
        assert command("--help", cwd=tmp_path).returncode == 0
        return time.perf_counter() - start

    assert best_of_five_is_below(0.5, measure)


def test_importing_tinyproto_adds_less_than_a_fifth_of_a_second_to_torch(tmp_path: Path) -> None:
    timed = "import torch, time; start = time.perf_counter(); import tinyproto; print(time.perf_counter() - start)"

    def measure() -> float:
        done = subprocess.run([sys.executable, "-c", timed], cwd=tmp_path, capture_output=True, text=True, check=True)
        return float(done.stdout)

    assert best_of_five_is_below(0.2, measure)


def test_importing_tinyproto_loads_nothing_heavy(tmp_path: Path) -> None:
    code = "import sys, tinyproto; print({'torch', 'numpy', 'sklearn', 'pydantic', 'rich', 'typer'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
