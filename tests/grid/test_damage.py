"""A run whose checkpoints were damaged resumes from the one before, says so, and ends as if nothing had happened."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support_cli import in_process, tree
from support_grid import Recording, StopsAfter, assert_same, make_experiment
from tinyproto import grid
from tinyproto.errors import CellsFailed, CheckpointError
from tinyproto.experiment import Experiment
from tinyproto.storage.checkpoint import load_newest

CONFIG = """\
name: trial
data: {name: digits, first_classes: 3}
partition: {num_clients: 4, alpha: 0.5, min_samples: 20}
models: [small_cnn_c]
prototypes: {dim: 10, cps_dim: 2}
train: {rounds: 5, batch_size: 64, participation: 0.5}
checkpoint: {every_seconds: 0}
algorithms: [{name: tinyproto_ft, server_epochs: 2}]
"""
CELL = Path("cells") / "001-tinyproto_ft-0"


def experiment(folder: Path, *overrides: str) -> Experiment:
    return make_experiment(folder, CONFIG, *overrides)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    return grid.run(experiment(folder), folder / "runs")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of one that stopped after round 3, with checkpoints of rounds 2 and 3."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.raises(KeyboardInterrupt):
        grid.run(experiment(folder), folder / "runs", observer=StopsAfter(3))
    return folder / "runs" / "trial"


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(stopped, tmp_path / "runs" / "trial"))


def flip(file: Path, place: float) -> None:
    content = bytearray(file.read_bytes())
    content[int(place * (len(content) - 1))] ^= 16
    file.write_bytes(content)


def checkpoints(run: Path) -> list[Path]:
    return sorted((run / CELL / "checkpoint").glob("*.safetensors"))


def client_files(run: Path, *, of_both: bool) -> list[Path]:
    """Those that both checkpoints need, or only the newest."""
    cell = run / CELL
    newest, _ = reversed(checkpoints(run))
    found = []
    for path in (newest, newest.with_suffix(".hidden")):
        checkpoint = load_newest(cell / "checkpoint", cell / "clients")
        assert checkpoint is not None
        found.append({place.file for parts in checkpoint.clients.values() for place in parts.values()})
        path.rename(newest.with_suffix(".hidden") if path == newest else newest)
    wanted = found[0] & found[1] if of_both else found[0] - found[1]
    return [cell / "clients" / name for name in sorted(wanted)]


def damage_a_client(run: Path) -> Path:
    file = client_files(run, of_both=False)[0]
    flip(file, 0.9)
    return file


def lose_a_client(run: Path) -> Path:
    file = client_files(run, of_both=False)[-1]
    file.unlink()
    return file


def damage_newest(place: float) -> Callable[[Path], Path]:
    def damage(run: Path) -> Path:
        flip(checkpoints(run)[-1], place)
        return checkpoints(run)[-1]

    return damage


@pytest.mark.parametrize(
    "damage",
    [damage_newest(0.0), damage_newest(0.3), damage_newest(1.0), damage_a_client, lose_a_client],
    ids=["its length", "its facts", "its tensors", "a client's file", "a client's file is gone"],
)
def test_a_damaged_newest_checkpoint_falls_back_to_the_same_end(
    run: Path, tmp_path: Path, undisturbed: Path, damage: Callable[[Path], Path]
) -> None:
    assert len(checkpoints(run)) == 2
    file = damage(run)
    told = Recording()
    assert_same(grid.resume(experiment(tmp_path), run, observer=told), undisturbed)
    (words,) = told.words
    assert words.startswith(f"TinyProto-FT, seed 0: {file}")
    assert "; resuming from round 3" in words
    assert told.of("started", 0) == [2]
    assert [played.record.round for played in told.of("played", 0)] == [3, 4, 5, 6]


def test_stopped_again_after_falling_back_it_resumes_from_the_new_checkpoint(
    run: Path, tmp_path: Path, undisturbed: Path
) -> None:
    flip(checkpoints(run)[-1], 1.0)
    with pytest.raises(KeyboardInterrupt):
        grid.resume(experiment(tmp_path), run, observer=StopsAfter(2))
    told = Recording()
    assert_same(grid.resume(experiment(tmp_path), run, observer=told), undisturbed)
    assert told.words == []
    assert told.of("started", 0) == [4]


def test_a_client_file_that_both_checkpoints_need_is_named_and_the_records_stay(run: Path, tmp_path: Path) -> None:
    file = client_files(run, of_both=True)[0]
    flip(file, 0.9)
    before = tree(run / CELL)
    with pytest.raises(CellsFailed, match=rf"is intact: \S*{file.name}, the state of client .*; delete"):
        grid.resume(experiment(tmp_path), run)
    assert tree(run / CELL) == before


def test_the_command_says_in_one_line_what_was_damaged_and_from_where_it_resumes(
    run: Path, tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(checkpoints(run)[-1], 1.0)
    assert in_process(monkeypatch, tmp_path, "resume", "runs/trial") == 0
    assert_same(run, undisturbed)
    said = f"runs/trial/{CELL}/checkpoint/00000003.safetensors is damaged ("
    lines = [line for line in capsys.readouterr().out.splitlines() if "damaged" in line]
    (line,) = lines
    assert line.startswith(f"TinyProto-FT, seed 0: {said}")
    assert "; resuming from round 3" in line


@pytest.mark.slow
def test_a_cell_in_a_process_of_its_own_says_so_too(tmp_path: Path) -> None:
    two = experiment(tmp_path, "seeds=[0, 1]", "train.parallel_cells=2")
    with pytest.raises(KeyboardInterrupt):
        grid.run(two, tmp_path / "runs", observer=Recording(stop_at=(0, 3)))
    run = tmp_path / "runs" / "trial"
    flip(checkpoints(run)[-1], 1.0)
    told = Recording()
    grid.resume(two, run, observer=told)
    (words,) = [words for words in told.words if "is damaged" in words]
    assert words.startswith("TinyProto-FT, seed 0: ")


TWO = ("algorithms=[local, fedproto]", "train.rounds=1")


def test_a_damaged_checkpoint_of_the_run_costs_a_finished_cell_and_nothing_else(tmp_path: Path) -> None:
    expected = grid.run(experiment(tmp_path, *TWO), tmp_path / "alone")
    with pytest.raises(KeyboardInterrupt):
        grid.run(experiment(tmp_path, *TWO), tmp_path / "runs", observer=StopsAfter(2))
    folder = tmp_path / "runs" / "trial"
    newest = max((folder / "checkpoint").iterdir())
    flip(newest, 0.5)
    told = Recording()
    assert_same(grid.resume(experiment(tmp_path, *TWO), folder, observer=told), expected)
    (words,) = told.words
    assert words.startswith(f"{newest} is damaged")
    assert "; resuming from round 1" in words


@pytest.mark.parametrize("every", [False, True])
def test_a_finished_run_with_damaged_checkpoints_stays_as_it_is(tmp_path: Path, every: bool) -> None:
    folder = grid.run(experiment(tmp_path, *TWO), tmp_path / "runs")
    for file in sorted((folder / "checkpoint").iterdir())[0 if every else -1 :]:
        flip(file, 0.5)
    before = tree(folder)
    grid.resume(experiment(tmp_path, *TWO), folder)
    assert tree(folder) == before


def test_without_an_intact_checkpoint_a_run_with_results_says_to_start_another(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        grid.run(experiment(tmp_path, *TWO), tmp_path / "runs", observer=StopsAfter(2))
    folder = tmp_path / "runs" / "trial"
    for file in (folder / "checkpoint").iterdir():
        flip(file, 0.5)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is intact: .*; start another run$"):
        grid.resume(experiment(tmp_path, *TWO), folder)
