"""Runs that share a table or a figure, and the sentences about them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from support_paper import PaperRecord
from support_report import Made
from tinyproto.report.runs import Run, find_runs, read_runs
from tinyproto.report.studies import Setting, arrange


def runs(folder: Path, *made: Made) -> list[Run]:
    return read_runs([one.write(folder / f"run{index}") for index, one in enumerate(made)])


def only_setting(found: list[Run]) -> Setting:
    (study,) = arrange(found)
    (setting,) = study.settings
    return setting


def test_runs_that_differ_only_in_seeds_become_one_row_per_method(tmp_path: Path) -> None:
    setting = only_setting(runs(tmp_path, Made(name="a", seeds=(0, 1)), Made(name="b", seeds=(2,))))
    assert [(series.name, series.seeds) for series in setting.series] == [("Local", [0, 1, 2]), ("FedProto", [0, 1, 2])]
    assert setting.name == "a + b"
    # FedProto's last head accuracies: 25/30 with even seeds, 26/30 with odd ones.
    spread = setting.row(setting.series[1]).accuracy["head"]
    assert spread is not None
    assert spread.mean == pytest.approx(76 / 90)
    assert spread.count == 3


@pytest.mark.parametrize(
    "changed",
    [
        {"checkpoint": {"every_seconds": 1.0}},
        {"keep_models": True},
        {"train": {"workers": 4}},
        {"train": {"device": "cuda"}},
    ],
)
def test_what_cannot_change_a_result_does_not_part_runs(tmp_path: Path, changed: dict[str, Any]) -> None:
    assert only_setting(runs(tmp_path, Made(name="a"), Made(name="b", seeds=(1,), config=changed)))


@pytest.mark.parametrize(
    "changed", [{"train": {"participation": 0.5}}, {"evaluate": {"rule": "head"}}, {"prototypes": {"cps_dim": 3}}]
)
def test_what_can_change_a_result_makes_another_setting_of_the_same_study(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    (study,) = arrange(runs(tmp_path, Made(name="a"), Made(name="b", config=changed)))
    assert [setting.name for setting in study.settings] == ["a", "b"]
    titles = [series.title for _, series in study.series]
    assert titles == ["Local, a", "FedProto, a", "Local, b", "FedProto, b"]
    assert len({series.colour for _, series in study.series}) == 4
    assert len(study.differences()) == 1


def test_differences_are_the_keys_that_differ_with_the_value_in_each(tmp_path: Path) -> None:
    (study,) = arrange(runs(tmp_path, Made(name="a"), Made(name="b", rounds=3)))
    assert study.differences() == {"train.rounds": [2, 3]}


@pytest.mark.parametrize(
    "other", [Made(name="b", dataset="cifar"), Made(name="b", config={"partition": {"alpha": 0.5}}), Made(clients=4)]
)
def test_other_samples_or_other_clients_make_another_study(tmp_path: Path, other: Made) -> None:
    assert len(arrange(runs(tmp_path, Made(name="a"), other))) == 2


def test_a_seed_that_stands_in_two_runs_counts_once(tmp_path: Path) -> None:
    setting = only_setting(runs(tmp_path, Made(name="a", seeds=(0, 1)), Made(name="b", seeds=(1, 2))))
    assert [series.seeds for series in setting.series] == [[0, 1, 2], [0, 1, 2]]


def test_unequal_seeds_are_said_and_equal_ones_in_another_order_are_not(tmp_path: Path) -> None:
    same = runs(
        tmp_path / "same", Made(algorithms=("local",), seeds=(0, 1)), Made(algorithms=("fedproto",), seeds=(1, 0))
    )
    assert not [sentence for sentence in only_setting(same).verdict() if "same seeds" in sentence]
    other = runs(tmp_path / "other", Made(algorithms=("local",), seeds=(0, 1)), Made(algorithms=("fedproto",)))
    assert re.search("same seeds: Local 0, 1; FedProto 0", only_setting(other).verdict()[-1])


def test_one_label_with_two_hyper_parameters_stays_two_rows_named_by_their_runs(tmp_path: Path) -> None:
    strong, weak = ({"name": "fedproto", "label": "fedproto", "proto_weight": weight} for weight in (10.0, 1.0))
    setting = only_setting(runs(tmp_path, Made(name="a", algorithms=(strong,)), Made(name="b", algorithms=(weak,))))
    assert [series.name for series in setting.series] == ["FedProto, a", "FedProto, b"]


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    (study,) = arrange(runs(tmp_path, Made(rounds=2), Made(rounds=3)))
    assert [setting.name for setting in study.settings] == [str(tmp_path / "run0"), str(tmp_path / "run1")]
    assert len({series.title for _, series in study.series}) == 4


def test_a_method_of_ones_own_is_called_by_its_label(tmp_path: Path) -> None:
    own = {"name": "package.module:SPEC", "label": "mine/η"}
    assert [series.name for series in only_setting(runs(tmp_path, Made(algorithms=(own,)))).series] == ["mine/η"]


def test_the_plain_values_name_rows_by_their_labels(tmp_path: Path) -> None:
    plain = only_setting(runs(tmp_path, Made())).plain()
    assert [(row["label"], row["title"]) for row in plain["rows"]] == [("local", "Local"), ("fedproto", "FedProto")]


def test_what_is_evaluated_has_arrived_so_its_bytes_are_spent(tmp_path: Path) -> None:
    # Three clients, frames of 100 B: 300 up in round 1; 300 down, evaluated, 300 up in round 2; 300 down to close.
    (cell,) = only_setting(runs(tmp_path, Made(algorithms=("fedproto",)))).series[0].cells
    assert [(point.rounds, point.payload_bytes, point.wire_bytes) for point in cell.points] == [
        (0, 0, 30), (1, 600, 690), (2, 1200, 1350),
    ]  # fmt: skip


def test_rounds_that_were_not_evaluated_cost_bytes_but_are_no_points(tmp_path: Path) -> None:
    made = Made(algorithms=("fedproto",), rounds=4, evaluated=lambda number: range(3) if number in (1, 4) else ())
    (cell,) = only_setting(runs(tmp_path, made)).series[0].cells
    assert [(point.rounds, point.payload_bytes) for point in cell.points] == [(0, 0), (3, 1800), (4, 2400)]


def test_more_curves_than_colours_are_drawn_in_parts_and_told_apart_by_dashes(tmp_path: Path) -> None:
    entries = [{"name": "fedproto", "label": f"variant {index}"} for index in range(23)]
    first = Made(name="many", algorithms=entries).read(tmp_path / "many")
    second = Made(name="few", rounds=3).read(tmp_path / "few")
    third = Made(name="short", rounds=1).read(tmp_path / "short")
    (study,) = arrange([first, second, third])
    panels = study.panels()
    assert [[series.title for _, series in panel.series] for panel in panels] == [
        [f"variant {index}" for index in range(23)],
        ["Local, few", "FedProto, few", "Local, short", "FedProto, short"],
    ]
    inks = [series.ink for _, series in panels[0].series]
    assert len(set(inks)) == 23
    assert (inks[0], inks[10], inks[20]) == ("c0", "c0 again", "c0 thrice")
    assert [series.ink for _, series in panels[1].series] == ["c0", "c1", "c2", "c3"]
    assert [setting.name for setting in panels[1].settings] == ["few", "short"]


def test_few_curves_stay_in_one_figure(tmp_path: Path) -> None:
    (study,) = arrange([Made(name="a").read(tmp_path / "a"), Made(name="b", rounds=3).read(tmp_path / "b")])
    assert study.panels() == [study]


def test_records_of_one_experiment_are_called_after_it(tmp_path: Path) -> None:
    for label in ("fedproto", "fedtgp"):
        for preset in ("reference", "sound"):
            PaperRecord("table1_cifar100", label, rounds=2, preset=preset).write(tmp_path)
    (study,) = arrange(read_runs(find_runs([tmp_path])))
    assert [setting.name for setting in study.settings] == ["table1_cifar100", "table1_cifar100@sound"]
    assert next(series.title for _, series in study.series) == "FedProto, table1_cifar100"


def test_where_clients_train_on_the_classes_held_what_only_evaluates_is_counted_beside(tmp_path: Path) -> None:
    made = Made(name="held", rounds=2, seeds=(0,))
    folder = made.write(tmp_path / "held")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["wire"] = {"up": "float32", "down": "float32", "rounding": "nearest", "download": "held"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        if not line["closing"]:
            cost = {"parameters": 1, "payload": 4, "wire": 7}
            line["traffic"]["evaluation"] = {"up": cost, "down": {**cost, "wire": 13}}
    (folder / "rounds.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    plain = only_setting(read_runs([made.write(tmp_path / "plain")])).series[1].cells[0]
    held = only_setting(read_runs([folder])).series[1].cells[0]
    *before, last = zip(held.points, plain.points, strict=True)
    assert all(one.payload_bytes == other.payload_bytes for one, other in before)
    assert last[0].payload_bytes < last[1].payload_bytes  # the closing exchange brings what training does without
    closing = next(line for line in lines if line["closing"] and line["label"] == "fedproto")["traffic"]["closing"]
    beside = closing["up"]["wire"] + closing["down"]["wire"]
    assert [point.evaluation_bytes for point in held.points] == [20, 40, 40 + beside]
    assert [point.evaluation_bytes for point in plain.points] == [0, 0, 0]
