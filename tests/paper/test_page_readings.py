from __future__ import annotations

from pathlib import Path

import pytest

from paper.page.outcomes import Records
from paper.page.readings import Reading, reading_rows, readings, rule_rows
from support_paper import PaperRecord
from tinyproto.report.runs import find_runs, read_runs


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    folder = tmp_path_factory.mktemp("results")
    for record in (
        PaperRecord("table1_cifar100", "fedproto", 60, head=76, local=64, early={60: 50, 61: 59}),
        PaperRecord("table1_cifar100", "fedproto", 100, seed=1),
        PaperRecord("table1_cifar100", "fedtgp", 75, rounds=40),
        PaperRecord("readings_methods", "fedproto(running)", 56, rounds=60),
        PaperRecord("readings_methods", "fedtgp(stale)", 70, rounds=60, early={40: 65}),
        PaperRecord("readings_methods", "tinyproto_ft(auto)", 80, rounds=60),
        PaperRecord("table1_cifar10", "tinyproto_ft", 150),
        PaperRecord("readings_cifar10", "tinyproto_ft(blocks)", 164),
    ):
        record.write(folder)
    return Records(read_runs(find_runs([folder])))


def named(records: Records, label: str) -> Reading:
    return next(reading for reading in readings(records) if reading.cell.address.label == label)


def test_a_variant_is_held_against_table_1_after_as_many_rounds_and_of_the_same_seed(records: Records) -> None:
    reading = named(records, "fedproto(running)")
    assert (reading.rounds, reading.seeds) == (60, [0])
    assert reading.difference("global") == pytest.approx((56 - 50) / 200)
    assert reading.name == "where local prototypes come from: running instead of fresh"


def test_a_longer_run_of_a_variant_stands_below_it_and_is_held_against_as_many_rounds(tmp_path: Path) -> None:
    for record in (
        PaperRecord("table1_cifar100", "tinyproto_ft", 90, early={60: 78}),
        PaperRecord("readings_methods", "tinyproto_ft(blocks)", 88, rounds=60),
        PaperRecord("readings_methods", "tinyproto_ft(blocks)", 93),
    ):
        record.write(tmp_path)
    rows = list(reading_rows(readings(Records(read_runs(find_runs([tmp_path]))))))
    own = [row for row in rows if row[0].startswith(("CIFAR-100, TinyProto-FT", "↳ masks")) and row[1] != "not run"]
    assert [(row[1], row[4]) for row in own] == [
        ("60 rounds", "39.00"), ("300 rounds", "45.00"),
        ("60 rounds", "44.00 (+5.00)"), ("300 rounds", "46.50 (+1.50)"),
    ]  # fmt: skip


def test_variants_of_other_seeds_are_held_against_those_and_the_table_has_both(tmp_path: Path) -> None:
    for record in (
        PaperRecord("table1_cifar100", "tinyproto_ft", 90, early={60: 78}),
        PaperRecord("table1_cifar100", "tinyproto_ft", 90, seed=1, early={60: 60}),
        PaperRecord("readings_methods", "tinyproto_ft(printed)", 80, rounds=60),
        PaperRecord("readings_methods", "tinyproto_ft(blocks)", 80, rounds=60),
        PaperRecord("readings_methods", "tinyproto_ft(blocks)", 80, rounds=60, seed=1),
    ):
        record.write(tmp_path)
    rows = list(reading_rows(readings(Records(read_runs(find_runs([tmp_path]))))))
    assert [row[2:5:2] for row in rows if "TinyProto-FT" in row[0] and row[2] != "–"] == [
        ["0", "39.00"], ["0, 1", "34.50 ± 6.36"],
    ]  # fmt: skip
    own = {row[0]: row[2:5:2] for row in rows if row[0].startswith("↳") and row[2] != "–"}
    assert own["↳ μ: 0.0015 instead of 0.01"] == ["0", "40.00 (+1.00)"]
    assert own["↳ masks: blocks instead of balanced"] == ["0, 1", "40.00 ± 0.00 (+5.50)"]


def test_where_table_1_has_fewer_rounds_both_are_read_after_those(records: Records) -> None:
    reading = named(records, "fedtgp(stale)")
    assert reading.rounds == 40
    assert reading.difference("global") == pytest.approx((65 - 75) / 200)


def test_a_variant_without_its_counterpart_stands_alone(records: Records) -> None:
    reading = named(records, "tinyproto_ft(auto)")
    assert reading.difference("global") is None
    accuracy = reading.accuracies()["global"]
    assert accuracy is not None
    assert accuracy.mean == pytest.approx(0.4)


def test_every_reading_of_the_experiments_has_a_row_below_its_method(records: Records) -> None:
    rows = list(reading_rows(readings(records)))
    assert len(rows) == 23 + 8 + 5 + 8  # on CIFAR-100, of its ablation, with 50 clients, on CIFAR-10
    words = {row[0]: row[1:] for row in reversed(rows)}  # of rows of one name the first, on CIFAR-100
    assert words["CIFAR-100, FedProto as in Table 1"] == ["60 rounds", "0", "25.00", "25.00", "25.00"]
    assert words["↳ where local prototypes come from: running instead of fresh"] == [
        "60 rounds", "0", *["28.00 (+3.00)"] * 3
    ]  # fmt: skip
    assert words["↳ masks: blocks instead of balanced"] == ["not run", "–", "–", "–", "–"]
    assert words["CIFAR-100, TinyProto-FT (50) as in Table 1"][0] == "not run"


def test_a_variant_is_held_against_table_1_of_its_own_dataset(records: Records) -> None:
    rows = list(reading_rows(readings(records)))
    first = next(number for number, row in enumerate(rows) if row[0] == "CIFAR-10, TinyProto-FT (50) as in Table 1")
    assert rows[first][1:] == ["300 rounds", "0", *["75.00"] * 3]
    told = [row[0] for row in rows[first + 2 : first + 4]]
    assert told == [
        "↳ where local prototypes come from: running instead of fresh",
        "↳ where local prototypes come from: running instead of fresh, masks: blocks instead of balanced",
    ]
    assert rows[first + 1] == ["↳ masks: blocks instead of balanced", "300 rounds", "0", *["82.00 (+7.00)"] * 3]


def test_a_variant_of_the_ablation_is_held_against_the_cell_of_its_design(tmp_path: Path) -> None:
    for record in (
        PaperRecord("table1_cifar100", "tinyproto_fp", 40),
        PaperRecord("appendix_cifar100", "tinyproto_fp(cps_dim=250,scaling=none)", 70),
        PaperRecord("appendix_cifar100", "tinyproto_fp(cps_dim=450,scaling=none)", 68),
        PaperRecord("readings_ablation", "tinyproto_fp(cps_dim=250,scaling=none,running)", 66),
    ):
        record.write(tmp_path)
    rows = list(reading_rows(readings(Records(read_runs(find_runs([tmp_path]))))))
    first = next(number for number, row in enumerate(rows) if row[0].endswith(", as in the ablation"))
    change = "where local prototypes come from: running instead of fresh"
    assert [row[:5:2] for row in rows[first : first + 6]] == [
        ["CIFAR-100, TinyProto-FP (250), not scaled, as in the ablation", "0", "35.00"],
        [f"↳ {change}", "0", "33.00 (−2.00)"],
        ["CIFAR-100, TinyProto-FP (450), not scaled, as in the ablation", "0", "34.00"],  # alone, but run
        [f"↳ {change}", "–", "–"],
        ["CIFAR-100, TinyProto-FP (no CPS), scaled, as in the ablation", "–", "–"],
        [f"↳ {change}", "–", "–"],
    ]


def test_a_variant_with_50_clients_is_held_against_table_3(tmp_path: Path) -> None:
    for record in (
        PaperRecord("table1_cifar100", "tinyproto_ft", 90),
        PaperRecord("table3_clients50", "tinyproto_ft", 74, early={100: 70}),
        PaperRecord("readings_clients50", "tinyproto_ft(auto)", 82, rounds=100),
    ):
        record.write(tmp_path)
    found = readings(Records(read_runs(find_runs([tmp_path]))))
    rows = list(reading_rows(found))
    first = next(number for number, row in enumerate(rows) if row[0].endswith(" as in Table 3"))
    assert [row[:5:2] for row in rows[first : first + 3]] == [
        ["CIFAR-100, 50 clients, TinyProto-FT (50) as in Table 3", "0", "35.00"],
        ["↳ μ: auto instead of 0.01", "0", "41.00 (+6.00)"],
        ["↳ μ: 0.02 instead of 0.01", "–", "–"],
    ]
    assert {reading.plain()["num_clients"] for reading in found} == {20, 50}


def test_each_reading_says_in_a_line_what_it_changes(records: Records) -> None:
    names = {reading.cell.address.label: reading.name for reading in readings(records)}
    assert names["fedproto(weight=1)"] == "λ: 1.0 instead of 10.0"
    assert names["tinyproto_ft(printed)"] == "μ: 0.0015 instead of 0.01"
    assert names["tinyproto_fp(mean)"] == "sum or mean: mean instead of sum"
    stems = {reading.cell.address.stem: reading.name for reading in readings(records)}
    assert stems["readings_order"] == "batches shuffled: yes instead of no"
    assert stems["readings_counts"] == "samples that n_ij counts: train instead of all"
    assert stems["readings_paper"] == (
        "preset paper, 6 points at once: λ: 1.0 instead of 10.0, regulariser: l2 instead of mse, μ: 0.0015 instead of "
        "0.01, samples of local prototypes: all instead of seen, samples that n_ij counts: train instead of all, "
        "headline rule: local instead of global"
    )


def test_the_rule_is_told_from_whole_records_by_what_is_nearest_to_print(records: Records) -> None:
    row, other = rule_rows(records)  # FedTGP is there, but not for 300 rounds
    # Over both seeds: by head (76 + 100) / 400, by global prototype (60 + 100) / 400, by local (64 + 100) / 400.
    assert row.words() == [
        "CIFAR-100, FedProto",
        "29.97",
        "44.00 (+14.03)",
        "40.00 (+10.03)",
        "41.00 (+11.03)",
        "global",
    ]
    assert other.words()[:2] == ["CIFAR-10, TinyProto-FT (50)", "88.47"]


def test_the_rule_is_told_of_table_3_as_well(tmp_path: Path) -> None:
    PaperRecord("table3_alpha001", "tinyproto_ft", 144).write(tmp_path)
    PaperRecord("table3_alpha001", "lg_fedavg", 130).write(tmp_path)  # has one rule only
    (row,) = rule_rows(Records(read_runs(find_runs([tmp_path]))))
    assert row.words()[:2] == ["CIFAR-100, α=0.01, TinyProto-FT (50)", "72.74"]


def test_a_reading_as_json_has_everything(records: Records, tmp_path: Path) -> None:
    plain = named(records, "fedproto(running)").plain()
    assert plain["experiment"] == "readings_methods"
    assert plain["accuracy"]["global"] == pytest.approx(0.28)
    assert plain["reference"]["global"] == pytest.approx(0.25)
    assert plain["difference"]["global"] == pytest.approx(0.03)
