"""The derived scale beside constants, from records that are known: which are held against it, and what is noise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paper.page.auto_scale import AUTO_HEADER, Search, any_derived, same_scale, searches
from paper.page.outcomes import Records
from support_paper import PaperRecord
from tinyproto.report.runs import find_runs, read_runs

FT = "TinyProto-FT (50), CIFAR-100, preset reference"
FP_SOUND = "TinyProto-FP (50), CIFAR-10, preset sound, aggregation sum"
AUTO = PaperRecord("readings_methods", "tinyproto_ft(auto)", 76, rounds=60)
TABLE1 = PaperRecord("table1_cifar100", "tinyproto_ft", 90, early={60: 78})
PRINTED = PaperRecord("readings_methods", "tinyproto_ft(printed)", 64, rounds=60)
SCALES = (0.00921, 0.02, 0.04, 0.1)
WORSE = [PaperRecord("readings_methods", f"tinyproto_ft(scale={scale})", 50, rounds=60) for scale in SCALES]


def found(folder: Path, *made: PaperRecord) -> dict[str, Search]:
    for record in made:
        record.write(folder)
    return {one.name: one for one in searches(Records(read_runs(find_runs([folder])) if made else []))}


def test_each_derived_scale_stands_beside_the_constants_that_nothing_else_tells_from_it() -> None:
    known = {one.name: [constant.name for constant in one.constants] for one in searches(Records([]))}
    assert known == {
        "TinyProto-FT (50), CIFAR-10, preset reference": [
            "μ = 0.001 as in Table 1", "μ = 0.00102", "μ = 0.003", "μ = 0.01",
        ],
        FT: ["μ = 0.0015", "μ = 0.00921", "μ = 0.01 as in Table 1", "μ = 0.02", "μ = 0.04", "μ = 0.1"],
        "TinyProto-FT (50), CIFAR-100, 50 clients, preset reference": ["μ = 0.01 as in Table 3", "μ = 0.02"],
        FP_SOUND: ["μ = 7.5e-05", "μ = 0.00015", "μ = 0.0003"],
        "TinyProto-FP (50), CIFAR-100, preset sound, aggregation sum": ["μ = 0.00075", "μ = 0.0015", "μ = 0.003"],
    }  # fmt: skip
    assert not any_derived(searches(Records([])))


def test_a_constant_that_the_rule_derives_is_the_same_run_and_no_comparison() -> None:
    same = [(one.address.stem, one.label, cell.address.stem, cell.label) for one, cell in same_scale()]
    assert sorted(same) == [
        ("table1_cifar10", "tinyproto_fp", "auto_cifar10", "tinyproto_fp(auto)"),
        ("table1_cifar100", "tinyproto_fp", "readings_methods", "tinyproto_fp(auto)"),
    ]


def test_it_is_held_against_the_best_constant_after_as_many_rounds(tmp_path: Path) -> None:
    search = found(tmp_path, AUTO, TABLE1, PRINTED, *WORSE)[FT]
    rows = [dict(zip(AUTO_HEADER, row, strict=True)) for row in search.rows()]
    assert [row["rounds"] for row in rows] == ["60"] * 7
    assert [row["global"] for row in rows] == ["38.00", "32.00", "25.00", "39.00", *["25.00"] * 3]
    assert [row["auto minus this, global"] for row in rows][:4] == ["–", "+6.00", "+13.00", "−1.00"]
    claim = search.claim()
    assert claim.words == f"With global_scale: auto as good as with the best constant tried: {FT}"
    assert claim.tally == "undecided"  # of one seed the difference alone
    assert claim.evidence == (
        "38.00 against 39.00 with μ = 0.01 as in Table 1 after 60 rounds (−1.00, 1 seed). Needs a second seed, to "
        "separate a difference from noise."
    )


@pytest.mark.parametrize(("second", "verdict"), [(80, "holds"), (79, "does not hold")])
def test_as_good_is_what_lies_no_further_below_than_seeds_lie_apart(tmp_path: Path, second: int, verdict: str) -> None:
    other = replace(TABLE1, seed=1, early={60: second})  # seed 0 has 78, and one point is what auto lies below
    claim = found(tmp_path, AUTO, TABLE1, other, PRINTED, *WORSE)[FT].claim()
    assert claim.tally == verdict
    assert f"(−1.00, 1 seed; seeds of one cell differ by up to {(second - 78) / 2:.2f})" in claim.evidence


def test_better_than_every_constant_is_as_good_once_there_are_two_seeds(tmp_path: Path) -> None:
    seeds = [replace(record, seed=1) for record in (AUTO, PRINTED)]
    claim = found(tmp_path, AUTO, PRINTED, *seeds, *WORSE)[FT].claim()
    assert claim.tally == "holds so far"
    assert "(+6.00, 2 seeds; seeds of one cell differ by up to 0.00)" in claim.evidence
    assert claim.evidence.endswith("Needs table1_cifar100: tinyproto_ft.")


def test_shorter_runs_than_asked_for_decide_nothing(tmp_path: Path) -> None:
    made = [replace(record, rounds=30, seed=seed) for record in (AUTO, PRINTED) for seed in (0, 1)]
    assert found(tmp_path, *made)[FT].claim().tally == "undecided"


def test_a_longer_run_decides_and_is_held_against_constants_of_as_many_rounds(tmp_path: Path) -> None:
    longer = replace(AUTO, correct=88, rounds=300, early={60: 40})
    search = found(tmp_path, AUTO, longer, TABLE1, replace(TABLE1, seed=1, correct=91), PRINTED, *WORSE)[FT]
    rows = [dict(zip(AUTO_HEADER, row, strict=True)) for row in search.rows()]
    assert [(row["rounds"], row["global"]) for row in rows if row["global"] != "25.00"] == [
        ("60", "38.00"), ("60", "32.00"), ("60", "39.00"), ("300", "44.00"), ("300", "45.00"),
    ]  # fmt: skip
    claim = search.claim()
    assert claim.tally == "does not hold"
    assert claim.evidence == (
        "44.00 against 45.00 with μ = 0.01 as in Table 1 after 300 rounds (−1.00, 1 seed; seeds of one cell differ by "
        "up to 0.50)."
    )


def test_a_better_constant_of_fewer_rounds_counts_beside_one_that_was_played_longer(tmp_path: Path) -> None:
    longer = replace(AUTO, correct=98, rounds=300, early={60: 76})
    better = [replace(WORSE[2], correct=80, seed=seed) for seed in (0, 1)]
    claim = found(tmp_path, AUTO, longer, TABLE1, PRINTED, *WORSE[:2], *better, WORSE[3])[FT].claim()
    assert claim.tally == "does not hold"
    assert claim.evidence.startswith("38.00 against 40.00 with μ = 0.04 after 60 rounds (−2.00, 1 seed")


def test_a_shorter_run_of_a_constant_does_not_hide_its_longer_one(tmp_path: Path) -> None:
    own = PaperRecord("auto_sound_cifar10", "tinyproto_fp(auto)", 150)
    other = PaperRecord("auto_sound_cifar10", "tinyproto_fp(0.0003)", 190)
    last = {300 - back: 150 for back in range(1, 10)}
    made = [replace(own, early=last, seed=seed) for seed in (0, 1)]
    made += [replace(other, early=dict.fromkeys(last, 190), seed=seed) for seed in (0, 1)]
    last = {100 - back: 150 for back in range(1, 10)}
    made += [replace(own, rounds=100, early=last, seed=seed) for seed in (0, 1)]
    made += [replace(other, rounds=100, correct=140, early=last, seed=seed) for seed in (0, 1)]
    search = found(tmp_path, *made)[FP_SOUND]
    assert [row[1] for row in search.rows()] == ["100", "not run", "not run", "100", "300", "300"]
    assert search.claim().evidence.startswith("75.00 against 95.00 with μ = 0.0003 after 300 rounds (−20.00, 2 seeds")


def test_a_constant_of_two_runs_is_read_by_the_one_that_shares_more_rounds(tmp_path: Path) -> None:
    own = replace(AUTO, correct=80, rounds=100, early={60: 70})
    shorter, longer = replace(PRINTED, correct=60), replace(PRINTED, correct=90, rounds=300, early={60: 62, 100: 74})
    rows = [dict(zip(AUTO_HEADER, row, strict=True)) for row in found(tmp_path, own, shorter, longer)[FT].rows()]
    assert [(row["rounds"], row["global"]) for row in rows if row["rounds"] != "not run"] == [
        ("100", "40.00"), ("100", "37.00"),
    ]  # fmt: skip


def test_with_sound_the_mean_of_the_last_ten_evaluations_counts(tmp_path: Path) -> None:
    last = {100 - back: 160 for back in range(1, 10)}
    made = [
        PaperRecord("auto_sound_cifar10", "tinyproto_fp(auto)", 180, rounds=100, early=last),
        PaperRecord("auto_sound_cifar10", "tinyproto_fp(0.0003)", 170, rounds=100, early={50: 198, **last}),
    ]
    search = found(tmp_path, *made)[FP_SOUND]
    assert [row[4] for row in search.rows()] == ["81.00", "–", "–", "80.50"]
    assert search.claim().evidence.startswith("81.00 against 80.50 with μ = 0.0003 after 100 rounds (+0.50, 1 seed)")


def test_a_search_as_json_has_both_numbers_of_every_constant(tmp_path: Path) -> None:
    plain = found(tmp_path, AUTO, TABLE1)[FT].plain()
    assert (plain["dataset"], plain["preset"], plain["method"]) == ("cifar100", "reference", "tinyproto_ft")
    constants = {one["global_scale"]: one for one in plain["constants"]}
    assert constants.keys() == {0.0015, 0.01, *SCALES}
    assert constants[0.0015]["difference"] is None
    published = constants[0.01]
    assert (published["auto"]["global"], published["constant"]["global"]) == (0.38, 0.39)
    assert published["difference"] == pytest.approx(-0.01)
    assert published["seeds_apart"] is None
