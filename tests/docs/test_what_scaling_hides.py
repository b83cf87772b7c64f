"""The example of docs/explain/privacy.md: its rules against numbers worked out by hand, its tap, and its records."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support_docs import ROOT
from tinyproto.config import load_config, parse_config
from tinyproto.config.load import completed
from tinyproto.experiment import Experiment

example: Any = importlib.import_module("examples.what_scaling_hides")  # a script: mypy knows it by another name
Floats = NDArray[np.float64]
RECORDS = ROOT / "results" / "what_scaling_hides"
COMMANDS = {
    name: shlex.split(options)
    for options, name in re.findall(
        r"`python examples/what_scaling_hides\.py([^`]*) --json`: `(\w+)\.json`",
        (ROOT / "results/README.md").read_text(),
    )
}
SIZES = np.array([[60.0, 3.0, 7.0], [1.0, 40.0, 9.0], [20.0, 20.0, 0.0], [5.0, 11.0, 30.0]])  # (M, K): n_ij
WIDTH = 4


def mail(lengths: Floats, sizes: Floats = SIZES, sent: Floats | None = None, **changes: Any) -> Any:
    """Uploads n_ij · c_ij where c_ij is a class's direction times a length, (M, K) or what broadcasts to it."""
    directions = np.eye(sizes.shape[1], WIDTH)
    scales = sizes * np.broadcast_to(lengths, sizes.shape)
    networks: NDArray[np.int64] = np.zeros(len(sizes), np.int64)
    values = {
        "uploads": scales[:, :, None] * directions, "present": sizes > 0, "sent": sent, "samples": sizes.sum(1),
        "networks": networks,
    }  # fmt: skip
    return example.Mail(**{**values, **changes})


def off(guess: Floats | None, sizes: Floats = SIZES) -> float:
    """The largest factor by which a guess is off; a class that is not held has to be guessed as nothing."""
    assert guess is not None
    held = sizes > 0
    assert not guess[~held].any()
    return float(np.exp(np.abs(np.log(guess[held] / sizes[held])).max()))


def test_knowing_only_totals_all_classes_are_alike() -> None:
    guess = example.alike(mail(np.ones(3)))
    assert guess.tolist() == [[70 / 3] * 3, [50 / 3] * 3, [20, 20, 0], [46 / 3] * 3]


def test_lengths_give_sizes_away_where_prototypes_are_equally_long() -> None:
    per_client = np.array([[2.0], [0.5], [7.0], [1.0]])
    assert off(example.by_length(mail(per_client))) == pytest.approx(1.0)
    assert off(example.by_length(mail(np.array([1.0, 2.0, 4.0])))) > 1.5


def test_who_sent_a_row_has_at_least_one_sample_however_short_it_is() -> None:
    assert example.by_length(mail(np.array([1.0, 1.0, 0.0])))[0, 2] == 1.0


def test_many_clients_of_one_network_give_the_length_of_each_class_away() -> None:
    draws = np.random.default_rng(0)
    sizes = draws.integers(1, 100, (2000, 3)).astype(float)
    seen = mail(np.array([1.0, 2.0, 4.0]), sizes)
    assert off(example.by_class_factor(seen), sizes) < 1.1
    assert off(example.by_length(seen), sizes) > 2.0


def test_each_network_has_a_length_of_its_own() -> None:
    draws = np.random.default_rng(0)
    networks: NDArray[np.int64] = np.arange(2000) % 2
    often = np.where(networks[:, None], [1.0, 1.0, 10.0], [10.0, 1.0, 1.0])  # what one network's clients have more of
    sizes = draws.integers(1, 100, (2000, 3)).astype(float) * often
    lengths = np.where(networks, 9.0, 1.0)[:, None]
    told, untold = (example.by_class_factor(mail(lengths, sizes, networks=known)) for known in (networks, 0 * networks))
    assert off(told, sizes) < 1.1
    assert off(untold, sizes) > 1.5


def test_a_client_that_follows_the_global_prototype_is_measured_by_it() -> None:
    lengths = np.array([1.0, 2.0, 4.0])
    sent = 3.0 * lengths[:, None] * np.eye(3, WIDTH)
    assert off(example.by_sent(mail(lengths, sent=sent))) == pytest.approx(1.0)
    assert example.by_sent(mail(lengths)) is None


def test_classes_known_to_be_equally_frequent_make_up_for_lengths_per_class_and_client() -> None:
    sizes = np.array([[60.0, 30.0, 10.0], [30.0, 20.0, 80.0], [10.0, 50.0, 10.0]])
    lengths = np.array([1.0, 2.0, 4.0]) * np.array([[1.0], [5.0], [0.2]])
    assert off(example.by_totals(mail(lengths, sizes)), sizes) == pytest.approx(1.0, abs=1e-6)


def test_means_of_few_samples_stray_whatever_their_length() -> None:
    draws = np.random.default_rng(0)
    sizes = np.where((np.arange(20)[:, None] + np.arange(2)) % 2, 400.0, 2.0)
    plain = np.ones(WIDTH) + draws.normal(size=(20, 2, WIDTH)) / np.sqrt(sizes)[:, :, None]
    plain /= np.linalg.norm(plain, axis=2, keepdims=True)
    guess = example.by_direction(mail(np.ones(2), sizes, uploads=plain))
    assert (guess.argmax(1) == sizes.argmax(1)).mean() > 0.9


def test_several_rounds_make_a_geometric_mean_of_those_in_which_a_row_came() -> None:
    one, two = mail(np.ones(3)), mail(np.ones(3))
    absent = example.Mail(two.uploads, two.present & (np.arange(4) != 1)[:, None], None, two.samples, two.networks)
    guesses = {id(one): np.full((4, 3), 2.0), id(absent): np.full((4, 3), 8.0)}
    merged = example.over_rounds(lambda seen: guesses[id(seen)], [one, absent])
    assert merged is not None
    np.testing.assert_allclose(merged, [[4, 4, 4], [2, 2, 2], [4, 4, 0], [4, 4, 4]])
    assert example.over_rounds(lambda _: None, [one]) is None


def test_ranks_of_equal_values_are_shared() -> None:
    assert example.ranks(np.array([5.0, 1.0, 5.0, 3.0])).tolist() == [2.5, 0.0, 2.5, 1.0]


@pytest.mark.parametrize(
    ("guess", "truth", "expected"),
    [
        ([1, 2, 3], [10, 20, 90], 1.0),
        ([3, 2, 1], [10, 20, 90], -1.0),
        ([1, 3, 2], [10, 20, 90], 0.5),
        ([4, 4, 4], [10, 20, 90], 0.0),
        ([1, 2, 3], [7, 7, 7], None),
    ],
)
def test_the_correlation_is_spearman_s(guess: list[float], truth: list[float], expected: float | None) -> None:
    found = example.rank_correlation(np.array(guess, float), np.array(truth, float))
    assert found == (None if expected is None else pytest.approx(expected))


def test_scores_worked_out_by_hand() -> None:
    truth = np.array([[10.0, 20.0, 40.0], [8.0, 2.0, 0.0], [0.0, 5.0, 0.0]])
    guess = np.array([[10.0, 40.0, 20.0], [9.0, 1.0, 0.0], [0.0, 5.0, 0.0]])
    assert example.score(guess, truth, truth > 0) == {
        "correlation": pytest.approx(0.5),  # of client 0; the others hold fewer than three classes
        "error": pytest.approx((0.5 + (0.125 + 0.5) / 2) / 2),
        "near": pytest.approx(2 / 5),  # 10 and 9; a client of one class has nothing to hide
        "majority": pytest.approx(1 / 2),
    }


def test_a_tie_finds_the_majority_in_part() -> None:
    assert example.score(np.full((1, 3), 10.0), np.array([[5.0, 20.0, 5.0]]), np.ones((1, 3), bool))["majority"] == (
        pytest.approx(1 / 3)
    )


def small(algorithm: dict[str, Any], rounds: int = 2, **changes: Any) -> Experiment:
    values = {
        "partition": {"num_clients": 6, "alpha": 0.3},
        "models": ["small_cnn_c"],
        "prototypes": {"dim": 20, "cps_dim": 5},
        "train": {"rounds": rounds},
        "algorithms": [algorithm],
    }
    return Experiment(parse_config({**values, **changes}))


def test_the_tap_sees_what_clients_uploaded_and_changes_nothing() -> None:
    experiment = small({"name": "tinyproto_fp", "aggregation": "sum"})
    (cell,) = experiment.cells
    host = example.Tapped(experiment.loopback(cell))
    simulation = experiment.simulation(cell, host)
    tapped = [played.record for played in simulation.rounds()]
    assert tapped == [played.record for played in experiment.simulation(cell, experiment.loopback(cell)).rounds()]
    counts = experiment.data.train_counts
    first, last = host.mails({client: int(counts[client].sum()) for client in range(6)}, networks=1)
    algorithm: Any = simulation.server.algorithm
    for client in range(6):
        sent = algorithm.client.upload(host.store[client].local, counts[client])
        np.testing.assert_array_equal(last.uploads[client], sent.values.numpy())
        np.testing.assert_array_equal(last.present[client], (counts[client] > 0).numpy())
    assert first.sent is None
    merged = 0.9 * 10 / int(counts.sum()) * first.uploads.sum(0)
    np.testing.assert_allclose(last.sent, merged, rtol=1e-4, atol=1e-6)


def test_scaled_uploads_give_class_sizes_away_in_one_round_and_plain_ones_do_not() -> None:
    scaled, plain = (
        example.look(experiment, experiment.cells[0])["scores"]["length"]["first"]
        for experiment in (
            small({"name": "tinyproto_ft", "scaling": scaling}, 1, partition={"num_clients": 12, "alpha": 0.3})
            for scaling in ("count", "none")
        )
    )
    assert scaled["correlation"] > 0.7
    assert plain["correlation"] < 0.3
    assert scaled["near"] > plain["near"] + 0.2


def test_clients_that_stay_away_in_a_round_are_not_guessed_from_it() -> None:
    experiment = small({"name": "fedproto"}, 1, train={"rounds": 1, "participation": 0.5})
    (seen,), _ = example.watch(experiment, experiment.cells[0])
    assert seen.present.any(1).sum() == 3
    for rule in example.RULES.values():
        guess = rule(seen)
        assert guess is None or (np.isfinite(guess).all() and not guess[~seen.present].any())


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    quick = ["partition.num_clients=4", "train.rounds=1", "models=[small_cnn_c]", "seeds=[0]"]
    monkeypatch.setattr("sys.argv", ["what_scaling_hides.py", *quick, *arguments])
    status: int = example.main()
    return status


def test_it_prints_one_json_value(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "algorithms=[fedproto]", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    (cell,) = told["cells"]
    assert len(cell["guesses"]["length"]["last"]) == len(told["pairs"])
    assert cell["guesses"]["sent"]["first"] is None
    for client, label, size in told["pairs"]:
        assert (client, size > 0, 0 <= label < 10) == (client, True, True)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [("algorithms=[local]", "local uploads no rows by class"), ("train.round=3", "unknown key 'train.round'")],
)
def test_what_cannot_be_is_one_sentence_and_status_2(
    wrong: str, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, wrong) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert (captured.out, captured.err.count("\n")) == ("", 1)


def record_text(name: str) -> str:
    return (RECORDS / f"{name}.json").read_text(encoding="utf-8")


def test_every_record_has_its_command() -> None:
    assert sorted(COMMANDS) == sorted(path.stem for path in RECORDS.glob("*.json"))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_record_is_of_the_command_that_stands_beside_it(name: str) -> None:
    record = json.loads(record_text(name))
    assert completed(record["config"]) == load_config(example.CONFIG, COMMANDS[name]).resolved()
    assert len(record["environment"]["commit"]) == 40


@pytest.mark.parametrize("name", COMMANDS)
def test_a_record_s_scores_follow_from_its_guesses(name: str) -> None:
    """But for ranks that guesses of three digits share."""
    record = json.loads(record_text(name))
    places = np.array(record["pairs"])
    truth = np.zeros((record["clients"], places[:, 1].max() + 1))
    truth[places[:, 0], places[:, 1]] = places[:, 2]
    for cell in record["cells"]:
        for rule, times in cell["guesses"].items():
            for time, told in times.items():
                if told is None:
                    continue
                guess = np.zeros_like(truth)
                guess[places[:, 0], places[:, 1]] = told
                found = example.score(guess, truth, truth > 0)
                for name_, value in cell["scores"][rule][time].items():
                    assert found[name_] == pytest.approx(value, abs=0.05), (cell["label"], rule, time, name_)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_s_table_is_the_record_s(name: str) -> None:
    """A row: uploads, rule, and four scores after the first round and after the last."""
    page = (ROOT / "docs" / "explain" / "privacy.md").read_text()
    section = page.partition(f"[{name}.json]")[2].partition("\n##")[0]
    shown = [[cell.strip() for cell in line.strip("| ").split("|")] for line in section.splitlines() if "%" in line]
    rows = [row for row in shown if len(row) == 10]
    known = {(label, rule): numbers for label, rule, *numbers in example.table(json.loads(record_text(name)))}
    assert len(rows) > 5
    for label, rule, *numbers in rows:
        assert numbers == known[label, rule][:8], f"{name}: {label}, {rule}"


def test_what_the_page_says_plain_prototypes_cost_is_the_record_s() -> None:
    cells = json.loads(record_text("digits"))["cells"]
    page = " ".join((ROOT / "docs" / "explain" / "privacy.md").read_text().split())
    for method, words in (("FP", "{} with scaling, {} without"), ("FT", "({} and {})")):
        scaled, plain = (
            np.mean([cell["accuracy"]["global"] for cell in cells if cell["label"] == f"{method} {kind}"])
            for kind in ("scaled", "plain")
        )
        assert words.format(f"{100 * scaled:.1f} %", f"{100 * plain:.1f} %") in page


def test_what_the_page_says_plain_prototypes_tell_is_the_records() -> None:
    page = " ".join((ROOT / "docs" / "explain" / "privacy.md").read_text().split())
    tables = {name: example.table(json.loads(record_text(name))) for name in ("digits", "cifar100")}
    (over_all,) = [row[10:] for row in tables["digits"] if row[:2] == ["FT plain", "length"]]
    assert f"rank FT's plain rows at {over_all[0]} and find {over_all[3]} of the largest classes" in page
    digits, cifar = (
        max(float(number.rstrip("% ")) for row in rows if "plain" in row[0] for number in row[4::4] if number != "–")
        for rows in tables.values()
    )
    assert f"more than {digits:.0f} % of them near on the digits" in page
    assert f"and {cifar:.0f} % on CIFAR-100" in page
