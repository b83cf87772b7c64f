"""The worked example of docs/how-to/add_an_algorithm.md: short, as shown, and different from FedProto as intended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tinyproto as tp
from support_docs import ROOT, blocks_of, modules_of_a_folder
from tinyproto import grid
from tinyproto.algorithms.base import ClientInfo, FederationSpec
from tinyproto.algorithms.fedproto import Upload
from tinyproto.config import parse_config
from tinyproto.core.prototypes import Prototypes
from tinyproto.errors import ConfigError
from tinyproto.experiment import Experiment
from tinyproto.tracking.run_folder import RunFolder

FILE = ROOT / "examples" / "robust_proto.py"
NAME = "examples.robust_proto:SPEC"
CLASSES, DIM = 3, 2


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example is found from the repository's root, as the page says."""
    monkeypatch.chdir(ROOT)
    with modules_of_a_folder(ROOT / "examples"):
        yield


def built(**hyper: Any) -> Any:
    (entry,) = parse_config({"models": ["small_cnn_a"], "algorithms": [{"name": NAME, **hyper}]}).algorithms
    return entry.build(FederationSpec(CLASSES, DIM, learning_rate=0.1))


def upload(values: list[list[float]], present: list[bool], client: int = 0) -> Upload:
    return Upload(ClientInfo(client, 10, 10, 2), Prototypes(torch.tensor(values), torch.tensor(present)))


def simulate(algorithm: Any, **changes: Any) -> tp.Result:
    chosen = {"num_clients": 6, "alpha": 0.3, "rounds": 2, "proto_dim": 12, "models": "small_cnn_c", **changes}
    return tp.simulate(algorithm=algorithm, **chosen)


def test_it_has_fewer_than_60_lines_and_the_page_shows_all_of_them() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    shown = [
        block.text
        for block in blocks_of(ROOT / "docs" / "how-to" / "add_an_algorithm.md")
        if block.language == "python"
    ]
    assert text in shown, "docs/how-to/add_an_algorithm.md does not show examples/robust_proto.py as it is"


def test_a_rare_class_stays_at_home() -> None:
    local = Prototypes(torch.ones(CLASSES, DIM), torch.tensor([True, True, False]))
    sent = built(min_count=3).client.upload(local, torch.tensor([3, 2, 0]))
    assert sent.present.tolist() == [True, False, False]
    assert sent.values.tolist() == [[1, 1], [0, 0], [0, 0]]


def test_the_median_is_taken_over_the_clients_that_sent_a_class_and_no_single_one_can_move_it_far() -> None:
    nobody = [0.0, 0.0]
    uploads = [
        upload([[1.0, 4.0], [2.0, 2.0], nobody], [True, True, False]),
        upload([[2.0, 6.0], [4.0, 0.0], nobody], [True, True, False]),
        upload([[900.0, 5.0], nobody, nobody], [True, False, False]),
    ]
    merged = built(merging="median").server.merge(uploads)
    assert merged.present.tolist() == [True, True, False]
    assert merged.values.tolist() == [[2, 5], [3, 1], [0, 0]]
    assert built(merging="mean").server.merge(uploads).values[0, 0] == pytest.approx(301.0)


def test_with_every_class_sent_and_merged_by_the_mean_it_is_fedproto() -> None:
    assert simulate({"name": NAME, "min_count": 1}).rounds == simulate("fedproto").rounds


@pytest.mark.parametrize("hyper", [{"min_count": 1, "merging": "median"}, {"min_count": 30}])
def test_each_hyper_parameter_makes_it_differ_from_fedproto(hyper: dict[str, Any]) -> None:
    own, base = simulate({"name": NAME, **hyper}), simulate("fedproto")
    assert own.rounds[0].loss == base.rounds[0].loss  # before anything has arrived
    assert own.rounds[1].loss["regulariser"] != base.rounds[1].loss["regulariser"]


def test_bytes_are_those_of_the_classes_that_left_home() -> None:
    result = simulate({"name": NAME, "min_count": 30})
    counts: list[Tensor] = [client.class_counts for client in result.clients]
    rows = sum(int((count >= 30).sum()) for count in counts)
    assert rows < sum(int((count > 0).sum()) for count in counts)
    assert result.bytes_per_round["payload"]["up"] == 4 * 12 * rows


@pytest.mark.parametrize(
    ("hyper", "message"),
    [({"merging": "medain"}, "'median' or 'mean'"), ({"min_count": 0}, "min_count must be above 0")],
)
def test_a_hyper_parameter_that_cannot_be_is_refused(hyper: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        built(**hyper)


def test_it_gets_workers_and_records_for_free(tmp_path: Path) -> None:
    values = {
        "name": "trial",
        "partition": {"num_clients": 4, "alpha": 0.5},
        "models": ["small_cnn_c"],
        "prototypes": {"dim": 12, "cps_dim": 4},
        "algorithms": [NAME],
    }
    alone, together = (
        grid.run(
            Experiment(parse_config({**values, "train": {"rounds": 2, "workers": workers}})), tmp_path / str(workers)
        )
        for workers in (1, 2)
    )
    assert (alone / "rounds.jsonl").read_bytes() == (together / "rounds.jsonl").read_bytes()
    assert RunFolder(together).read_results()[0]["algorithm"] == "robust_proto"
