"""Types on the wire from records that are known: what a row says, and when the aims are met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from paper.page.outcomes import Records
from paper.page.verdicts import Claim
from paper.page.wire_types import WIRE_HEADER, WireRow, any_typed, wire_claims, wire_figures, wire_rows
from support_paper import PaperRecord
from tinyproto.report.runs import find_runs, read_runs

FEDPROTO = PaperRecord("table1_cifar100", "fedproto", 60, payload=2200)
FEDTGP = PaperRecord("table1_cifar100", "fedtgp", 74, payload=2200, early={100: 70})
INT8 = PaperRecord("bytes_cifar100", "tinyproto_ft(s=50-int8-held)", 88, payload=38, evaluation=70)
"""On the wire, up and down over 20 clients: 88 060 B for FedProto, 1580 B for int8."""

INT4 = replace(INT8, label="tinyproto_ft(s=50-int4-held)", payload=20)  # 860 B


def records(folder: Path, *made: PaperRecord) -> Records:
    for record in made:
        record.write(folder)
    return Records(read_runs(find_runs([folder])) if made else [])


def told(row: WireRow) -> dict[str, str]:
    return dict(zip(WIRE_HEADER, row.words(), strict=True))


def named(rows: Sequence[WireRow], name: str, download: str = "held") -> list[dict[str, str]]:
    return [told(row) for row in rows if row.name == name and row.wire["download"] == download]


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Records:
    return records(
        tmp_path_factory.mktemp("results"),
        FEDPROTO,
        FEDTGP,
        replace(FEDTGP, correct=110, seed=1, early={}),
        PaperRecord("table1_cifar100", "local", 76),
        PaperRecord("table1_cifar100", "tinyproto_ft", 90, payload=220, early={100: 80}),
        INT8,
        replace(INT4, correct=73, rounds=100),
        PaperRecord("bytes_cifar100", "feddistill(int8)", 78, payload=110),
        PaperRecord("bytes_cifar100", "tinyproto_ft(s=100-int4-held)", 86, seed=2, payload=33),
    )


def test_a_row_has_accuracy_bytes_the_saving_and_what_evaluation_adds(some: Records) -> None:
    row, sooner = named(wire_rows(some), "TinyProto-FT, s=50, int8")
    assert row == {
        "method, s, type": "TinyProto-FT, s=50, int8", "download": "held", "rounds": "300", "head": "44.00",
        "global": "44.00", "local": "44.00", "Δ FedTGP": "+7.00", "training": "1.58 kB",
        "fewer": "55.7×", "with evaluation": "2.98 kB",
    }  # fmt: skip
    assert sooner["rounds"] == "100"  # since another cell has as many


def test_a_short_cell_is_held_against_fedtgp_after_as_many_rounds_and_of_the_same_seed(some: Records) -> None:
    rows = wire_rows(some)
    (short,) = named(rows, "TinyProto-FT, s=50, int4")
    assert (short["rounds"], short["global"], short["Δ FedTGP"]) == ("100", "36.50", "+1.50")
    other_seed = next(row for row in rows if row.cell.address.label == "tinyproto_ft(s=100-int4-held)")
    assert other_seed.difference("global") is None
    assert told(other_seed)["global"] == "43.00"


def test_cells_of_table_1_stand_beside_after_every_number_of_rounds(some: Records) -> None:
    rows = wire_rows(some)
    found = named(rows, "TinyProto-FT, s=50, float32", "all")
    assert [(row["rounds"], row["global"], row["Δ FedTGP"]) for row in found] == [
        ("300", "45.00", "+8.00"),
        ("100", "40.00", "+5.00"),
    ]
    assert [row["global"] for row in named(rows, "FedTGP, float32", "all")] == ["37.00", "35.00"]  # not of seed 1
    assert [row["fewer"] for row in named(rows, "FedProto, float32", "all")] == ["1.0×"] * 2


def test_every_cell_of_the_study_has_a_row_and_what_was_not_run_is_empty(some: Records) -> None:
    rows = wire_rows(some)
    twice = [row for row in rows if row.read_rounds == 100 and row.variant is not None and row.variant.rounds == 300]
    assert len(rows) == 31 + 7 + len(twice) == 31 + 7 + 6
    (row,) = named(rows, "TinyProto-FT, s=50, int4 stochastic")
    assert list(row.values())[2:] == ["not run", *["–"] * 7]
    head, _ = named(rows, "FedDistill, int8", "all")
    assert (head["head"], head["global"], head["Δ FedTGP"]) == ("39.00", "–", "–")


def test_without_fedproto_nothing_is_said_of_a_saving(tmp_path: Path) -> None:
    rows = wire_rows(records(tmp_path, INT8))
    (row,) = named(rows, "TinyProto-FT, s=50, int8")
    assert row["fewer"] == row["Δ FedTGP"] == "–"
    assert any_typed(rows)
    assert not any_typed(wire_rows(records(tmp_path / "other", FEDPROTO)))


def test_a_row_as_json_has_everything(some: Records) -> None:
    plain = next(row for row in wire_rows(some) if row.cell.address.label == INT8.label).plain()
    assert plain["wire"] == {"up": "int8", "down": "int8", "rounding": "nearest", "download": "held"}
    assert (plain["cps_dim"], plain["rounds"], plain["seeds"]) == (50, 300, [0])
    assert plain["training_bytes_per_round"] == 1580
    assert plain["all_bytes_per_round"] == 2980
    assert plain["times_fewer_than_fedproto"] == pytest.approx(88_060 / 1580)
    assert plain["difference"] == pytest.approx(0.07)


def test_a_derived_scale_is_named_and_meets_no_aim_of_the_published_one(tmp_path: Path) -> None:
    derived = replace(INT4, label="tinyproto_ft(s=50-int4-held-auto)", correct=99)
    found = records(tmp_path, FEDPROTO, FEDTGP, replace(INT4, correct=73), derived)
    rows = wire_rows(found)
    assert [row["global"] for row in named(rows, "TinyProto-FT, s=50, int4, auto μ")] == ["49.50"]
    assert "36.50 against FedTGP's 37.00" in wire_claims(rows)[1].evidence
    (figure,) = wire_figures(found, rows)
    assert {"TinyProto-FT int4", "TinyProto-FT int4, auto μ"} <= {row[0] for row in figure.rows}


# The aims


def aims(folder: Path, *made: PaperRecord) -> list[Claim]:
    return wire_claims(wire_rows(records(folder, *made)))


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        (INT8, "holds"),
        (replace(INT8, correct=74), "holds"),  # as good as FedTGP
        (replace(INT8, correct=73), "does not hold"),
        (replace(INT8, payload=39), "does not hold"),  # 1620 B: 54.4×
    ],
)
def test_an_aim_needs_both_the_bytes_and_the_accuracy(tmp_path: Path, changed: PaperRecord, verdict: str) -> None:
    assert aims(tmp_path, FEDPROTO, FEDTGP, changed)[0].tally == verdict


@pytest.mark.parametrize(("payload", "verdict"), [(20, "holds"), (21, "does not hold")])
def test_int4_is_to_send_a_hundred_times_fewer(tmp_path: Path, payload: int, verdict: str) -> None:
    assert aims(tmp_path, FEDPROTO, FEDTGP, replace(INT4, payload=payload))[1].tally == verdict


def test_an_aim_tells_its_numbers(tmp_path: Path) -> None:
    assert aims(tmp_path, FEDPROTO, FEDTGP, INT8)[0].evidence == (
        "55.7× fewer on the wire (1.58 kB against 88.1 kB a round; 2.98 kB with frames sent only to evaluate), 44.00 "
        "against FedTGP's 37.00 after 300 rounds (+7.00, 1 seed)."
    )


def test_a_short_run_is_told_but_decides_nothing(tmp_path: Path) -> None:
    claim = aims(tmp_path, FEDPROTO, FEDTGP, replace(INT8, rounds=100))[0]
    assert claim.tally == "undecided"
    assert "44.00 against FedTGP's 35.00 after 100 rounds (+9.00, 1 seed)" in claim.evidence
    assert claim.evidence.endswith("Needs bytes_cifar100: tinyproto_ft(s=50-int8-held).")


def test_without_the_same_seed_an_aim_cannot_be_told(tmp_path: Path) -> None:
    claim = aims(tmp_path, FEDPROTO, FEDTGP, replace(INT8, seed=2))[0]
    assert (claim.tally, claim.evidence) == ("undecided", "Needs a common seed of both.")


def test_without_records_an_aim_names_what_it_needs() -> None:
    claim = wire_claims(wire_rows(Records([])))[1]
    assert claim.evidence == "Needs bytes_cifar100: tinyproto_ft(s=50-int4-held); table1_cifar100: fedproto, fedtgp."


# The figure


def test_each_number_of_rounds_has_a_figure_of_all_cells_that_have_as_many(some: Records) -> None:
    whole, short = wire_figures(some, wire_rows(some))
    assert (whole.slug, short.slug) == ("extension-bytes-300", "extension-bytes-100")
    found = {tuple(row[:4]) for row in whole.rows}
    assert {
        ("TinyProto-FT int8", "ours", 1580.0, 0.44),
        ("FedProto", "ours", 88_060.0, 0.3),
        ("FedDistill (head)", "ours", 4460.0, 0.39),
        ("TinyProto-FT float32, all", "ours", 8860.0, 0.45),
        ("Local", "ours", None, 0.38),
    } <= found
    assert not [row for row in found if row[2] == 860.0]  # int4 at s=50 has 100 rounds alone
    assert ("TinyProto-FT int4", "ours", 860.0, 0.365) in {tuple(row[:4]) for row in short.rows}
    assert ("FedTGP", "ours", 88_060.0, 0.35) in {tuple(row[:4]) for row in short.rows}


def test_the_front_is_drawn_and_told(some: Records) -> None:
    whole, _ = wire_figures(some, wire_rows(some))
    assert whole.svg.count('class="front"') == 2  # the front and its place in the legend
    assert whole.alternative.endswith(
        "On the Pareto front: Local (38.00 % for nothing); TinyProto-FT int4 (s=100, int4: 43.00 % for 1.38 kB); "
        "TinyProto-FT int8 (s=50, int8: 44.00 % for 1.58 kB); "
        "TinyProto-FT float32, all (s=50, float32: 45.00 % for 8.86 kB)."
    )


def test_where_no_cell_of_the_study_was_run_nothing_is_drawn(tmp_path: Path) -> None:
    only = records(tmp_path, FEDPROTO)
    assert wire_figures(only, wire_rows(only)) == []
