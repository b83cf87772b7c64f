"""`tinyproto models`: a table, a JSON list, and one line for an error."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support_cli import in_process
from tinyproto.cli.info import describe
from tinyproto.models import NETWORKS, PUBLISHED, ModelShape


@pytest.fixture
def listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], request: Any
) -> tuple[int, str, str]:
    status = in_process(monkeypatch, tmp_path, "models", *request.param)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("listed", [()], indirect=True)
def test_the_table_has_every_network_with_its_numbers(listed: tuple[int, str, str]) -> None:
    status, out, err = listed
    assert (status, err) == (0, "")
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert set(NETWORKS) <= set(lines)
    assert all(text in lines["resnet8"] for text in ("1 232 704", "50 100", "256", "14 517 072", "yes"))
    assert lines["resnet8_small_images"].split()[-1] == "no"
    assert "not the paper's" in " ".join(out.split())


@pytest.mark.parametrize(
    "listed", [("--json", "--num-classes=10", "--proto-dim=64", "--image-size=64", "--channels=1")], indirect=True
)
def test_json_is_a_list_with_the_same_numbers_for_other_shapes(listed: tuple[int, str, str]) -> None:
    status, out, err = listed
    assert (status, err) == (0, "")
    rows = {row["name"]: row for row in json.loads(out)}
    assert list(rows) == list(NETWORKS)
    assert [name for name, row in rows.items() if row["paper"]] == list(PUBLISHED)
    assert rows["mobilenet_v2"] == {
        "name": "mobilenet_v2",
        "extractor_parameters": 2_223_872 - 2 * 32 * 9,  # one input channel instead of three
        "head_parameters": 650,
        "feature_width": 1280,
        "macs": rows["mobilenet_v2"]["macs"],
        "paper": True,
    }
    assert rows["small_cnn_a"]["feature_width"] == 64
    assert all(row["macs"] > row["head_parameters"] for row in rows.values())


@pytest.mark.parametrize(
    "listed",
    [
        ("--num-classes", "0"),
        ("--num-classes", "ten"),
        ("--image-size=-3",),
        ("--proto-dim", "1.5"),
        ("--channels", "1000000"),
    ],
    indirect=True,
)
def test_a_number_that_cannot_be_is_refused_with_status_2(listed: tuple[int, str, str]) -> None:
    assert listed[:2] == (2, "")
    assert re.search("Invalid value for '--(num-classes|image-size|proto-dim|channels)'", listed[2])


@pytest.mark.parametrize("name", ["resnet8_small_images", "small_cnn_d"])
def test_the_largest_numbers_it_takes_can_be_counted(name: str) -> None:
    many = 100_000
    assert describe(name, ModelShape((many, many, many), proto_dim=many, num_classes=many))["macs"] > 0
