"""A client that diverges, in a whole run: in workers, after a resume, in the files and in the report."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from support_cli import jsonl
from support_grid import Recording, StopsAfter, assert_same, make_experiment
from support_report import without_terms
from tinyproto import grid
from tinyproto.algorithms import ALGORITHMS
from tinyproto.cli.report import write_report
from tinyproto.errors import CellsFailed
from tinyproto.experiment import Experiment
from tinyproto.tracking.run_folder import RunFolder

CONFIG = """\
name: trial
partition: {num_clients: 3, alpha: 0.5, min_samples: 20}
models: ['nets:well', 'nets:ill', 'nets:well']
prototypes: {dim: 12, cps_dim: 3}
train: {rounds: 3, batch_size: 64}
checkpoint: {every_seconds: 1000}
algorithms: [local, tinyproto_fp]
"""
NETS = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, dim, steps):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, dim))
        self.steps = steps
        self.register_buffer("taken", torch.zeros((), dtype=torch.int64))

    def forward(self, images):
        if self.training and len(images) > 2:
            self.taken += 1
        features = self.net(images)
        return features * torch.where(self.taken > self.steps, torch.nan, 1.0) if self.training else features

def well(proto_dim):
    return Net(proto_dim, 10**6)

def ill(proto_dim):
    return Net(proto_dim, STEPS)
"""
ILL = 1


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Networks of which the second diverges in the second round and ever after."""
    (tmp_path / "nets.py").write_text(NETS.replace("STEPS", "9"))
    monkeypatch.syspath_prepend(str(tmp_path))
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", ":".join(paths))
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    return tmp_path


def experiment(folder: Path, *overrides: str) -> Experiment:
    return make_experiment(folder, CONFIG, *overrides)


def test_a_run_with_a_diverging_client_ends_well_and_says_so_everywhere(nets: Path) -> None:
    told = Recording()
    folder = grid.run(experiment(nets), nets / "runs", observer=told)
    local, tiny = RunFolder(folder).read_results()
    records = [line for line in jsonl(folder / "rounds.jsonl") if line["label"] == "local"]
    left = [line["round"] for line in records if line["refused"]]
    assert left == [2, 3]
    assert local["left_out"] == len(left)
    assert local["left_out_clients"] == {str(ILL): len(left)}
    assert tiny["left_out"] > 0
    for line in records:
        assert line["clients"]["id"] == [0, 1, 2]
        assert None not in line["clients"]["test_samples"]
        assert (ILL in line["participants"]) == (not line["refused"] and not line["closing"])
    reason = records[1]["refused"][str(ILL)]
    assert reason == "training diverged at client 1 in round 2 (loss cross_entropy is nan); lower train.learning_rate"
    page = without_terms(write_report([folder], nets / "report.html").read_text())
    assert "Local, seed 0: client 1 in rounds 2–3: training diverged at client 1 in round 2 (loss" in page


@pytest.mark.slow
def test_workers_and_a_resume_leave_the_same_bytes(nets: Path) -> None:
    every = [name for name in ALGORITHMS if name != "fedavg"]  # whose clients all have one network
    asked = (f"algorithms=[{','.join(every)}]",)
    alone = grid.run(experiment(nets, *asked), nets / "alone")
    two = grid.run(experiment(nets, *asked, "train.workers=2"), nets / "two")
    assert (two / "rounds.jsonl").read_bytes() == (alone / "rounds.jsonl").read_bytes()
    assert (two / "prototypes.safetensors").read_bytes() == (alone / "prototypes.safetensors").read_bytes()
    assert {result["label"]: result["left_out"] > 0 for result in RunFolder(alone).read_results()} == dict.fromkeys(
        every, True
    )
    with pytest.raises(KeyboardInterrupt):
        grid.run(experiment(nets, *asked), nets / "resumed", observer=StopsAfter(11))
    assert_same(grid.resume(experiment(nets, *asked, "train.workers=2"), nets / "resumed" / "trial"), alone)


def test_where_too_many_diverge_no_resume_is_offered_and_another_share_may_be_chosen(nets: Path) -> None:
    strict = experiment(nets, "train.max_left_out=0", "algorithms=[local]")
    with pytest.raises(CellsFailed) as caught:
        grid.run(strict, nets / "runs")
    sentence = str(caught.value)
    assert sentence.startswith(
        "1 cell failed (Local, seed 0: round 2 left out 1 of 3 clients, more than train.max_left_out (0) allows: "
        "training diverged at client 1 in round 2 (loss cross_entropy is nan)"
    )
    assert sentence.endswith("lower train.learning_rate)")
    assert "resume" not in sentence
    folder = grid.resume(experiment(nets, "train.max_left_out=1", "algorithms=[local]"), nets / "runs" / "trial")
    at_once = grid.run(experiment(nets, "algorithms=[local]"), nets / "again")
    assert (folder / "rounds.jsonl").read_bytes() == (at_once / "rounds.jsonl").read_bytes()


@pytest.mark.slow
def test_cells_in_processes_of_their_own_say_the_same(nets: Path) -> None:
    with pytest.raises(CellsFailed) as caught:
        grid.run(experiment(nets, "train.max_left_out=0", "train.parallel_cells=2"), nets / "runs")
    assert str(caught.value).startswith("2 cells failed (")
    assert "resume" not in str(caught.value)
    assert json.loads((nets / "runs" / "trial" / "environment.json").read_text())["device"] == "cpu"
