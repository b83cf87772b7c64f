"""Records: what is kept of a cell, how it is found again, and run folders that become records."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import yaml

from paper import records_reader
from paper.plan import Selection, plan
from paper.records_reader import (
    Drawn,
    Imported,
    drawn_of,
    drawn_only,
    find_finished,
    finished_cells,
    import_run,
    write_record,
)
from paper.run import Reproduction
from support_reproduce import ROUNDS, miniature, use
from tinyproto import grid
from tinyproto.config import parse_config
from tinyproto.errors import RunFolderError
from tinyproto.experiment import Experiment
from tinyproto.report.runs import read_run
from tinyproto.tracking.run_folder import lines_kept

FILES = ["config.yaml", "environment.json", "rounds.jsonl.gz", "summary.json", "timings.jsonl.gz"]


def play(runs: Path, **changed: Any) -> Path:
    """A run folder as `tinyproto run` makes it of a config of the paper."""
    values = {**miniature()[0].values, **changed}
    return grid.run(Experiment(parse_config(values)), runs)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both seeds of both algorithms of table1_small."""
    return play(tmp_path_factory.mktemp("whole"))


@pytest.fixture(autouse=True)
def small_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, miniature())


def test_a_finished_cell_becomes_a_run_folder_of_its_own(tmp_path: Path, whole: Path) -> None:
    cells = finished_cells(whole)
    assert [(one.result["label"], one.seed, one.rounds) for one in cells] == [
        ("local", 0, ROUNDS), ("fedproto", 0, ROUNDS), ("local", 1, ROUNDS), ("fedproto", 1, ROUNDS)
    ]  # fmt: skip
    target = tmp_path / "fedproto-1"
    write_record(target, cells[3], "table1_small", None)
    assert sorted(path.name for path in target.iterdir()) == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["fedproto-1"]
    record = read_run(target)
    assert [(result["label"], result["seed"]) for result in record.results] == [("fedproto", 1)]
    assert [round_["round"] for round_ in record.rounds["fedproto", 1]] == [1, 2, 3, 4]
    assert (record.config["seeds"], record.config["data"]["root"]) == ([1], "data")
    assert parse_config(record.config).resolved() == record.config
    for name in ("rounds.jsonl", "timings.jsonl"):
        kept = lines_kept(target / name)
        assert kept in (whole / name).read_bytes()
        assert all(json.loads(line)["seed"] == 1 for line in kept.splitlines())
    (again,) = find_finished(tmp_path)
    assert (again.key, again.seed, again.rounds) == (cells[3].key, 1, ROUNDS)


def test_the_same_lines_are_packed_into_the_same_bytes_and_damaged_ones_are_named(tmp_path: Path, whole: Path) -> None:
    cell = finished_cells(whole)[1]
    for name in ("once", "again"):
        write_record(tmp_path / name, cell, "table1_small", None)
    once, again = (tmp_path / name / "rounds.jsonl.gz" for name in ("once", "again"))
    assert once.read_bytes() == again.read_bytes()
    again.write_bytes(once.read_bytes()[:-20])
    with pytest.raises(RunFolderError, match=r"rounds\.jsonl cannot be read"):
        read_run(again.parent)
    with pytest.raises(RunFolderError, match=r"rounds\.jsonl cannot be read"):
        finished_cells(again.parent)[0].lines("rounds.jsonl")


def test_a_record_takes_the_place_of_another_whole(tmp_path: Path, whole: Path) -> None:
    first, second = finished_cells(whole)[:2]
    target = tmp_path / "cell"
    write_record(target, first, "table1_small", None)
    (tmp_path / ".cell.partial").mkdir()  # of one that was killed
    write_record(target, second, "table1_small", None)
    assert [one.result["label"] for one in find_finished(tmp_path)] == ["fedproto"]
    assert [path.name for path in tmp_path.iterdir()] == ["cell"]


def test_a_record_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path, whole: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot write"):
        write_record(tmp_path / "file" / "cell", finished_cells(whole)[0], "table1_small", None)


@pytest.mark.parametrize("missing", ["timings.jsonl", "environment.json"])
def test_a_run_that_lacks_a_file_makes_no_record(tmp_path: Path, whole: Path, missing: str) -> None:
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / missing).unlink()
    with pytest.raises(RunFolderError, match=f"{missing} cannot be read"):
        import_run(tmp_path / "run", tmp_path / "results")
    assert find_finished(tmp_path / "results") == []


@pytest.mark.parametrize("text", ["[", "[]", '{"results": [{}]}', '{"results": [3]}'])
def test_a_summary_that_no_run_writes_is_nobody_s_record(tmp_path: Path, whole: Path, text: str) -> None:
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "summary.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"summary\.json"):
        finished_cells(tmp_path / "run")
    assert find_finished(tmp_path) == []


def test_a_whole_run_folder_anywhere_below_counts_as_done(tmp_path: Path, whole: Path) -> None:
    shutil.copytree(whole, tmp_path / "results" / "deep" / "mine")
    (tmp_path / "results" / "deep" / ".hidden").mkdir()
    (tmp_path / "results" / "broken").mkdir()
    (tmp_path / "results" / "broken" / "config.yaml").write_text("[")
    standing = Reproduction(plan("table1", Selection()), tmp_path / "results", tmp_path / "runs").status()
    assert [(one.cell.stem, one.cell.label, one.cell.seed, one.state) for one in standing] == [
        ("table1_small", "fedproto", 0, "done"),
        ("table1_small", "local", 0, "done"),
        ("table1_other", "fedproto", 0, "to do"),
        ("table1_small", "fedproto", 1, "done"),
        ("table1_small", "local", 1, "done"),
        ("table1_other", "fedproto", 1, "to do"),
    ]
    assert standing[0].folder == tmp_path / "results" / "deep" / "mine"
    longer = Reproduction(plan("table1", Selection(rounds=9)), tmp_path / "results", tmp_path / "runs").status()
    assert {one.state for one in longer} == {"to do"}


def told(found: list[Imported], results: Path) -> list[tuple[str, int, str | None, bool]]:
    return [
        (
            one.finished.result["label"],
            one.finished.seed,
            None if one.record is None else str(one.record.relative_to(results)),
            one.written,
        )
        for one in found
    ]


def test_the_finished_cells_of_a_run_are_imported_once(tmp_path: Path, whole: Path) -> None:
    found = told(import_run(whole, tmp_path), tmp_path)
    assert found == [
        ("local", 0, "table1_small/local-0", True),
        ("fedproto", 0, "table1_small/fedproto-0", True),
        ("local", 1, "table1_small/local-1", True),
        ("fedproto", 1, "table1_small/fedproto-1", True),
    ]
    assert told(import_run(whole, tmp_path), tmp_path) == [(*one[:3], False) for one in found]
    standing = Reproduction(plan("table1", Selection()), tmp_path, tmp_path / "runs").status()
    assert [one.state for one in standing].count("done") == 4


def test_another_name_preset_or_number_of_rounds_is_imported_under_the_paper_s(tmp_path: Path) -> None:
    other = {
        "name": "mine", "preset": "paper", "seeds": [7], "train": {"rounds": 1, "batch_size": 64},
        "algorithms": [{"name": "fedproto", "label": "mine/own"}, {"name": "fedproto", "distance": "mse"}],
    }  # fmt: skip
    found = told(import_run(play(tmp_path / "runs", **other), tmp_path), tmp_path)
    assert found[0] == ("mine/own", 7, "table1_small@paper@1rounds/fedproto-7", True)
    assert found[1][2:] == (None, False)
    record = read_run(tmp_path / "table1_small@paper@1rounds" / "fedproto-7")
    assert (record.name, record.results[0]["label"]) == ("table1_small", "mine/own")


def test_cells_of_a_run_under_way_that_wait_to_be_added_are_imported(tmp_path: Path, whole: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    own = run / "cells" / "004-fedproto-1"
    write_record(own, finished_cells(whole)[3], "table1_small", None)
    for name in ("config.yaml", "environment.json"):  # which a cell's folder does not have
        (own / name).unlink()
    (run / "cells" / "003-local-1").mkdir()  # under way
    summary = json.loads((run / "summary.json").read_text())
    summary["results"] = summary["results"][:2]
    (run / "summary.json").write_text(json.dumps(summary))
    found = told(import_run(run, tmp_path / "results"), tmp_path / "results")
    assert [one[2] for one in found] == [f"table1_small/{name}" for name in ("local-0", "fedproto-0", "fedproto-1")]
    kept = tmp_path / "results" / "table1_small" / "fedproto-1"
    assert lines_kept(kept / "rounds.jsonl") == lines_kept(own / "rounds.jsonl")
    assert (kept / "environment.json").read_bytes() == (whole / "environment.json").read_bytes()


def test_what_is_no_run_folder_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is not a run folder"):
        import_run(tmp_path, tmp_path)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"name": "unresolved", "algorithms": ["local"]}))
    with pytest.raises(RunFolderError, match="is not the resolved config of a run"):
        import_run(tmp_path, tmp_path)


# Prototypes that are drawn


def test_which_cells_are_drawn() -> None:
    sparse = {"name": "tinyproto_fp", "cps_dim": 250, "scaling": "none"}
    assert drawn_of("table1", "cifar10", {"name": "fedproto"}, 0) == Drawn((2, 4), 10)
    assert drawn_of("appendix", "cifar100", sparse, 0) == Drawn((22,), 8)
    assert drawn_of("appendix", "cifar100", sparse, 1) is None
    assert drawn_of("appendix", "cifar100", sparse, 1, any_seed=True) == Drawn((22,), 8)
    assert drawn_of("appendix", "cifar100", {**sparse, "cps_dim": 150}, 0) is None
    assert drawn_of("appendix", "tiny_imagenet", sparse, 0) is None
    assert drawn_of("figure-compression", "cifar10", {"name": "fedproto"}, 0) is None


def test_only_rows_that_are_drawn_are_kept() -> None:
    random = torch.Generator().manual_seed(0)
    present = (torch.rand(5, 6, generator=random) < 0.7).to(torch.uint8)
    tensors = {
        "a/0/local/values": torch.rand(5, 6, 3, generator=random),
        "a/0/local/present": present,
        "a/0/global/values": torch.rand(6, 3, generator=random),
        "a/0/global/present": torch.ones(6, dtype=torch.uint8),
        "b/0/local/values": torch.zeros(5, 6, 3),
    }
    kept = drawn_only(tensors, "a/0", Drawn((1, 4), 2))
    wanted = {(client, class_) for client in range(5) for class_ in range(6) if client == 2 or class_ in (1, 4)}
    there = [place for place in sorted(wanted) if present[place]]
    assert [tuple(place) for place in kept["a/0/local/present"].nonzero().tolist()] == there
    expected = torch.stack([tensors["a/0/local/values"][place] for place in there])
    assert torch.equal(kept["a/0/local/rows"], expected)
    assert torch.equal(kept["a/0/global/values"], tensors["a/0/global/values"])
    assert set(kept) == {f"a/0/{name}" for name in ("local/rows", "local/present", "global/values", "global/present")}

    assert drawn_only({**kept, "b/0/local/values": torch.zeros(1)}, "a/0", Drawn((2,), 0)) == kept  # a record again


def test_a_record_that_is_drawn_keeps_its_prototypes_and_a_report_reads_them(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records_reader, "DRAWN", {"digits": Drawn((3,), 1)})
    found = told(import_run(whole, tmp_path), tmp_path)
    folder = tmp_path / "table1_small"
    assert {one[2] for one in found if (folder.parent / str(one[2]) / "prototypes.safetensors").is_file()} == {
        "table1_small/fedproto-0"
    }
    drawn = read_run(folder / "fedproto-0").prototypes("fedproto", 0)
    all_ = read_run(whole).prototypes("fedproto", 0)
    assert drawn is not None
    assert all_ is not None
    assert drawn.local.shape == all_.local.shape
    assert np.array_equal(drawn.local_present[1], all_.local_present[1])
    assert np.array_equal(drawn.local_present[:, 3], all_.local_present[:, 3])
    assert drawn.local_present.sum() < all_.local_present.sum()
    shown = drawn.local_present
    assert np.array_equal(drawn.local[shown], all_.local[shown])
    assert drawn.global_ is not None
    assert all_.global_ is not None
    assert np.array_equal(drawn.global_, all_.global_)
    stored = safetensors.torch.load_file(folder / "fedproto-0" / "prototypes.safetensors")
    assert stored["fedproto/0/local/rows"].shape == (int(shown.sum()), 12)


def test_a_record_without_what_is_drawn_is_not_done_for_the_heatmaps(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = plan("table1", Selection(seeds=[0], algorithms=["fedproto"]))[:1]
    import_run(whole, tmp_path)
    assert [one.state for one in Reproduction(cells, tmp_path, tmp_path / "runs").status()] == ["done"]
    drawn = Reproduction(cells, tmp_path, tmp_path / "runs", drawn=True)
    assert [one.state for one in drawn.status()] == ["to do"]
    monkeypatch.setattr(records_reader, "DRAWN", {"digits": Drawn((3,), 1)})
    assert [one[3] for one in told(import_run(whole, tmp_path), tmp_path)] == [False, True, False, False]
    assert [one.state for one in drawn.status()] == ["done"]
