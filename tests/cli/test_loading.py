"""The bar for one long step."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from support_cli import in_process
from support_data import write_picture
from tinyproto.cli.progress import LoadingBar


def shown(terminal: bool, steps: list[tuple[str, int, int]], in_bytes: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120, color_system=None)
    with LoadingBar(console, in_bytes=in_bytes) as progress:
        for step in steps:
            progress(*step)
    return out.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_is_shown_where_nothing_takes_long(terminal: bool) -> None:
    assert shown(terminal, []) == ""


def test_a_terminal_sees_how_much_is_done() -> None:
    out = shown(True, [("decoding", 0, 200), ("decoding", 150, 200)])
    assert "150/200" in out


def test_a_download_is_counted_in_bytes_even_if_nobody_knows_how_many() -> None:
    assert "5.0/20.0 MB" in shown(True, [("downloading", 5_000_000, 20_000_000)], in_bytes=True)
    assert "5.0/? MB" in shown(True, [("downloading", 5_000_000, 0)], in_bytes=True)


def test_without_a_terminal_every_step_is_one_line() -> None:
    steps = [("decoding [a]", 0, 9), ("decoding [a]", 9, 9), ("checking", 1, 1)]
    assert shown(False, steps).split("\n")[:2] == ["decoding [a]", "checking"]


def test_a_run_says_that_it_decodes_and_names_the_dataset(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for index in range(40):
        write_picture(project / "pets" / "ab"[index % 2] / f"{index}.png", 5 * index, mode="L")
    short = ("train.rounds=1", "seeds=[0]", "algorithms=[local]", "partition={num_clients: 2, alpha: 10.0}")
    data = ("data={name: image_folder, root: pets}", "models=[small_cnn_a]")
    assert in_process(monkeypatch, project, "run", "trial.yaml", *short, *data) == 0
    out = capsys.readouterr().out
    assert out.startswith("decoding 40 images of pets\n")
    assert "on pets" in out
