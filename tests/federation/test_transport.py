"""A federation over a transport in memory: the coordinator and its clients know no other interface, and no Flower."""

from __future__ import annotations

from pathlib import Path

import tinyproto.federation
from support_cli import jsonl
from support_members import play_in_memory, small_values


def test_a_transport_of_three_methods_carries_a_federation(tmp_path: Path) -> None:
    run_folder, folders = play_in_memory(tmp_path, small_values())
    records = jsonl(run_folder / "rounds.jsonl")
    assert [record["participants"] for record in records] == [[0, 1, 2], [0, 1, 2], []]
    assert [record["refused"] for record in records] == [{}, {}, {}]
    assert jsonl(run_folder / "progress.jsonl")[-1]["event"] == "finished"
    assert [jsonl(folder / "progress.jsonl")[-1]["event"] for folder in folders] == ["finished"] * 3


def test_no_part_of_a_federation_knows_its_transport() -> None:
    folder = Path(tinyproto.federation.__file__).parent
    for file in folder.glob("*.py"):
        imports = [line for line in file.read_text().splitlines() if line.lstrip().startswith(("from ", "import "))]
        assert not [line for line in imports if "federation.flower" in line or "flwr" in line], file
