"""Runs as pandas frames."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

import tinyproto as tp
from support_report import Made
from tinyproto.errors import RunFolderError

RESULTS = Path(__file__).parents[2] / "results"


def test_without_pandas_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)  # importing it fails
    with pytest.raises(RunFolderError, match=r'pip install "tinyproto-fl\[pandas\]"'):
        tp.read_run(tmp_path)


class TestWithPandas:
    @pytest.fixture(autouse=True)
    def _needs_pandas(self) -> None:
        pytest.importorskip("pandas", reason="needs the extra pandas")

    def test_rounds_clients_and_summary_have_the_numbers_of_the_record(self, tmp_path: Path) -> None:
        folder = Made(seeds=(0, 1)).write(tmp_path / "run")
        frames = tp.read_run(str(folder))
        lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        rounds = frames.rounds.set_index(["label", "seed", "round"])
        assert len(rounds) == len(lines) == 12
        for line in lines:
            row = rounds.loc[(line["label"], line["seed"], line["round"])]
            assert row["accuracy_head"] == line["accuracy"]["head"]
            assert row["participants"] == len(line["participants"])
            assert row["payload_bytes_up"] == line["traffic"].get("training", {}).get("up", {}).get("payload", 0)
        clients = frames.clients
        assert len(clients) == 12 * 3
        assert clients["accuracy_head"].tolist() == (clients["correct_head"] / 10).tolist()
        results = json.loads((folder / "summary.json").read_text())["results"]
        assert frames.summary["accuracy_last_head"].tolist() == [one["accuracy"]["last"]["head"] for one in results]
        assert frames.summary["payload_bytes_per_round_up"].tolist() == [0, 300, 0, 300]
        assert repr(frames) == "RunFrames(12 rounds, 36 client rounds, 4 cells)"

    def test_seconds_and_bytes_on_sockets_come_from_the_timings_also_packed(self, tmp_path: Path) -> None:
        folder = Made(algorithms=("fedproto",)).write(tmp_path / "run")
        sockets = {"id": [0, 1], "up": [10, 20], "down": [1, 2]}
        timings = [
            {
                "label": "fedproto",
                "seed": 0,
                "round": number,
                "seconds": {"total": 0.5 * number},
                "socket_bytes": sockets,
            }
            for number in (1, 2, 3)
        ]
        text = "".join(json.dumps(line) + "\n" for line in timings)
        (folder / "timings.jsonl.gz").write_bytes(gzip.compress(text.encode()))
        rounds = tp.read_run(folder).rounds
        assert rounds["seconds_total"].tolist() == [0.5, 1.0, 1.5]
        assert rounds["socket_bytes_up"].tolist() == [30, 30, 30]

    def test_a_folder_of_runs_gives_the_rows_of_all_with_their_names(self, tmp_path: Path) -> None:
        Made(name="first").write(tmp_path / "first")
        Made(name="second").write(tmp_path / "second")
        assert tp.read_run(tmp_path).summary["run"].tolist() == ["first", "first", "second", "second"]

    def test_names_of_classes_are_one_column(self, tmp_path: Path) -> None:
        folder = Made(algorithms=("local",)).write(tmp_path / "run")
        summary = json.loads((folder / "summary.json").read_text())
        summary["results"][0]["class_names"] = ["ant", "bee"]
        (folder / "summary.json").write_text(json.dumps(summary))
        assert tp.read_run(folder).summary["class_names"].tolist() == [["ant", "bee"]]

    def test_a_committed_record_is_read(self) -> None:
        frames = tp.read_run(RESULTS / "quickstart")
        assert set(frames.summary["seed"]) == {0, 1, 2}
        assert frames.rounds.groupby("label")["round"].max().eq(31).all()

    def test_what_is_no_run_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(RunFolderError, match="is not a run folder: it does not exist"):
            tp.read_run(tmp_path / "nowhere")
