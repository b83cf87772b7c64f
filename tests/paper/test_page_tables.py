"""The paper's tables from records that are known: which cell fills which row, and how it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from paper.experiments import SAME_AS_PUBLISHED
from paper.page.chapter import findings
from paper.page.outcomes import Outcome, Records
from paper.page.tables import HEADER, Table, paper_tables, signed
from paper.printed import Address
from support import make_patterns
from support_paper import PaperRecord, report_with_paper
from support_report import Made
from tinyproto.api import simulate
from tinyproto.report.runs import find_runs, read_runs

FEDPROTO = Address("table1_cifar100", "fedproto")


def records(folder: Path, made: Sequence[PaperRecord]) -> Records:
    for record in made:
        record.write(folder)
    return Records(read_runs(find_runs([folder])))


def fedproto(correct: int = 60, seed: int = 0, rounds: int = 300) -> PaperRecord:
    return PaperRecord("table1_cifar100", "fedproto", correct, seed=seed, rounds=rounds)


def found(records: Records, address: Address = FEDPROTO) -> Outcome:
    outcome = records.find(address)
    assert outcome is not None
    return outcome


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> list[Table]:
    made = [
        PaperRecord("table1_cifar100", "local", 84),
        PaperRecord("table1_cifar100", "fedkd", 78, local=40),
        PaperRecord("table1_cifar100", "fedproto", 58, head=74, local=62, payload=9, formula=1_460_500),
        PaperRecord("table1_cifar100", "fedproto", 62, seed=1, head=76, local=62, payload=9, formula=1_460_500),
        PaperRecord("table1_cifar100", "tinyproto_ft", 50, rounds=10),
        PaperRecord("appendix_cifar100", "tinyproto_ft(cps_dim=150,scaling=count)", 90),
        PaperRecord("table1_cifar100", "fedproto", 70, preset="sound", early={300 - back: 60 for back in range(1, 10)}),
        PaperRecord("published_cifar100", "fedproto", 61),
    ]
    return paper_tables(records(tmp_path_factory.mktemp("results"), made))


def named(tables: Sequence[Table], title: str) -> dict[str, list[str]]:
    (table,) = [table for table in tables if table.title == title]
    return {row.name: row.words() for row in table.rows}


def test_a_row_has_the_printed_value_ours_the_difference_other_rules_and_costs(tables: list[Table]) -> None:
    row = dict(zip(HEADER, named(tables, "Table 1: CIFAR-100")["FedProto"], strict=True))
    assert row == {
        "algorithm": "FedProto", "paper": "29.97 ± 0.18", "ours": "30.00 ± 1.41", "Δ": "+0.03", "Δ / ±": "+0.2×",
        "nearer than Local": "yes", "n": "2", "rounds": "all 300", "head": "37.5 ± 0.7", "local": "31.0 ± 0.0",
        "Comm. (M)": "1.46", "formula": "1 460 500", "payload": "360 B", "wire": "420 B",
    }  # fmt: skip


def test_a_method_without_global_prototypes_is_read_by_its_head(tables: list[Table]) -> None:
    row = dict(zip(HEADER, named(tables, "Table 1: CIFAR-100")["FedKD"], strict=True))
    assert (row["ours"], row["Δ"], row["head"], row["local"]) == ("39.00", "−0.74", "39.0", "20.0")


def test_local_stands_there_although_the_paper_leaves_it_out(tables: list[Table]) -> None:
    row = named(tables, "Table 1: CIFAR-100")["Local (not in the paper)"]
    assert row[1:4] == ["–", "42.00", "–"]


def test_what_was_not_run_stays_visible(tables: list[Table]) -> None:
    rows = named(tables, "Table 1: CIFAR-100")
    assert rows["FML"][1:4] == ["37.83 ± 0.03", "not run", "–"]
    assert len(rows) == 9
    assert {row[2] for row in named(tables, "Table 3: CIFAR-100, α=0.5").values()} == {"not run"}


def test_fewer_rounds_are_marked(tables: list[Table]) -> None:
    row = dict(zip(HEADER, named(tables, "Table 1: CIFAR-100")["TinyProto-FT (50)"], strict=True))
    assert (row["ours"], row["rounds"], row["n"]) == ("25.00", "10 of 300", "1")


def test_a_number_is_held_against_print_s_deviation_and_against_local_in_its_setting(tmp_path: Path) -> None:
    made = [
        PaperRecord("table1_cifar100", "local", 77),  # 38.5 %
        PaperRecord("table1_cifar100", "lg_fedavg", 78),  # 39.0 %, print 38.54 ± 0.21
        PaperRecord("table1_cifar100", "fedkd", 78),  # print 39.74 ± 0.42
        PaperRecord("appendix_cifar100", "tinyproto_fp(cps_dim=350,scaling=count)", 77),  # print 35.25
        PaperRecord("table1_cifar10", "fedkd", 174),  # 87.0 %, print 87.10 ± 0.02; no Local
        PaperRecord("table1_cifar10", "local", 174, rounds=60),
    ]
    rows = {row.address: row for table in paper_tables(records(tmp_path, made)) for row in table.rows}
    lg_fedavg, fedkd = rows[Address("table1_cifar100", "lg_fedavg")], rows[Address("table1_cifar100", "fedkd")]
    assert lg_fedavg.words()[4:6] == ["+2.2×", "no"]
    assert (lg_fedavg.near, lg_fedavg.repeated) == (True, False)
    assert fedkd.words()[4:6] == ["−1.8×", "yes"]
    assert (fedkd.near, fedkd.repeated) == (True, True)
    far = rows[Address("appendix_cifar100", "tinyproto_fp(cps_dim=350,scaling=count)")]
    assert (far.nearer, far.near, far.repeated) == (False, False, False)  # as far as Local is not nearer
    alone = rows[Address("table1_cifar10", "fedkd")]
    assert alone.words()[5] == "no Local run"  # one with fewer rounds is none
    assert (alone.nearer, alone.repeated) == (None, True)


def test_a_seed_that_was_not_planned_is_told_beside_and_not_averaged_in(tmp_path: Path) -> None:
    burst = {rounds: 40 if rounds < 5 else 20 for rounds in range(1, 300)}
    made = [fedproto(60), fedproto(64, seed=2), replace(fedproto(50, seed=3), early=burst), fedproto(44, 4, rounds=9)]
    made_records = records(tmp_path, made)
    outcome = found(made_records)
    assert outcome.seeds == [0, 2]
    assert outcome.accuracy is not None
    assert outcome.accuracy.mean == pytest.approx(0.31)
    tables = [table for table in paper_tables(made_records) if table.asides]
    assert [table.title for table in tables] == ["Table 1: CIFAR-100", "Appendix: CPS and scaling on CIFAR-100"]
    assert tables[0].asides == [
        "FedProto, seed 3, is not planned and not averaged in: 25.00, a run that collapsed: its head lost over a "
        "quarter in one round.",
        "FedProto, seed 4, is not planned and not averaged in: 22.00 after 9 rounds.",
    ]


def test_a_report_with_the_paper_averages_planned_seeds_alone(tmp_path: Path) -> None:
    for record in (fedproto(60), fedproto(64, seed=1), fedproto(20, seed=3)):
        record.write(tmp_path)
    Made(seeds=(0, 7)).write(tmp_path / "other")  # not of the paper
    page = report_with_paper(read_runs(find_runs([tmp_path])))
    settings = [setting for study in page.studies for setting in study.settings]
    assert sorted([*row.seeds] for setting in settings for row in setting.comparison.rows) == [[0, 1], [0, 7], [0, 7]]
    assert "FedProto, seed 3, is not planned and not averaged in: 10.00." in page.html


def test_only_an_unplanned_seed_is_no_run_of_the_cell(tmp_path: Path) -> None:
    assert records(tmp_path, [fedproto(60, seed=7)]).find(FEDPROTO) is None


def test_the_appendix_has_its_own_rows_and_those_of_table_1(tables: list[Table]) -> None:
    rows = named(tables, "Appendix: CPS and scaling on CIFAR-100")
    assert len(rows) == 24
    assert rows["TinyProto-FT (150), scaled"][2] == "45.00"
    assert rows["FedProto"][2] == "30.00 ± 1.41"


def test_another_preset_has_a_table_of_its_own_read_by_its_own_statistic(tables: list[Table]) -> None:
    (table,) = [table for table in tables if table.preset == "sound"]
    assert table.title == "Table 1: CIFAR-100, preset sound"
    assert named(tables, table.title)["FedProto"][2] == "30.50"  # the mean of nine times 60 and once 70 of 200
    assert "mean of the last 10 evaluations" in table.caption


def test_cells_of_the_released_code_fill_a_table_beside_the_printed_numbers(tables: list[Table]) -> None:
    assert named(tables, "Table 1: CIFAR-100, preset published")["FedProto"][1:4] == ["29.97 ± 0.18", "30.50", "+0.53"]


def test_a_method_that_the_released_code_does_not_change_takes_the_records_of_reference(tables: list[Table]) -> None:
    (table,) = [table for table in tables if table.title == "Table 1: CIFAR-100, preset published"]
    found = named(tables, table.title)
    assert (found["Local (not in the paper)"][2], found["FedKD"][2]) == ("42.00", "not run")
    assert table.asides == ["Local: records of the preset reference, which trains these methods alike."]
    assert found["FedProto"][5] == "yes"  # nearer to print than Local
    assert table.own_done == 1


def test_records_of_reference_alone_make_no_table_of_the_released_code(tmp_path: Path) -> None:
    made = records(tmp_path, [PaperRecord("table1_cifar100", "local")])
    assert {table.preset for table in paper_tables(made)} == {"reference"}


@pytest.mark.parametrize("name", [*SAME_AS_PUBLISHED, "fedkd"])
def test_the_released_code_trains_these_methods_as_reference_does(name: str) -> None:
    def trained(preset: str) -> list[Mapping[str, float | None]]:
        found = simulate(
            data=make_patterns(40, 4, (3, 32, 32)), algorithm=name, models=["efficientnet_b0"], num_clients=2,
            alpha=10.0, rounds=2, preset=preset, proto_dim=20, cps_dim=None, settings={"train": {"batch_size": 8}},
        )  # fmt: skip
        return [measured for record in found.rounds for measured in (record.accuracy, record.loss)]

    assert (trained("reference") == trained("published")) is (name in SAME_AS_PUBLISHED)


def test_every_printed_number_is_in_the_json_and_every_row_says_what_it_is(tables: list[Table]) -> None:
    plain = [table.plain() for table in tables if table.preset == "reference"]
    printed = [row["printed"] for table in plain for row in table["rows"] if row["printed"] is not None]
    assert len(printed) == 8 * 6 + 24 * 3
    (row,) = [row for row in plain[1]["rows"] if row["label"] == "fedproto"]
    assert row["ours"]["mean"] == pytest.approx(0.3)
    assert row["difference"] == pytest.approx(0.3 - 0.2997)
    assert row["ours"]["seeds"] == [0, 1]


def test_the_longest_record_counts_and_seeds_of_other_lengths_are_not_mixed_in(tmp_path: Path) -> None:
    made = records(tmp_path, [fedproto(rounds=10), fedproto(rounds=20), fedproto(seed=1, rounds=10)])
    outcome = found(made)
    assert (outcome.rounds, outcome.seeds, outcome.shortened) == (20, [0], True)


def test_more_rounds_than_the_paper_s_count_only_where_there_is_nothing_else(tmp_path: Path) -> None:
    longer = records(tmp_path / "longer", [fedproto(rounds=310)])
    assert found(longer).rounds == 310
    both = records(tmp_path / "both", [fedproto(rounds=310), fedproto(rounds=20)])
    assert found(both).rounds == 20


def test_an_accuracy_after_some_rounds_looks_no_further(tmp_path: Path) -> None:
    record = PaperRecord("table1_cifar100", "fedproto", 180, rounds=10, early={3: 120, 7: 160})
    outcome = found(records(tmp_path, [record]))
    best = [outcome.best_after(rounds)["global"] for rounds in (2, 3, 6, 7, 10)]
    assert [one and round(one.mean, 2) for one in best] == [0.09, 0.6, 0.6, 0.8, 0.9]


def test_a_run_of_something_else_is_no_cell_of_the_paper(tmp_path: Path) -> None:
    Made().write(tmp_path / "run")
    assert not Records(read_runs([tmp_path / "run"])).any_of_the_paper


@pytest.mark.parametrize(("value", "words"), [(0.00004, "0.00"), (-0.0123, "−1.23"), (0.5, "+50.00"), (None, "–")])
def test_a_difference_has_a_sign_unless_it_is_none(value: float | None, words: str) -> None:
    assert signed(value) == words


def test_the_verdict_says_how_far_seeds_of_one_number_lie_apart(tmp_path: Path) -> None:
    for record in (fedproto(63), fedproto(60, seed=1), PaperRecord("table1_cifar100", "local", 85)):
        record.write(tmp_path)
    paper = findings(read_runs(find_runs([tmp_path])))
    assert paper is not None
    assert "Seeds of one number differ by up to 1.5 points." in paper.verdict()
    assert not any("where Local was not run" in sentence for sentence in paper.verdict())


def test_the_verdict_counts_what_was_repeated_and_how_near_it_came(tmp_path: Path) -> None:
    for record in (
        fedproto(63),  # 31.5 %, 1.53 points above print
        PaperRecord("table1_cifar100", "fedtgp", 74),  # 37.0 %, 0.08 above
        PaperRecord("table1_cifar100", "tinyproto_ft", 92, rounds=5),
        PaperRecord("table1_cifar100", "local", 85),  # 42.5 %, not printed
    ):
        record.write(tmp_path)
    paper = findings(read_runs(find_runs([tmp_path])))
    assert paper is not None
    assert paper.verdict() == [
        "Of the 108 numbers in the paper's tables, 2 were run with all rounds and 1 with fewer, 2 of the 2 with one "
        "seed.",
        "1 of the 2 are within 1.5 points of the printed value. 1 of these are also nearer to it than Local, and only "
        "they count as repeated. 1 are within print's own ±.",
        "Local alone is within 1.5 points of 0 of the 8 numbers of Table 1 in whose setting it was run.",
        "Of the paper's 8 claims below, 6 are undecided, 1 holds, 1 holds in part.",
    ]
