"""50 clients as in the released scripts, and other partitions, from records that are known."""

from __future__ import annotations

from pathlib import Path

from paper.page.extensions import extensions
from paper.page.other_settings import PARTITIONS_HEADER, SCRIPT_HEADER, PartitionRow, ScriptRow
from paper.page.outcomes import Records
from support_paper import PaperRecord
from tinyproto.report.runs import find_runs, read_runs


def records(folder: Path, *made: PaperRecord) -> Records:
    for record in made:
        record.write(folder)
    return Records(read_runs(find_runs([folder])) if made else [])


def told(row: ScriptRow | PartitionRow) -> dict[str, str]:
    header = SCRIPT_HEADER if isinstance(row, ScriptRow) else PARTITIONS_HEADER
    return dict(zip(header, row.words(), strict=True))


def test_the_scripts_loop_stands_beside_table_3_and_the_printed_number(tmp_path: Path) -> None:
    made = records(
        tmp_path,
        PaperRecord("table3_clients50", "tinyproto_ft", 73, head=72, local=60),
        PaperRecord("published_clients50", "tinyproto_ft(s=250)", 88, rounds=500),
    )
    table, wide, narrow = map(told, extensions(made).scripts)
    assert table == {
        "cell": "CIFAR-100, 50 clients, TinyProto-FT (50) as in Table 3", "paper": "43.51", "ours": "36.50",
        "Δ": "−7.01", "rounds": "all 300", "seeds": "0", "head": "36.00", "local": "30.00",
    }  # fmt: skip
    assert (wide["paper"], wide["ours"], wide["Δ"], wide["rounds"]) == ("43.51", "44.00", "+0.49", "all 500")
    for change in ("s: 250 instead of 50", "λ: 20.0 instead of 10.0", "μ: 0.02 instead of 0.01"):
        assert change in wide["cell"]
    assert (narrow["ours"], "s: 250" in narrow["cell"]) == ("not run", False)


def test_other_partitions_are_held_against_local_on_the_same_one(tmp_path: Path) -> None:
    made = records(
        tmp_path,
        PaperRecord("table1_cifar100", "local", 76),
        PaperRecord("table1_cifar100", "tinyproto_ft", 90),
        PaperRecord("partitions_2", "local", 70),
        PaperRecord("partitions_2", "tinyproto_ft", 80, head=60, rounds=100),
        PaperRecord("partitions_3", "fedtgp", 74),
    )
    rows = {(row["partition seed"], row["algorithm"]): row for row in map(told, extensions(made).partitions)}
    assert len(rows) == 9
    assert rows["1", "TinyProto-FT (50)"]["Δ Local"] == "+7.00"
    early = rows["2", "TinyProto-FT (50)"]  # Local has a tenth of its 70 until the last round
    assert [early[key] for key in ("rounds", "head", "global", "Δ Local")] == ["100", "30.00", "40.00", "+36.50"]
    assert (rows["3", "FedTGP"]["global"], rows["3", "FedTGP"]["Δ Local"]) == ("37.00", "–")
    assert rows["3", "Local"]["rounds"] == "not run"


def test_a_study_without_a_run_of_its_own_names_the_command_that_runs_it(tmp_path: Path) -> None:
    made = records(tmp_path, PaperRecord("table3_clients50", "tinyproto_ft"), PaperRecord("table1_cifar100", "local"))
    *_, scripts, partitions = extensions(made).studies()
    assert scripts.words == "Not run yet: `python -m paper published --configs published_clients50` runs it."
    assert partitions.words == "Not run yet: `python -m paper partitions` runs it."
    assert not scripts.rows
    assert not partitions.rows
    own = PaperRecord("published_clients50", "tinyproto_ft(s=50)"), PaperRecord("partitions_3", "local")
    *_, scripts, partitions = extensions(records(tmp_path / "own", *own)).studies()
    assert (len(scripts.rows), len(partitions.rows)) == (3, 9)


def test_both_studies_are_in_the_json(tmp_path: Path) -> None:
    made = records(tmp_path, PaperRecord("partitions_2", "fedtgp", 74))
    plain = extensions(made).plain()
    assert [row["label"] for row in plain["clients50"]] == ["tinyproto_ft", "tinyproto_ft(s=250)", "tinyproto_ft(s=50)"]
    (found,) = [row for row in plain["partitions"] if row["ours"] is not None]
    assert (found["partition_seed"], found["label"], found["ours"]["mean"]) == (2, "fedtgp", 0.37)
