"""A federation over MQTT ends in the bits of a simulation: the same server state, the same records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support_members import OWN_FORMS, assert_in_process_equality, values_for, values_of_own_form
from support_mqtt import FakeBroker, MqttFederation, mqtt_federation
from tinyproto.algorithms import ALGORITHMS
from tinyproto.wire.frame import Kind, peek

SECRETS = {client: bytes([client]) * 32 for client in range(4)}


def assert_equal_to_the_simulation(federation: MqttFederation) -> None:
    assert_in_process_equality(federation)
    assert all(listener.is_over for listener in federation.listeners.values())


def frames(federation: MqttFederation, topic: str) -> list[bytes]:
    return [payload for sent, payload, _ in federation.broker.published if sent == topic and payload[:1] != b"{"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_ends_in_the_bits_of_the_simulation(name: str, tmp_path: Path) -> None:
    assert_equal_to_the_simulation(mqtt_federation(tmp_path, values_for(name)))


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", OWN_FORMS)
def test_the_forms_of_the_baselines_own_papers_do_too(name: str, participation: float, tmp_path: Path) -> None:
    assert_equal_to_the_simulation(mqtt_federation(tmp_path, values_of_own_form(name, participation)))


@pytest.mark.parametrize("preset", ["reference", "paper", "published"])
@pytest.mark.parametrize("name", ["fedproto", "fedtgp", "tinyproto_fp", "tinyproto_ft", "feddistill"])
def test_the_options_of_other_readings_of_the_paper_do_too(name: str, preset: str, tmp_path: Path) -> None:
    values = values_for(name, preset=preset)
    if name.startswith("tinyproto"):  # block masks need a multiple of the block; the presets know no μ for digits
        values["prototypes"]["cps_dim"] = 4
        values["algorithms"][0] |= {"cps_dim": 4, "global_scale": 0.05}
    assert_equal_to_the_simulation(mqtt_federation(tmp_path, values))


HELD: dict[str, Any] = {"wire": {"up": "int8", "down": "float16", "rounding": "stochastic", "download": "held"}}


@pytest.mark.parametrize("more", [HELD, {"evaluate": {"every": 2}}])
def test_held_classes_drawn_rounding_and_half_of_the_clients_make_no_difference(
    more: dict[str, Any], tmp_path: Path
) -> None:
    values = values_for("tinyproto_fp", **more)
    values["train"]["participation"] = 0.5
    assert_equal_to_the_simulation(mqtt_federation(tmp_path, values))


def test_messages_that_are_delivered_twice_make_no_difference(tmp_path: Path) -> None:
    federation = mqtt_federation(tmp_path, values_for("tinyproto_fp"), broker=FakeBroker(copies=2))
    assert_equal_to_the_simulation(federation)
    for workers in federation.workers.values():
        trained = [peek(asked["frame"]).round_number for asked in workers[0].asked if "frame" in asked]
        assert len(trained) == len(set(trained)) + trained.count(0) - 1  # only a hello is answered twice


def test_a_broker_that_is_not_ours_makes_no_difference(tmp_path: Path) -> None:
    federation = mqtt_federation(tmp_path, values_for("tinyproto_ft"), secrets=SECRETS)
    assert_equal_to_the_simulation(federation)
    assert not frames(federation, "a")


def test_a_broadcast_that_is_equal_for_all_goes_once(tmp_path: Path) -> None:
    federation = mqtt_federation(tmp_path, values_for("tinyproto_fp"))
    assert_equal_to_the_simulation(federation)
    shared = [peek(frame) for frame in frames(federation, "a")]
    assert [(header.kind, header.round_number) for header in shared] == [
        (Kind.HELLO, 0), (Kind.TRAIN, 1), (Kind.TRAIN, 2), (Kind.TRAIN, 3), (Kind.EVALUATE, 4)
    ]  # fmt: skip
    assert {header.client for header in shared} == {0xFFFF_FFFF}
    assert not frames(federation, "d0")


def test_what_differs_between_clients_goes_to_each(tmp_path: Path) -> None:
    federation = mqtt_federation(tmp_path, values_for("tinyproto_fp", **HELD))
    federation.play()
    kinds = [peek(frame).kind for frame in frames(federation, "d0")]
    assert kinds.count(Kind.TRAIN) == 2
    shared = [peek(frame).round_number for frame in frames(federation, "a") if peek(frame).kind is Kind.TRAIN]
    assert shared == [1]  # the first round has no rows yet
