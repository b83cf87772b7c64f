"""The files of a completed run."""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

import tinyproto
from support_cli import CELLS, CLASSES, CLIENTS, CPS_DIM, DIM, ROUNDS, RUN_FILES, GoodRun, called, command, jsonl


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
        assert set(result["seconds_per_round"]) == {"total", "train", "prototypes", "server", "evaluate", "clients"}
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
    for text in ("Local", "FedProto", "TinyProto-FT", "nearest global prototype"):
        assert text in good.stdout
    assert re.search("5 clients, 2 networks on digits", good.stdout)
    assert str(Path("runs", "trial", "report.html")) in good.stdout


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


def test_the_resolved_config_reproduces_the_run_byte_for_byte(good: GoodRun) -> None:
    done = called("run", str(good.folder / "config.yaml"), "--runs", "resolved", cwd=good.cwd)
    assert done.returncode == 0
    second = good.cwd / "resolved" / "trial"
    assert (second / "rounds.jsonl").read_bytes() == (good.folder / "rounds.jsonl").read_bytes()
    assert (second / "config.yaml").read_bytes() == (good.folder / "config.yaml").read_bytes()


def test_the_resolved_config_says_every_setting(good: GoodRun) -> None:
    resolved = yaml.safe_load((good.folder / "config.yaml").read_text())
    assert resolved["train"]["learning_rate"] == 0.01
    assert resolved["models"] == ["nets:flat", "small_cnn_c"]
    assert resolved["algorithms"][2]["server_epochs"] == 2
    assert resolved["algorithms"][2]["global_scale"] == "auto"
