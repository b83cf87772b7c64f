"""A federation ends in the bits of a simulation: the same server state, the same records."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from support_flower import kind_of, make_federation
from support_members import EQUAL_ROUNDS, OWN_FORMS, assert_in_process_equality, values_for, values_of_own_form
from tinyproto.algorithms import ALGORITHMS
from tinyproto.experiment import Experiment
from tinyproto.report.compare import compare, table_cells
from tinyproto.report.page import make_report
from tinyproto.report.runs import read_run
from tinyproto.tracking.run_folder import RunFolder
from tinyproto.wire.frame import Kind

pytestmark = pytest.mark.flower


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_ends_in_the_bits_of_the_simulation(name: str, tmp_path: Path) -> None:
    federation = make_federation(tmp_path, values_for(name))
    assert_in_process_equality(federation)
    if name not in ("local", "anchors"):
        assert federation.records()[0]["traffic"]["training"]["up"]["payload"] > 0


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", OWN_FORMS)
def test_the_forms_of_the_baselines_own_papers_do_too(name: str, participation: float, tmp_path: Path) -> None:
    assert_in_process_equality(make_federation(tmp_path, values_of_own_form(name, participation)))


@pytest.mark.parametrize("name", ["tinyproto_fp", "fedtgp"])
def test_held_classes_rounded_by_chance_and_half_of_the_clients_make_no_difference(name: str, tmp_path: Path) -> None:
    """Evaluated by all rows and trained on some, a client is sent two frames in a round."""
    values = values_for(name, wire={"up": "int8", "down": "float16", "rounding": "stochastic", "download": "held"})
    values["train"]["participation"] = 0.5
    values["evaluate"] = {"clients": "all"}
    federation = make_federation(tmp_path, values)
    assert_in_process_equality(federation)
    asked = [kind_of(message) for message in federation.grid.asked]
    assert (asked.count(Kind.EVALUATE), asked.count(Kind.TRAIN)) == (4 * (EQUAL_ROUNDS + 1), 2 * EQUAL_ROUNDS)


@pytest.mark.parametrize("preset", ["sound", "reference"])
def test_the_formula_is_the_simulation_s_or_unknown(preset: str, tmp_path: Path) -> None:
    federation = make_federation(tmp_path, {**values_for("fedproto"), "preset": preset})
    federation.play()
    experiment = Experiment(federation.config)
    (cell,) = experiment.cells
    simulation = experiment.simulation(cell, experiment.loopback(cell))
    simulated = experiment.summarise(cell, simulation, list(simulation.rounds()))["params_per_round_formula"]
    (result,) = RunFolder(federation.run_folder).read_results()
    assert simulated > 0
    assert result["params_per_round_formula"] == (simulated if preset == "reference" else None)
    comparison = compare([result], {}, "head", "best")
    assert ("formula" in table_cells(comparison, comparison.rows[0])) == (preset == "reference")


def test_the_run_folder_has_a_report(tmp_path: Path) -> None:
    federation = make_federation(tmp_path, values_for("tinyproto_fp"))
    federation.play()
    run = read_run(federation.run_folder)
    assert run.unfinished == 0
    assert "tinyproto_fp(cps_dim=3)" in make_report([run]).html
