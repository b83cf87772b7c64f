"""`python -m benchmarks scale`: every case is measured, and the ratios are those of the cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scale import PAPER, ScaleSettings, measure_scale, ratios, sizes
from benchmarks.scale_case import Case, measure_case
from support_benchmarks import benchmark
from tinyproto.errors import ConfigError, TinyProtoError

SMALL = (
    "--networks",
    "small_cnn_c",
    "--rounds",
    "2",
    "--image-size",
    "8",
    "--samples",
    "10",
    "--algorithm",
    "fedproto",
)
CASE = Case(
    clients=12, participants=3, rounds=3, samples=10, pool=200, algorithm="fedproto", networks=["small_cnn_c"],
    image_size=8, memory="1MB", closing=True,
)  # fmt: skip


def test_every_size_is_played_with_the_same_number_and_with_the_same_share() -> None:
    assert [(case.clients, case.participants) for case in ScaleSettings().cases] == [(200, 10), (2000, 10), (2000, 100)]
    chosen = ScaleSettings(participants=100, participation=0.1)
    assert [(case.clients, case.participants) for case in chosen.cases] == [
        (200, 100), (2000, 100), (200, 20), (2000, 200),
    ]  # fmt: skip
    assert {case.pool for case in chosen.cases} == {60_000}
    assert PAPER == ("resnet8", "mobilenet_v2", "shufflenet_v2", "efficientnet_b0")


def test_a_case_says_what_it_took() -> None:
    result = measure_case(CASE)
    assert {"total", "train", "server", "clients"} <= set(result["seconds_per_round"])
    assert result["seconds_per_participant"] == result["seconds_per_round"]["total"] / 3
    assert 0 < result["client_seconds_per_participant"] < result["seconds_per_participant"]
    assert result["all_clients_bytes"] > 12 * 100 * 500 * 4  # the prototypes alone
    assert result["memory_before_bytes"] <= result["peak_memory_bytes"] <= result["closing"]["peak_memory_bytes"]
    assert 0 < result["bytes_read_back"] <= result["bytes_written"] * result["clients_read_back"]
    assert result["clients_written"] > 0
    assert result["processor_seconds_per_participant"] > 0
    assert result["closing"]["seconds_per_client"] == result["closing"]["seconds"] / 12


def test_with_enough_memory_nothing_goes_to_disk() -> None:
    result = measure_case(Case(**{**vars(CASE), "memory": "1GB", "closing": False}))
    assert (result["bytes_written"], result["bytes_read_back"], result["clients_read_back"]) == (0, 0, 0)
    assert result["clients_built"] <= 9
    assert "closing" not in result


def test_ratios_are_of_the_largest_over_the_smallest() -> None:
    def case(clients: int, participants: int, seconds: float, memory: int) -> dict[str, Any]:
        rates = {"seconds_per_participant": seconds, "client_seconds_per_participant": seconds / 2}
        return {"clients": clients, "participants": participants, "peak_memory_bytes": memory, **rates}

    found = ratios(ScaleSettings(), [case(200, 10, 1.0, 100), case(2000, 10, 1.5, 110), case(2000, 100, 0.5, 120)])
    assert found["same_participants"] == {
        "seconds_per_participant": 1.5, "client_seconds_per_participant": 1.5, "peak_memory_bytes": 1.1,
    }  # fmt: skip
    assert found["same_share"]["seconds_per_participant"] == 0.5
    assert found["same_share"]["peak_memory_bytes"] == 1.2


def test_the_verb_prints_one_json_value_with_hardware_and_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("scale", "--clients", "20,40", "--participants", "2", *SMALL, "--memory", "1MB", "--json")
    assert benchmark(monkeypatch, tmp_path, *arguments) == 0
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert [(case["clients"], case["participants"]) for case in told["cases"]] == [(20, 2), (40, 2), (20, 1)]
    assert told["environment"]["cpu"]
    assert "commit" in told["environment"]
    over = told["cases"][1]["peak_memory_bytes"] / told["cases"][0]["peak_memory_bytes"]
    assert told["ratios"]["same_participants"]["peak_memory_bytes"] == over
    assert "40 clients instead of 20, with 2 participants a round in both" in printed.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--clients", "20,some"),
            "--clients: expected whole numbers from 1, separated by commas, not '20,some'",
        ),
        (("--participants", "500"), "--participants: 500 is more than the 200 clients of the smallest size"),
        (("--participation", "0"), "--participation: expected a share above 0 and up to 1, not 0.0"),
        (("--memory", "much"), "'much' is no amount of bytes"),
        (("--clients", "20,40", "--networks", "resnet9"), "unknown model 'resnet9'"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...],
    sentence: str,
) -> None:  # fmt: skip
    assert benchmark(monkeypatch, tmp_path, "scale", *arguments) == 2
    errors = capsys.readouterr().err
    assert len(errors.splitlines()) == 1
    assert sentence in errors


def test_sizes_are_sorted_and_named_once() -> None:
    assert sizes("400, 20,400") == (20, 400)
    with pytest.raises(ConfigError):
        sizes("0")


def test_a_measurement_that_dies_says_of_which_case() -> None:
    impossible = ScaleSettings(clients=(20,), image_size=10_000_000, networks=("small_cnn_c",))
    with pytest.raises(TinyProtoError, match=r"measuring 20 clients failed with status \d+: .*alloc"):
        measure_scale(impossible, lambda _: None)


@pytest.mark.slow
def test_ten_times_the_clients_of_the_paper_s_networks_cost_no_more_time_or_memory_each() -> None:
    settings = ScaleSettings(participants=24, participation=0.012, rounds=3, memory="200MB")
    found = measure_scale(settings, lambda _: None)
    large = next(case for case in found["cases"] if case["clients"] == 2000)
    assert large["all_clients_bytes"] > 15e9
    assert large["bytes_written"] > 0
    assert found["ratios"]["same_participants"]["peak_memory_bytes"] < 1.1
    assert found["ratios"]["same_participants"]["processor_seconds_per_participant"] < 1.5  # who is drawn matters


def test_the_command_s_defaults_are_the_settings() -> None:
    import inspect

    from benchmarks.__main__ import scale

    told = {name: parameter.default for name, parameter in inspect.signature(scale).parameters.items()}
    settings = vars(ScaleSettings())
    for name in ("participation", "participants", "rounds", "samples", "algorithm", "image_size", "memory", "closing"):
        assert told[name] == settings[name], name
    assert sizes(told["clients"]) == settings["clients"]
