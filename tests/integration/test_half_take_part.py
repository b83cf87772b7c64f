"""All algorithms with half of the clients a round, of which a fifth drops out."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from support import PROTO_DIM, InProcess, SimulationSettings, same_tensors, tiny_net
from support_rounds import build
from tinyproto import grid
from tinyproto.algorithms import ALGORITHMS
from tinyproto.config import Config, parse_config
from tinyproto.data.dataset import FederatedData
from tinyproto.engine.client import LocalTraining
from tinyproto.experiment import Experiment
from tinyproto.report.page import make_report
from tinyproto.report.runs import read_run
from tinyproto.storage.checkpoint import Position, load_newest, restore_server, save

MIXED = [name for name in ALGORITHMS if name != "fedavg"]
SETTINGS = SimulationSettings(
    LocalTraining(rounds=4, batch_size=8), PROTO_DIM, participation=0.5, dropout=0.2, late=0.3
)  # fmt: skip


def config(names: list[str], rounds: int, workers: int = 1, **train: object) -> Config:
    return parse_config(
        {
            "name": "half",
            "partition": {"num_clients": 8, "alpha": 0.5, "min_samples": 20},
            "models": ["small_cnn_a"] if names == ["fedavg"] else ["small_cnn_a", "small_cnn_d"],
            "prototypes": {"dim": 50, "cps_dim": 10},
            "train": {
                "rounds": rounds, "batch_size": 16, "local_epochs": 2, "participation": 0.5, "dropout": 0.2,
                "workers": workers, **train,
            },
            "algorithms": [{"name": name} for name in names],
        }
    )  # fmt: skip


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_learns_with_half_of_the_clients_and_a_fifth_of_them_lost(name: str) -> None:
    experiment = Experiment(config([name], rounds=5))
    (cell,) = experiment.cells
    simulation = experiment.simulation(cell, experiment.loopback(cell))
    *rounds, closing = [played.record for played in simulation.rounds()]
    assert any(record.dropped for record in rounds)
    for record in rounds:
        assert len(record.participants) + len(record.dropped) == 4
        assert all(math.isfinite(value) for value in record.loss.values())
    assert all(bool(tensor.isfinite().all()) for tensor in simulation.server.state.values())
    head = closing.accuracy["head"]
    assert head is not None
    assert head > 0.3, "a guess is right in one of ten"


@pytest.mark.parametrize(
    ("name", "hyper"),
    [
        *((name, {}) for name in ALGORITHMS),
        ("fedkd", {"factorised": "updates"}),
        ("feddistill", {"teachers": "others"}),
    ],
)
def test_what_goes_on_from_a_checkpoint_loses_the_same_clients(
    quarters: FederatedData, name: str, hyper: dict[str, str], tmp_path: Path
) -> None:
    def simulation() -> InProcess:
        return InProcess(quarters, [tiny_net], build(name, **hyper), SETTINGS, 0, folder=tmp_path / "clients")

    whole = InProcess(quarters, [tiny_net], build(name, **hyper), SETTINGS, 0)
    undisturbed = [played.record for played in whole.rounds()]
    assert any(record.dropped for record in undisturbed)
    assert any(record.late for record in undisturbed)
    stopped = simulation()
    rounds = stopped.rounds()
    before = [next(rounds).record, next(rounds).record]
    save(tmp_path / "checkpoint", Position(0, 3, 0, 0, {}), stopped.server, stopped.host.save())
    checkpoint = load_newest(tmp_path / "checkpoint", tmp_path / "clients")
    assert checkpoint is not None
    resumed = simulation()
    restore_server(resumed.server, checkpoint)
    resumed.host.restore(checkpoint.clients)
    assert before + [played.record for played in resumed.rounds(first=3)] == undisturbed
    assert same_tensors(resumed.snapshot(), whole.snapshot())


@pytest.mark.slow
@pytest.mark.parametrize("names", [MIXED, ["fedavg"]], ids=["mixed", "fedavg"])
def test_two_workers_lose_the_same_clients_and_leave_the_same_bytes(names: list[str], tmp_path: Path) -> None:
    folders = [
        grid.run(Experiment(config(names, 4, workers, late=0.2)), tmp_path / f"runs{workers}") for workers in (1, 2)
    ]
    for file in ("rounds.jsonl", "prototypes.safetensors"):
        alone, shared = ((folder / file).read_bytes() for folder in folders)
        assert alone == shared
    assert b'"dropped":[' in (folders[0] / "rounds.jsonl").read_bytes()


def test_a_run_counts_its_absences_and_its_report_says_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [*(f"2,{client},drop" for client in range(8)), "1,0,late", "1,1,drop"]
    (tmp_path / "trace.csv").write_text("\n".join(["round,client,event", *lines, ""]))
    told = config(["local", "fedproto"], 3, participation=1.0, dropout="trace.csv")
    folder = grid.run(Experiment(told), tmp_path / "runs")
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [(line["participants"], line.get("dropped"), line.get("late")) for line in rounds[:4]] == [
        ([2, 3, 4, 5, 6, 7], [1], [0]),
        ([], list(range(8)), None),
        (list(range(8)), None, None),
        ([], None, None),
    ]
    assert rounds[1]["clients"]["id"] == list(range(8))
    for result in json.loads((folder / "summary.json").read_text())["results"]:
        assert result["absences"] == {"dropped": 9, "late": 1, "empty_rounds": 1}
    page = make_report([read_run(folder)])
    said = "Simulated absences per algorithm and seed: 9 dropouts, 1 late uploads, 1 rounds without any upload."
    assert said in page.studies[0].settings[0].verdict()


def test_a_run_without_absences_says_nothing_of_them(tmp_path: Path) -> None:
    folder = grid.run(Experiment(config(["local"], 1, dropout=0.0)), tmp_path / "runs")
    assert not {"dropped", "late"} & json.loads((folder / "rounds.jsonl").read_text().splitlines()[0]).keys()
    assert "absences" not in json.loads((folder / "summary.json").read_text())["results"][0]
    assert not any("absences" in line for line in make_report([read_run(folder)]).studies[0].settings[0].verdict())
