from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tinyproto import memory as budget
from tinyproto.core.sizes import bytes_of
from tinyproto.memory import client_budget, total_memory

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("2GB", 2 * 10**9),
        ("500 MB", 500_000_000),
        ("1.5GiB", 3 * 2**29),
        ("64kb", 64_000),
        ("7B", 7),
        (" 1TB ", 10**12),
    ],
)
def test_amounts_of_memory_are_read(text: str, count: int) -> None:
    assert bytes_of(text) == count


@pytest.mark.parametrize("text", ["", "2", "GB", "-1GB", "0GB", "2 XB", "1e3MB", "two GB", "2GB extra"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no amount of bytes"):
        bytes_of(text)


def test_auto_is_a_quarter_and_workers_share() -> None:
    assert client_budget("auto", CPU) == total_memory(CPU) // 4
    assert client_budget("auto", CPU, processes=3) == total_memory(CPU) // 4 // 3
    assert client_budget("1GB", CPU, processes=4) == 250_000_000
    assert client_budget("1B", CPU, processes=4) == 1


@pytest.mark.parametrize(("limit", "found"), [("1000000\n", 1_000_000), ("max\n", None), (None, None)])
def test_a_container_s_limit_counts_as_the_machine_s_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str | None, found: int | None
) -> None:
    monkeypatch.setattr(budget, "_LIMITS", ())
    installed = total_memory(CPU)
    file = tmp_path / "memory.max"
    if limit is not None:
        file.write_text(limit)
    monkeypatch.setattr(budget, "_LIMITS", (file,))
    assert total_memory(CPU) == (installed if found is None else found)
