"""Several cells at once on one GPU, through CUDA MPS where the machine has it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from support_cli import jsonl
from support_grid import Recording, make_experiment
from tinyproto import grid

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
CONFIG = """\
name: trial
data: {name: npz, root: images.npz}
partition: {num_clients: 4, alpha: 1.0, min_samples: 20}
models: [small_cnn_a, small_cnn_c]
prototypes: {dim: 20, cps_dim: 4}
train: {rounds: 5, batch_size: 16, device: cuda}
checkpoint: {every_seconds: 0}
algorithms: [fedproto, {name: tinyproto_ft, server_epochs: 5}]
seeds: [0, 1]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    random = np.random.default_rng(0)
    labels = np.arange(400) % 4
    pixels = (
        random.integers(0, 64, (400, 1, 16, 16), dtype=np.uint8) + (labels * 48).astype(np.uint8)[:, None, None, None]
    )
    np.savez(tmp_path / "images.npz", images=pixels, labels=labels)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_two_cells_at_once_give_the_numbers_of_one_after_another(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")  # for the cells' processes
    alone = grid.run(make_experiment(project, CONFIG), project / "alone")
    told = Recording()
    beside = grid.run(make_experiment(project, CONFIG, "train.parallel_cells=2"), project / "runs", observer=told)
    assert json.loads((beside / "environment.json").read_text())["parallel_cells"] == 2
    (sharing,) = (words for words in told.words if "CUDA MPS" in words)
    if shutil.which("nvidia-cuda-mps-control") is None:
        assert "by time slices, because CUDA MPS is not installed" in sharing
    assert any("2 run at once" in words for words in told.words)
    for mine, other in zip(jsonl(beside / "rounds.jsonl"), jsonl(alone / "rounds.jsonl"), strict=True):
        assert (mine["label"], mine["seed"], mine["round"]) == (other["label"], other["seed"], other["round"])
        assert mine["traffic"] == other["traffic"]
        assert mine["loss"] == pytest.approx(other["loss"], rel=2e-2, abs=1e-3)


def test_a_stopped_grid_goes_on_where_it_was(project: Path) -> None:
    many = ("train.rounds=40", "seeds=[0]", "train.parallel_cells=2")
    with pytest.raises(KeyboardInterrupt):
        grid.run(make_experiment(project, CONFIG, *many), project / "runs", observer=Recording(stop_at=(1, 1)))
    told = Recording()
    folder = grid.resume(make_experiment(project, CONFIG, *many), project / "runs" / "trial", observer=told)
    assert 1 <= told.of("started", 1)[0] < 40
    rounds = [(line["label"], line["round"]) for line in jsonl(folder / "rounds.jsonl")]
    assert rounds == [(label, number) for label in ("fedproto", "tinyproto_ft") for number in range(1, 42)]
