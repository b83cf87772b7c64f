"""The paper's claims from records that are known; every verdict changes with them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from paper.experiments import BASELINES, CPS_DIMS, DATASETS
from paper.page.claims import claims
from paper.page.outcomes import Records
from paper.page.verdicts import Claim
from paper.printed import Address, ablation, printed_numbers
from support_paper import PaperRecord
from tinyproto.report.runs import find_runs, read_runs

CONVERGENCE = "CPS meets the assumption of the convergence proof, and its last step is an equality"
UP_TO = "It sends up to 4× fewer than FedDistill, by the paper's formula"
OVER_LOCAL = "TinyProto-FT (50) beats Local (not in the paper)"
FT = PaperRecord("table1_cifar100", "tinyproto_ft", 92, payload=10, formula=100)
SCALED = PaperRecord("appendix_cifar100", "tinyproto_ft(cps_dim=null,scaling=count)", 93)


def judged(folder: Path, made: Sequence[PaperRecord]) -> dict[str, Claim]:
    for record in made:
        record.write(folder)
    runs = read_runs(find_runs([folder])) if any(folder.rglob("summary.json")) else []
    return {claim.words: claim for claim in claims(Records(runs))}


def one(folder: Path, begins: str, *made: PaperRecord) -> Claim:
    return next(claim for words, claim in judged(folder, made).items() if words.startswith(begins))


def test_without_records_every_claim_is_undecided_but_those_on_a_formula_and_on_the_operators(tmp_path: Path) -> None:
    found = judged(tmp_path, [])
    assert len(found) == 9
    decided = [UP_TO, CONVERGENCE]
    assert [words for words, claim in found.items() if claim.verdict != "undecided"] == decided
    assert [words for words, claim in found.items() if not claim.needs] == [UP_TO]
    assert [words for words, claim in found.items() if not claim.printed] == [OVER_LOCAL]
    scaling = found["Scaling lifts TinyProto-FT on CIFAR-100 as much as printed, within 1.5 points"]
    assert scaling.evidence == (
        "Needs appendix_cifar100: tinyproto_ft(cps_dim=null,scaling=count), tinyproto_ft(cps_dim=50,scaling=none); "
        "table1_cifar100: fedtgp, tinyproto_ft."
    )


CIFAR = DATASETS[:2]
SETTINGS = ("table1_cifar10", "table1_cifar100", "table3_clients50", "table3_alpha001")
Compared = Sequence[tuple[Address, Sequence[Address]]]
CELLS: Mapping[str, Compared] = {
    "TinyProto sends 10×": [
        (Address(f"table1_{data}", "tinyproto_fp"), [Address(f"table1_{data}", "fedproto")]) for data in CIFAR
    ],
    "With scaling, CPS": [
        (ablation(data, name, 50, True), [ablation(data, name, None, True)])
        for data in CIFAR
        for name in ("tinyproto_fp", "tinyproto_ft")
    ],
    "Scaling lifts": [
        (ablation("cifar100", "tinyproto_ft", s, True), [ablation("cifar100", "tinyproto_ft", s, False)])
        for s in (None, 50)
    ],
    "TinyProto-FT (50) beats all six": [
        (Address(stem, "tinyproto_ft"), [Address(stem, name) for name in BASELINES]) for stem in SETTINGS
    ],
    "TinyProto-FT (50) beats Local": [(Address(stem, "tinyproto_ft"), [Address(stem, "local")]) for stem in SETTINGS],
    "CPS beats a smaller layer": [
        (ablation(data, "tinyproto_fp", d, False), [Address(f"compression_{data}_{d}", "fedproto")])
        for data in CIFAR
        for d in CPS_DIMS[:3]
    ],
}
"""By the beginning of a claim: most of the cells that it is about, each with those it is compared with."""


@pytest.mark.parametrize("begins", CELLS)
@pytest.mark.parametrize(
    ("good", "verdict"), [("all", "holds"), ("none", "does not hold"), ("one", "holds in part")], ids=lambda name: name
)
def test_every_verdict_follows_from_the_records(tmp_path: Path, begins: str, good: str, verdict: str) -> None:
    made = []
    for index, (subject, others) in enumerate(CELLS[begins]):
        fits = good == "all" or (good == "one" and index == 0)
        correct, parameters = (99, 1000) if fits else (50, 2000)  # of 200, and against 80 and 10 000
        made.append(PaperRecord(subject.stem, subject.label, correct, formula=parameters))
        made += [PaperRecord(other.stem, other.label, 80, formula=10_000) for other in others]
    assert one(tmp_path, begins, *made).verdict == verdict


def test_a_claim_holds_only_once_most_of_its_comparisons_were_run(tmp_path: Path) -> None:
    pairs = [(subject.stem, subject.label) for subject, _ in CELLS["CPS beats a smaller layer"][:5]]
    smaller = [(other.stem, other.label) for _, (other,) in CELLS["CPS beats a smaller layer"][:5]]
    made = [PaperRecord(*cell, 98) for cell in pairs] + [PaperRecord(*cell, 80) for cell in smaller]
    claim = one(tmp_path, "CPS beats a smaller layer", *made)
    assert claim.tally == "undecided (5 of 10 comparisons decide)"


@pytest.mark.parametrize(("parameters", "holds"), [(1000, True), (999, False)])
def test_a_cost_is_held_against_the_formula_even_of_a_short_run(tmp_path: Path, parameters: int, holds: bool) -> None:
    other = PaperRecord("table1_cifar100", "fedproto", 80, rounds=3, payload=20, formula=parameters)
    claim = one(tmp_path, "TinyProto sends 10×", replace(FT, label="tinyproto_fp"), other)
    assert [fact.holds for fact in claim.final] == [holds]
    assert "2.0× in payload bytes measured" in claim.evidence
    assert "CIFAR-100: tinyproto" not in claim.evidence  # nothing more is needed there


def test_up_to_so_many_times_fewer_is_decided_by_the_formula_with_measured_bytes_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [PaperRecord("table1_cifar10", label, rounds=3, payload=10) for label in ("tinyproto_ft", "feddistill")]
    claim = one(tmp_path, "It sends up to 4×", *made)
    assert claim.tally == "holds"
    assert claim.evidence == (
        "CIFAR-10: 0.2× by the formula, 1.0× in payload bytes measured (400 B against 400 B a round). CIFAR-100: 2.0× "
        "by the formula. Tiny-ImageNet: 4.0× by the formula."
    )
    monkeypatch.setattr("paper.page.claims.prototype_parameters", lambda held, classes, width: width + 1)
    assert one(tmp_path, "It sends up to 4×").tally == "does not hold"


@pytest.mark.parametrize(("rounds", "tally"), [(300, "holds in part so far (1 of 2)"), (60, "does not hold so far")])
def test_cps_is_also_asked_with_the_published_masks_which_a_short_run_cannot_tell(
    tmp_path: Path, rounds: int, tally: str
) -> None:
    blocks = PaperRecord("readings_methods", "tinyproto_ft(blocks)", 95, rounds=rounds)
    claim = one(tmp_path, "With scaling, CPS", replace(FT, correct=92), replace(SCALED, correct=96), blocks)
    assert claim.tally == tally
    assert "CIFAR-100 with the published blocks: TinyProto-FT (50), scaled 47.50 against" in claim.evidence


@pytest.mark.parametrize(
    ("correct", "holds"),
    [(77, True), (78, False), (72, True), (71, False)],
)
def test_scaling_has_to_gain_as_much_as_the_paper_prints(tmp_path: Path, correct: int, holds: bool) -> None:
    claim = one(tmp_path, "Scaling lifts", SCALED, PaperRecord("table1_cifar100", "fedtgp", correct))
    assert claim.facts[0].margin == pytest.approx(-abs((93 - correct) / 200 - 0.0918))  # 46.10 and 36.92 in print
    assert [fact.holds for fact in claim.final] == [holds]


def test_print_repeats_itself(tmp_path: Path) -> None:
    printed = [
        (subject.stem, subject.label, round(200 * printed_numbers()[subject].accuracy))
        for case, others in CELLS["Scaling lifts"]
        for subject in (case, *others)
    ]
    made = [PaperRecord(stem, label, correct) for stem, label, correct in printed]
    assert one(tmp_path, "Scaling lifts", *made).verdict == "holds"


@pytest.mark.parametrize(("correct", "holds"), [(94, True), (95, False)])
def test_cps_may_cost_a_point_and_not_more(tmp_path: Path, correct: int, holds: bool) -> None:
    claim = one(tmp_path, "With scaling, CPS", replace(FT, correct=92), replace(SCALED, correct=correct))
    assert claim.facts[0].margin == pytest.approx((92 - correct) / 200)
    assert [fact.holds for fact in claim.final] == [holds]


def test_one_stronger_baseline_decides_whatever_else_is_missing(tmp_path: Path) -> None:
    made = (FT, PaperRecord("table1_cifar100", "fedproto", 60), PaperRecord("table1_cifar100", "fedkd", 93))
    claim = one(tmp_path, "TinyProto-FT (50) beats all six", *made)
    assert claim.verdict == "does not hold"
    assert claim.evidence.startswith(
        "CIFAR-100 (2 of 6 were run): TinyProto-FT (50) 46.00 against FedKD 46.50 (−0.50, 1 seed; print +6.20). Needs"
    )
    assert Address("table1_cifar100", "fml") not in claim.needs


def test_a_setting_where_a_baseline_is_missing_cannot_hold(tmp_path: Path) -> None:
    made = [PaperRecord("table1_cifar100", name, 60) for name in BASELINES]
    claim = one(tmp_path / "five", "TinyProto-FT (50) beats all six", FT, *made[1:])
    assert claim.tally == "undecided"
    assert claim.facts[0].words.startswith("CIFAR-100 (5 of 6 were run): TinyProto-FT (50) 46.00 against F")
    assert Address("table1_cifar100", "lg_fedavg") in claim.needs
    claim = one(tmp_path / "six", "TinyProto-FT (50) beats all six", FT, *made)
    assert [fact.holds for fact in claim.final] == [True]


def test_a_draw_is_not_a_win(tmp_path: Path) -> None:
    claim = one(tmp_path, "TinyProto-FT (50) beats Local", FT, PaperRecord("table1_cifar100", "local", 92))
    assert claim.verdict == "does not hold"


def test_accuracies_of_short_runs_are_told_after_as_many_rounds_but_decide_nothing(tmp_path: Path) -> None:
    other = PaperRecord("table1_cifar100", "local", 84, rounds=10)
    claim = one(tmp_path, "TinyProto-FT (50) beats Local", replace(FT, early=dict.fromkeys(range(10, 300), 90)), other)
    assert claim.verdict == "undecided"
    assert (
        claim.facts[0].words == "CIFAR-100: TinyProto-FT (50) 45.00 against Local 42.00 after 10 rounds (+3.00, 1 seed)"
    )
    assert ("table1_cifar100", "local") in {
        (need.stem, need.label) for need in claim.needs if not isinstance(need, str)
    }


def test_a_comparison_with_a_run_that_collapsed_decides_nothing(tmp_path: Path) -> None:
    subject = PaperRecord("appendix_cifar100", "tinyproto_fp(cps_dim=150,scaling=none)", 60)
    burst = {rounds: 40 if rounds < 4 else 29 for rounds in range(1, 300)}
    smaller = PaperRecord("compression_cifar100_150", "fedproto", 50, early=burst)
    claim = one(tmp_path / "collapsed", "CPS beats a smaller layer", subject, smaller)
    assert claim.tally == "undecided"
    assert "(+5.00, 1 seed), decides nothing because a run collapsed" in claim.evidence
    assert Address("compression_cifar100_150", "fedproto") in claim.needs
    calm = {rounds: 40 if rounds < 4 else 30 for rounds in range(1, 300)}  # a quarter, not more
    claim = one(tmp_path / "calm", "CPS beats a smaller layer", subject, replace(smaller, early=calm))
    assert [fact.holds for fact in claim.final] == [True]


def test_a_scaled_method_is_not_compared_with_a_smaller_layer(tmp_path: Path) -> None:
    scaled = PaperRecord("appendix_cifar100", "tinyproto_fp(cps_dim=150,scaling=count)", 90)
    smaller = PaperRecord("compression_cifar100_150", "fedproto", 50)
    assert one(tmp_path, "CPS beats a smaller layer", scaled, smaller).facts == []


@pytest.mark.parametrize(("shift", "verdict"), [(0.0, "holds"), (1.0, "does not hold"), (-9.0, "does not hold")])
def test_dead_units_are_entries_not_above_zero_of_prototypes_that_are_kept(
    tmp_path: Path, shift: float, verdict: str
) -> None:
    fedproto = PaperRecord("table1_cifar100", "fedproto", rounds=3, prototypes=True)
    file = fedproto.write(tmp_path) / "prototypes.safetensors"
    tensors = load_file(file)
    name = "fedproto/0/local/values"
    tensors[name] = tensors[name] + np.float32(shift)  # half of them are zero
    save_file(tensors, file)
    claim = one(tmp_path, "About half")
    assert claim.verdict == verdict
    words = (
        r"% of the entries of FedProto's \d+ local prototypes kept are not above zero, [\d.]+ % are zero\. "
        r"By network: resnet8 [\d.]+ % of \d+, mobil"
    )
    assert re.search(words, claim.evidence)


def test_a_map_of_a_class_has_blank_rows_for_clients_without_it(tmp_path: Path) -> None:
    file = PaperRecord("table1_cifar10", "fedproto", rounds=3, prototypes=True).write(tmp_path)
    tensors = load_file(file / "prototypes.safetensors")
    tensors["fedproto/0/local/values"] = np.ones_like(tensors["fedproto/0/local/values"])
    tensors["fedproto/0/local/present"][:5, 2] = 0  # class 2 at 5 of 20 clients
    save_file(tensors, file / "prototypes.safetensors")
    claim = one(tmp_path, "About half")
    assert ". With a blank row for each client without the class, 25.0 % of the map of class 2 is" in claim.evidence


def test_a_record_without_prototypes_says_nothing_of_dead_units(tmp_path: Path) -> None:
    assert one(tmp_path, "About half", PaperRecord("table1_cifar100", "fedproto", rounds=3)).verdict == "undecided"


def test_of_many_comparisons_the_extremes_are_told_and_json_has_all(tmp_path: Path) -> None:
    made = []
    for data in CIFAR:
        for width in CPS_DIMS:
            made.append(PaperRecord(f"compression_{data}_{width}", "fedproto", width // 5))
            made.append(PaperRecord(f"appendix_{data}", f"tinyproto_fp(cps_dim={width},scaling=none)", 60))
    claim = one(tmp_path, "CPS beats a smaller layer", *made)
    assert claim.tally == "holds in part (6 of 10)"
    least, most = claim.sentences
    assert least.startswith("The least favourable of 10: CIFAR-10, d=450: ")
    assert most.startswith("The most favourable of 10: CIFAR-100, d=50: ")
    plain = claim.plain()
    assert (len(plain["facts"]), plain["comparisons"], plain["verdict"]) == (10, 10, "holds in part")
