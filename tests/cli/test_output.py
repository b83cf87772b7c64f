"""The output of the command, and its speed."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import tinyproto
from support_cli import GoodRun, called, command, in_process
from support_data import write_cifar10_binary
from tinyproto.cli.report import comparison_table
from tinyproto.report.compare import compare


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
    assert str(Path(runs, "trial", "report.html")) in capsys.readouterr().out


def test_several_seeds_are_shown_with_their_spread(good: GoodRun) -> None:
    (line,) = [line for line in good.stdout.splitlines() if line.strip().startswith("FedProto")]
    heads = [r["accuracy"]["last10"]["head"] for r in good.results if r["algorithm"] == "fedproto"]
    assert f"{100 * np.mean(heads):.1f} ± {100 * np.std(heads, ddof=1):.1f}" in line
    assert "± sample standard deviation (n − 1)" in " ".join(good.stdout.split())


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
    assert all(verb in done.stdout for verb in ("run", "resume", "report", "doctor", "--version"))
    assert command("-h", cwd=tmp_path).stdout == done.stdout


def test_help_of_run_names_its_arguments_and_gives_examples_that_work(tmp_path: Path) -> None:
    done = called("run", "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(word in done.stdout for word in ("--overwrite", "--runs", "KEY=VALUE"))
    assert "tinyproto run quickstart name=three 'seeds=[0,1,2]'" in done.stdout
    assert "'algorithms=[local,fedproto]'" in done.stdout


def test_without_a_verb_the_help_is_shown(tmp_path: Path) -> None:
    done = called(cwd=tmp_path)
    assert "doctor" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_version_is_printed(tmp_path: Path) -> None:
    done = called("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"tinyproto {tinyproto.__version__}\n")


def test_doctor_prints_versions_and_devices(tmp_path: Path) -> None:
    done = called("doctor", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert tinyproto.__version__ in lines["tinyproto"]
    assert platform.python_version() in lines["python"]
    assert torch.__version__ in lines["torch"]
    assert np.__version__ in lines["numpy"]
    assert f"{os.cpu_count()} cores" in lines["cpu"]
    assert "cpu" in lines["devices"]
    assert "signals" in lines["data"]


@pytest.mark.parametrize(
    ("capability", "triton", "words"),
    [
        ((9, 0), True, "139.8 GiB, compute capability 9.0; all trainers run"),
        (
            (7, 5),
            True,
            "139.8 GiB, compute capability 7.5; trainers eager and graphed run; not stacked: Triton needs compute "
            "capability 8.0, and this GPU has 7.5",
        ),
        (
            (8, 6),
            False,
            "139.8 GiB, compute capability 8.6; trainers eager and graphed run; not stacked: Triton is not installed",
        ),
    ],
)
def test_doctor_says_of_a_gpu_what_runs_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], capability: tuple[int, int],
    triton: bool, words: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Card")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    missing = None if triton else "Triton is not installed"
    monkeypatch.setattr("tinyproto.stacked.capture.why_no_triton", lambda: missing)
    monkeypatch.setattr("tinyproto.cli.info.total_memory", lambda device: 150_109_880_320)
    assert in_process(monkeypatch, tmp_path, "doctor", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["devices"], found["cuda:0"]) == ("cpu, cuda:0 Card", words)


def test_doctor_says_of_every_dataset_where_it_is_or_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cifar10_binary(tmp_path / "data" / "cifar-10-batches-bin")
    assert in_process(monkeypatch, tmp_path, "doctor") == 0
    rows = [line.split(maxsplit=2)[1:] for line in capsys.readouterr().out.splitlines() if line.startswith("data ")]
    said = {name: where.strip() for name, where in rows}
    assert list(said) == [
        "cifar10",
        "cifar100",
        "tiny_imagenet",
        "image_folder",
        "npz",
        "table",
        "digits",
        "wine",
        "signals",
    ]
    assert said["cifar10"] == "data/cifar-10-batches-bin"
    assert said["cifar100"].endswith("tinyproto data fetch cifar100 --root data")


def test_doctor_says_where_the_checkout_differs_from_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tinyproto.cli.info.source_commit", lambda: f"{'0123456789' * 4}-modified")
    assert in_process(monkeypatch, tmp_path, "doctor") == 0
    assert "modified" in capsys.readouterr().out


# Speed


def best_of_five_is_below(limit: float, measure: Callable[[], float]) -> bool:
    """Return True if one of five measurements is below a limit."""
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


def test_the_package_runs_as_a_module(tmp_path: Path) -> None:
    asked = [sys.executable, "-m", "tinyproto", "--version"]
    done = subprocess.run(asked, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, f"tinyproto {tinyproto.__version__}\n")


def test_a_data_root_that_nobody_reads_is_spoken_of(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("run", "trial.yaml", "name=rooted", "algorithms=[local]", "seeds=[0]", "train.rounds=1")
    assert in_process(monkeypatch, project, *asked, "data.root=elsewhere") == 0
    assert re.search(r"^data\.root \(elsewhere\) .*needs no files", capsys.readouterr().out, re.MULTILINE)


def test_an_encoding_without_our_signs_shows_a_question_mark_for_them(project: Path) -> None:
    asked = ("run", "trial.yaml", "name=plain", "algorithms=[local, fedproto]", "seeds=[0]", "train.rounds=1")
    done = command(*asked, cwd=project, PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\? .*nearest global prototype", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("width", [120, 80, 60, 50, 40, 30])
def test_a_narrow_table_drops_deviations_and_columns_and_never_cuts_a_number(width: int) -> None:
    rules = ("head", "global", "local")
    results = [
        {
            "algorithm": name, "label": name, "seed": seed, "rounds": 20,
            "accuracy": {"last10": dict.fromkeys(rules, share + 0.02 * seed)},
            "params_per_round": 12345, "seconds_per_round": {"total": 1.234},
            **{f"{kind}_bytes_per_round": {"up": 5000, "down": 5000} for kind in ("payload", "wire", "evaluation")},
        }
        for name, share in (("local", 0.923), ("tinyproto_ft", 0.532))
        for seed in (0, 1)
    ]  # fmt: skip
    compared = compare(results, {"local": "Local", "tinyproto_ft": "TinyProto-FT"}, "global", "last10")
    console = Console(width=width, file=io.StringIO())
    console.print(comparison_table(compared, console))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text
    assert "54.2" in text
    assert ("± 1.4" in text) == (width > 60)
    assert ("(n − 1)" in " ".join(text.split())) == (width > 60)
