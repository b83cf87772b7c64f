"""What docs/reference/paper.md says in words above its tables is what the records say."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from paper.page.auto_scale import searches
from paper.page.convergence import convergence
from paper.page.dead_units import recorded_prototypes
from paper.page.markdown import BEGIN, PAGE, RECORDS
from paper.page.outcomes import Outcome, Records
from paper.page.readings import readings, rule_rows
from paper.printed import Address, printed_numbers
from tinyproto.report.runs import find_runs, read_readable_runs

ROOT = Path(__file__).parents[2]
HUNDRED, TEN = "table1_cifar100", "table1_cifar10"
OTHERS = ("lg_fedavg", "fml", "fedkd", "feddistill", "fedproto", "fedtgp", "tinyproto_fp")


@pytest.fixture(scope="module")
def records() -> Records:
    runs, problems = read_readable_runs(find_runs([ROOT / RECORDS]))
    assert problems == []
    return Records(runs)


@pytest.fixture(scope="module")
def prose() -> str:
    return " ".join((ROOT / PAGE).read_text(encoding="utf-8").partition(BEGIN)[0].split())


def found(records: Records, stem: str, label: str, preset: str = "reference") -> Outcome:
    outcome = records.find(Address(stem, label), preset)
    assert outcome is not None
    return outcome


def reached(records: Records, stem: str, label: str, seeds: list[int] | None = None, rule: str | None = None) -> float:
    outcome = found(records, stem, label)
    spread = outcome.best_after(outcome.rounds, seeds)[rule or outcome.rule]
    assert spread is not None
    return 100 * spread.mean


def test_fedproto_is_the_mean_of_the_planned_seeds_and_the_other_is_told_beside(records: Records, prose: str) -> None:
    outcome = found(records, HUNDRED, "fedproto")
    assert outcome.seeds == [0, 1, 2]
    by_seed = [reached(records, HUNDRED, "fedproto", [seed]) for seed in outcome.seeds]
    mean, printed = reached(records, HUNDRED, "fedproto"), printed_numbers()[outcome.cell.address].accuracy
    assert (f"{mean:.2f}", f"{mean - 100 * printed:+.2f}") == ("31.96", "+1.99")
    assert f"reach {min(by_seed):.1f} to {max(by_seed):.1f} %." in prose
    assert f"Their mean is {mean:.1f} %, where {100 * printed:.1f} is printed" in prose
    (beside,) = records.unplanned(Address(HUNDRED, "fedproto"))
    assert (beside.seeds, beside.collapsed, outcome.collapsed) == ([3], True, False)
    assert beside.accuracy is not None
    losses = [(record["loss"]["regulariser"], record["round"]) for record in beside.found[0].rounds if record["loss"]]
    highest, round_ = max(losses)
    words = f"collapsed in round {round_}, when the regulariser rose to {highest:.0f}, and reached "
    assert f"{words}{100 * beside.accuracy.mean:.1f} %" in prose


def test_the_best_method_is_that_on_cifar100_alone(records: Records, prose: str) -> None:
    best = reached(records, HUNDRED, "tinyproto_ft", [0])
    margin = best - max(reached(records, HUNDRED, name, [0]) for name in OTHERS)
    assert f"On CIFAR-100 it is {margin:.1f} points above the next one" in prose
    better = sum(reached(records, TEN, name) > reached(records, TEN, "tinyproto_ft") for name in OTHERS)
    assert better == 5
    assert "with the published μ, five of the other seven are better" in prose


def test_local_is_as_strong_as_the_page_says(records: Records, prose: str) -> None:
    hundred, ten = (reached(records, stem, "local") for stem in (HUNDRED, TEN))
    assert f"It reaches {hundred:.1f} % on CIFAR-100 and {ten:.1f} % on CIFAR-10 (one seed)" in prose
    above = {name for name in (*OTHERS, "tinyproto_ft") if reached(records, HUNDRED, name) > hundred + 1}
    assert above == {"tinyproto_ft", "feddistill", "fedkd"}
    gains = {name: reached(records, TEN, name) - ten for name in (*OTHERS, "tinyproto_ft")}
    assert [name for name, gain in gains.items() if gain > 0] == ["fedkd"]
    assert f"only FedKD beats it, by {gains['fedkd']:.1f}" in prose
    printed = [100 * printed_numbers()[Address(TEN, name)].accuracy for name in (*OTHERS, "tinyproto_ft")]
    assert (sum(abs(ten - one) <= 1.5 for one in printed), len(printed)) == (6, 8)
    assert "Local alone is near six of the eight numbers of Table 1 on CIFAR-10" in prose


def test_prototypes_gathered_during_training_come_near_print(records: Records) -> None:
    for stem, label, cell in (
        ("readings_methods", "fedproto(running)", Address(HUNDRED, "fedproto")),
        ("readings_cifar10", "fedproto(running)", Address(TEN, "fedproto")),
        *(
            (
                "readings_ablation",
                f"tinyproto_fp({keys},running)",
                Address("appendix_cifar100", f"tinyproto_fp({keys})"),
            )
            for keys in ("cps_dim=250,scaling=none", "cps_dim=null,scaling=count")
        ),
    ):
        *_, longest = records.find_all(Address(stem, label))
        assert longest.rounds == 300
        assert longest.accuracy is not None
        assert abs(longest.accuracy.mean - printed_numbers()[cell].accuracy) < 0.005
        assert max(record["loss"]["regulariser"] for record in longest.found[0].rounds if record["loss"]) < 0.2


def test_the_text_as_printed_is_one_run_each_with_all_points_at_once(records: Records, prose: str) -> None:
    fedproto, tinyproto_ft = (reading for reading in readings(records) if reading.cell.stem == "readings_paper")
    assert "5 points at once" in fedproto.name
    assert "6 points at once" in tinyproto_ft.name
    first, second = (reading.accuracies()["local"] for reading in (fedproto, tinyproto_ft))
    assert first is not None
    assert second is not None
    assert (fedproto.seeds, tinyproto_ft.seeds, fedproto.rounds, tinyproto_ft.rounds) == ([0], [0], 60, 60)
    assert fedproto.variant is not None
    after_one = fedproto.variant.best_after(1)["local"]
    last = fedproto.variant.found[0].points[-1].accuracy["local"]
    assert after_one == first  # its best evaluation is of networks that no prototype has pulled
    assert last is not None
    words = (
        f"before any prototype arrives: {100 * first.mean:.0f} % by local prototypes, at the end {100 * last:.0f} %."
    )
    assert f"{words} TinyProto-FT reaches {100 * second.mean:.0f} %" in prose


def test_the_evaluation_rule_is_not_the_nearest_to_print_everywhere(records: Records, prose: str) -> None:
    nearest = Counter(row.nearest for row in rule_rows(records))
    assert nearest == {"global": 8, "head": 3, "local": 1}
    assert "of twelve numbers, eight are nearest to print by global prototypes, three by the head and one by" in prose


def test_the_lead_over_local_shrinks_with_the_preset_sound(records: Records, prose: str) -> None:
    reference = reached(records, HUNDRED, "tinyproto_ft", [0]) - reached(records, HUNDRED, "local")
    local = found(records, HUNDRED, "local", "sound").read_after(300, None, "last10")
    ours = found(records, HUNDRED, "tinyproto_ft", "sound").read_after(300, [0], "last10")["global"]
    best = max(one.mean for one in local.values() if one is not None)
    assert ours is not None
    assert f"Local then reaches {100 * best:.1f} % by its better rule" in prose
    assert f"is {100 * (ours.mean - best):.1f} points, instead of {reference:.1f} with `reference` (seed 0)" in prose


def test_some_recorded_prototypes_do_not_have_the_support_that_the_proof_assumes(records: Records, prose: str) -> None:
    (fact,) = [fact for fact in convergence(recorded_prototypes(records)).facts if fact.words.startswith("(a)")]
    ten, hundred = (100 - float(share) for share in re.findall(r"([\d.]+) % of \d+ \(", fact.words))
    assert f"recorded prototypes, {ten:.0f} % on CIFAR-10 and {hundred:.0f} % on CIFAR-100 have one" in prose


def test_a_derived_scale_is_as_good_in_all_that_decides_half_of_it_with_another_aggregation(
    records: Records, prose: str
) -> None:
    found = searches(records)
    decided = [search for search in found if search.claim().final]
    assert [search.claim().verdict for search in decided] == ["holds"] * 4
    assert sum("preset sound, aggregation sum" in search.name for search in decided) == 2
    (small,) = [search for search in decided if search.name.startswith("TinyProto-FT (50), CIFAR-10,")]
    assert small.hardest is not None
    assert small.hardest.cell is max(small.constants, key=lambda one: float(one.cell.entry["global_scale"])).cell
    assert "as good as the best constant tried** in all four comparisons that decide" in prose


def test_the_fewest_bytes_are_told_with_the_accuracy_they_allow(records: Records, prose: str) -> None:
    small = found(records, "bytes_cifar100", "tinyproto_ft(s=10-int4-held-auto)")
    fedproto, fedtgp = (found(records, HUNDRED, name) for name in ("fedproto", "fedtgp"))
    assert f"**{fedproto.row.wire_bytes / small.row.wire_bytes:.0f} times fewer bytes" in prose
    ours, theirs = small.best_after(100)["head"], fedtgp.best_after(100, [0])["head"]
    assert ours is not None
    assert theirs is not None
    assert f"head then reaches {100 * ours.mean:.1f} % after 100 rounds" in prose
    assert f"FedTGP in float32 {100 * theirs.mean:.1f} %" in prose
