from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from paper.page.claims import TEST, Claim, claims
from paper.page.outcomes import Records
from support_paper import PaperRecord
from tinyproto.report.runs import find_runs, read_runs

ROOT = Path(__file__).parents[2]
FT = PaperRecord("table1_cifar100", "tinyproto_ft", 92, payload=10, formula=100)
SCALED = PaperRecord("appendix_cifar100", "tinyproto_ft(cps_dim=null,scaling=count)", 93)


def judged(folder: Path, made: Sequence[PaperRecord]) -> dict[str, Claim]:
    for record in made:
        record.write(folder)
    runs = read_runs(find_runs([folder])) if made else []
    return {claim.words: claim for claim in claims(Records(runs))}


def one(folder: Path, begins: str, *made: PaperRecord) -> Claim:
    return next(claim for words, claim in judged(folder, made).items() if words.startswith(begins))


def test_without_records_every_claim_says_what_it_needs(tmp_path: Path) -> None:
    found = judged(tmp_path, [])
    assert len(found) == 9
    assert [words for words, claim in found.items() if claim.verdict != "undecided"] == [
        "It sends up to 4× fewer than FedDistill",
        "CPS meets the assumption of the convergence proof: fixed support, non-expansive",
    ]
    scaling = found["Scaling lifts TinyProto-FT by about 9 points on CIFAR-100"]
    assert scaling.evidence == (
        "Needs appendix_cifar100: tinyproto_ft(cps_dim=null,scaling=count), tinyproto_ft(cps_dim=50,scaling=none); "
        "table1_cifar100: fedtgp, tinyproto_ft."
    )


def test_the_test_that_a_claim_names_is_there() -> None:
    file, _, name = TEST.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text()


@pytest.mark.parametrize(("parameters", "verdict"), [(1000, "holds so far"), (999, "does not hold so far")])
def test_a_cost_is_held_against_the_formula_even_of_a_short_run(tmp_path: Path, parameters: int, verdict: str) -> None:
    other = PaperRecord("table1_cifar100", "fedproto", 80, rounds=3, payload=20, formula=parameters)
    claim = one(tmp_path, "TinyProto sends 10×", replace(FT, label="tinyproto_fp"), other)
    assert claim.tally == verdict
    assert "2.0× in payload bytes measured" in claim.evidence
    assert "CIFAR-100: tinyproto" not in claim.evidence  # nothing more is needed there


def test_up_to_so_many_times_fewer_is_so_on_the_dataset_with_most_classes(tmp_path: Path) -> None:
    other = PaperRecord("table1_cifar100", "feddistill", 80, rounds=3, payload=20)
    claim = one(tmp_path, "It sends up to 4×", FT, other)
    assert claim.tally == "holds"
    assert claim.evidence == (
        "CIFAR-10: 0.2× by the formula; CIFAR-100: 2.0× by the formula, 2.0× in payload bytes measured (400 B against "
        "800 B a round); Tiny-ImageNet: 4.0× by the formula."
    )


@pytest.mark.parametrize(("rounds", "tally"), [(300, "holds in part so far (1 of 2)"), (60, "does not hold so far")])
def test_cps_is_also_asked_with_the_published_masks_which_a_short_run_cannot_tell(
    tmp_path: Path, rounds: int, tally: str
) -> None:
    blocks = PaperRecord("readings_methods", "tinyproto_ft(blocks)", 95, rounds=rounds)
    claim = one(tmp_path, "With scaling, CPS", replace(FT, correct=92), replace(SCALED, correct=96), blocks)
    assert claim.tally == tally
    assert "CIFAR-100 with the published blocks: TinyProto-FT (50), scaled 47.50 against" in claim.evidence


@pytest.mark.parametrize(
    ("correct", "verdict"),
    [(78, "holds so far"), (79, "does not hold so far"), (72, "holds so far"), (71, "does not hold so far")],
)
def test_about_nine_points_are_seven_and_a_half_to_ten_and_a_half(tmp_path: Path, correct: int, verdict: str) -> None:
    claim = one(tmp_path, "Scaling lifts", SCALED, PaperRecord("table1_cifar100", "fedtgp", correct))
    assert claim.facts[0].margin == pytest.approx(-abs((93 - correct) / 200 - 0.09))
    assert claim.tally == verdict


@pytest.mark.parametrize(("correct", "verdict"), [(94, "holds so far"), (95, "does not hold so far")])
def test_cps_may_cost_a_point_and_not_more(tmp_path: Path, correct: int, verdict: str) -> None:
    claim = one(tmp_path, "With scaling, CPS", replace(FT, correct=92), replace(SCALED, correct=correct))
    assert claim.facts[0].margin == pytest.approx((92 - correct) / 200)
    assert claim.tally == verdict


def test_of_all_baselines_the_strongest_decides_and_local_is_asked_apart(tmp_path: Path) -> None:
    made = (
        FT,
        PaperRecord("table1_cifar100", "fedproto", 60),
        PaperRecord("table1_cifar100", "fedkd", 93),
        PaperRecord("table1_cifar100", "local", 84),
    )
    claim = one(tmp_path, "TinyProto-FT (50) beats every baseline", *made)
    assert claim.verdict == "does not hold"
    assert claim.evidence.startswith("CIFAR-100: TinyProto-FT (50) 46.00 against FedKD 46.50 (−0.50). Needs more of")
    (local,) = [found for words, found in judged(tmp_path / "again", made).items() if "beats Local" in words]
    assert local.tally == "holds so far"


def test_a_draw_is_not_a_win(tmp_path: Path) -> None:
    claim = one(tmp_path, "TinyProto-FT (50) beats Local", FT, PaperRecord("table1_cifar100", "local", 92))
    assert claim.verdict == "does not hold"


def test_accuracies_of_short_runs_are_told_after_as_many_rounds_but_decide_nothing(tmp_path: Path) -> None:
    other = PaperRecord("table1_cifar100", "local", 84, rounds=10)
    claim = one(tmp_path, "TinyProto-FT (50) beats Local", replace(FT, early={10: 90}), other)
    assert claim.verdict == "undecided"
    assert claim.facts[0].words == "CIFAR-100: TinyProto-FT (50) 45.00 against Local 42.00 after 10 rounds (+3.00)"
    assert ("table1_cifar100", "local") in {
        (need.stem, need.label) for need in claim.needs if not isinstance(need, str)
    }


def test_dead_units_are_counted_where_a_run_folder_keeps_its_prototypes(tmp_path: Path) -> None:
    fedproto = PaperRecord("table1_cifar100", "fedproto", rounds=3)
    assert one(tmp_path / "record", "About half", fedproto).verdict == "undecided"
    claim = one(tmp_path / "folder", "About half", replace(fedproto, prototypes=True))
    assert claim.verdict == "holds"  # noise of which the negative half was set to zero
    words = (
        r"% of the entries of FedProto's \d+ local prototypes kept are zero \(resnet8 [\d.]+ % of \d+, mobilenet_v2 "
    )
    assert re.search(words, claim.evidence)


def test_of_many_comparisons_the_extremes_are_told_and_json_has_all(tmp_path: Path) -> None:
    made = []
    for width in (50, 150, 250, 350, 450):
        made.append(PaperRecord(f"compression_cifar100_{width}", "fedproto", width // 5))
        scaled = f"tinyproto_fp(cps_dim={width},scaling=count)" if width != 50 else "tinyproto_fp"
        stem = "appendix_cifar100" if width != 50 else "table1_cifar100"
        made += [
            PaperRecord("appendix_cifar100", f"tinyproto_fp(cps_dim={width},scaling=none)", 60),
            PaperRecord(stem, scaled, 60),
        ]
    claim = one(tmp_path, "CPS beats a smaller layer", *made)
    assert claim.tally == "holds in part so far (6 of 10)"
    assert "10 comparisons, the least favourable CIFAR-100, d=450: " in claim.evidence
    assert "most CIFAR-100, d=50: " in claim.evidence
    assert len(claim.plain()["facts"]) == 10
    assert claim.plain()["verdict"] == "holds in part"
