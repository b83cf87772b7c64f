"""tinyproto from Python, as a notebook uses it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tinyproto as tp
from tinyproto.data import Dataset
from tinyproto.errors import ConfigError, DataError, ModelError

CLIENTS, CLASSES, DIM, CPS_DIM, ROUNDS = 4, 3, 6, 2, 2


def make_images(name: str = "arrays") -> Dataset:
    """Three classes of 8×8 images, each bright in its own rows; α = 1000 gives every client some of each."""
    random = np.random.RandomState(0)
    labels = np.arange(180) % CLASSES
    pixels = random.randint(0, 120, size=(180, 8, 8))
    for label in range(CLASSES):
        pixels[labels == label, 2 * label : 2 * label + 2] += 120
    return tp.data.from_arrays(pixels.astype(np.uint8), labels, name=name)


IMAGES = make_images()


def flat(proto_dim: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, proto_dim), nn.ReLU())


def simulate(**changes: Any) -> tp.Result:
    chosen: dict[str, Any] = {
        "data": IMAGES,
        "algorithm": "fedproto",
        "models": [flat],
        "num_clients": CLIENTS,
        "alpha": 1000.0,
        "rounds": ROUNDS,
        "proto_dim": DIM,
        "cps_dim": CPS_DIM,
    }
    return tp.simulate(**{**chosen, **changes})


def heads(result: tp.Result) -> list[float | None]:
    return [record.accuracy["head"] for record in result.rounds]


def weights(module: nn.Module) -> list[torch.Tensor]:
    return [value.clone() for value in module.state_dict().values()]


def test_the_example_of_the_documentation_works() -> None:
    result = tp.simulate(
        data=tp.data.load("digits"), algorithm="tinyproto_ft", models=["small_cnn_c", flat], num_clients=5, alpha=0.5,
        rounds=2, seed=0,
    )  # fmt: skip
    assert set(result.accuracy["best"]) == {"head", "global", "local"}
    assert (result.left_out, result.summary["left_out"]) == ({}, 0)
    assert result.bytes_per_round["payload"]["up"] > 0
    assert result.clients[3].model(torch.zeros(2, 1, 8, 8)).logits.shape == (2, 10)


def test_a_dataset_may_be_given_by_name() -> None:
    result = simulate(data="digits", rounds=1, algorithm="local")
    assert result.summary["dataset"] == "digits"


def test_a_simulation_learns_what_can_be_learned() -> None:
    result = simulate(algorithm="local", rounds=8, settings={"train": {"learning_rate": 0.05, "batch_size": 8}})
    untrained = heads(result)[0]
    assert untrained is not None
    assert untrained < 0.7
    assert result.accuracy["last"]["head"] == pytest.approx(1.0, abs=0.05)
    assert result.accuracy["last"]["local"] == pytest.approx(1.0, abs=0.05)


def test_there_is_a_record_per_round_and_a_closing_one() -> None:
    result = simulate()
    assert [(record.round, record.closing) for record in result.rounds] == [(1, False), (2, False), (3, True)]
    assert len(result.clients) == CLIENTS


@pytest.mark.parametrize(
    ("algorithm", "cps_dim", "width"),
    [
        ("local", CPS_DIM, 0),
        ("fedproto", CPS_DIM, DIM),
        ("tinyproto_fp", CPS_DIM, CPS_DIM),
        ("tinyproto_fp", None, DIM),
    ],
)
def test_bytes_are_those_of_the_rows_that_travel(algorithm: str, cps_dim: int | None, width: int) -> None:
    # Every client holds all three classes, so 4 clients send and receive 3 rows of 4-byte numbers.
    result = simulate(algorithm=algorithm, cps_dim=cps_dim)
    one_way = CLIENTS * CLASSES * width * 4
    assert result.bytes_per_round["payload"] == {"up": one_way, "down": one_way}
    assert result.summary["params_per_round"] == result.summary["params_per_round_formula"] == 2 * one_way / 4
    assert result.bytes_per_round["wire"]["up"] > one_way


def test_a_clients_model_is_the_one_that_was_evaluated_last() -> None:
    result = simulate()
    client, record = result.clients[3], result.rounds[-1].clients[3]
    assert isinstance(client.model, tp.SplitModel)
    assert not any(module.training for module in client.model.modules())
    batch = client.test.batch(slice(None))
    with torch.no_grad():
        guesses = client.model(batch.inputs).logits.argmax(1)
    assert record.test_samples == len(client.test)
    assert record.correct["head"] == int((guesses == batch.labels).sum())


def test_client_i_gets_entry_i_modulo_their_number() -> None:
    result = simulate(models=["small_cnn_c", flat, "small_cnn_a"], rounds=1)
    sizes = [sum(value.numel() for value in client.model.parameters()) for client in result.clients]
    assert sizes[0] == sizes[3]
    assert len(set(sizes)) == 3


def test_without_networks_the_clients_share_out_the_four_small_cnns() -> None:
    result = simulate(models=None, num_clients=5, rounds=1)
    sizes = [sum(value.numel() for value in client.model.parameters()) for client in result.clients]
    assert sizes[0] == sizes[4]
    assert len(set(sizes)) == 4
    assert max(sizes) < 20_000


def test_clients_with_one_factory_start_from_weights_of_their_own() -> None:
    result = simulate(rounds=1, settings={"train": {"learning_rate": 1e-12}})
    first, second = (weights(result.clients[index].model) for index in (0, 1))
    assert not torch.equal(first[0], second[0])


def test_a_module_object_is_copied_for_every_client_and_stays_as_it_was() -> None:
    mine = flat(DIM)
    before = weights(mine)
    result = simulate(models=[mine])
    assert all(torch.equal(value, old) for value, old in zip(weights(mine), before, strict=True))
    trained = [weights(client.model.extractor)[0] for client in result.clients]
    assert not any(torch.equal(value, before[0]) for value in trained)
    assert not torch.equal(trained[0], trained[1])


def test_a_network_may_be_given_by_dotted_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "nets_for_the_api.py").write_text(
        "from torch import nn\n"
        "def make(input_shape, proto_dim):\n"
        "    assert input_shape == (1, 8, 8)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, proto_dim))\n"
    )
    result = simulate(models=["nets_for_the_api:make"], rounds=1)
    assert result.clients[0].model(torch.zeros(1, 1, 8, 8)).features.shape == (1, DIM)


def test_hyper_parameters_reach_the_algorithm() -> None:
    # Without the pull FedProto trains as Local does; with it, it does not.
    local = simulate(algorithm="local", rounds=3)
    unpulled = simulate(algorithm={"name": "fedproto", "proto_weight": 0.0}, rounds=3)
    pulled = simulate(algorithm={"name": "fedproto", "proto_weight": 50.0}, rounds=3)
    losses = [[record.loss.get("cross_entropy") for record in run.rounds] for run in (local, unpulled, pulled)]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]
    assert heads(local) == heads(unpulled)


def test_settings_win_over_arguments_and_keep_the_rest() -> None:
    result = simulate(rounds=5, settings={"train": {"rounds": 1, "batch_size": 4}, "partition": {"num_clients": 3}})
    assert len(result.rounds) == 2
    assert len(result.clients) == 3


def test_the_seed_decides_everything() -> None:
    first, again, other = (simulate(seed=seed) for seed in (0, 0, 1))
    assert first.rounds == again.rounds
    assert first.rounds != other.rounds
    assert all(
        torch.equal(value, same)
        for one, two in zip(first.clients, again.clients, strict=True)
        for value, same in zip(weights(one.model), weights(two.model), strict=True)
    )


def test_a_simulation_leaves_threads_and_generators_as_they_were() -> None:
    torch_state, numpy_state, threads = torch.get_rng_state(), repr(np.random.get_state()), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        simulate(rounds=1)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert repr(np.random.get_state()) == numpy_state


def test_a_preset_may_be_chosen() -> None:
    result = simulate(data=make_images("cifar10"), preset="reference", algorithm="tinyproto_ft", rounds=1)
    assert (result.summary["preset"], result.summary["dataset"]) == ("reference", "cifar10")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"algorithm": "fedprotto"}, ConfigError, "did you mean 'fedproto'"),
        ({"algorithm": {"name": "fedproto", "weight": 1.0}}, ConfigError, "unknown key 'weight'"),
        ({"algorithm": {"name": "fedproto", "proto_weight": -1.0}}, ConfigError, "proto_weight must not be negative"),
        ({"algorithm": {"proto_weight": 1.0}}, ConfigError, "has no name"),
        ({"data": "digitz"}, DataError, "did you mean 'digits'"),
        ({"preset": "sond"}, ConfigError, "did you mean 'sound'"),
        ({"models": []}, ConfigError, "models"),
        ({"models": ["smal_cnn_a"]}, ModelError, "did you mean 'small_cnn_a'"),
        ({"models": [nn.Conv2d(3, 4, 3)]}, ModelError, r"Conv2d fails on a batch of shape \(2, 1, 8, 8\)"),
        ({"num_clients": 181}, DataError, "181 clients .* has 180"),
        ({"num_clients": 0}, ConfigError, r"partition\.num_clients"),
        ({"alpha": 0.0}, ConfigError, r"partition\.alpha"),
        ({"rounds": 0}, ConfigError, r"train\.rounds"),
        ({"seed": -1}, ConfigError, "seeds"),
        ({"cps_dim": DIM + 1}, ConfigError, r"cps_dim \(7\) is greater than prototypes\.dim \(6\)"),
        ({"settings": {"train": {"round": 3}}}, ConfigError, r"did you mean 'train\.rounds'"),
        ({"settings": {"trian": {"rounds": 3}}}, ConfigError, "did you mean 'train'"),
        ({"settings": {"train": 3}}, ConfigError, "'train' has to be a mapping"),
        ({"settings": ["train"]}, ConfigError, r"settings has to be a mapping .*, not \['train'\]"),
        ({"algorithm": ["local", "fedproto"]}, ConfigError, r"\['local', 'fedproto'\] is neither a name nor"),
        ({"algorithm": None}, ConfigError, "None is neither a name nor a mapping"),
        ({"proto_dim": "10", "cps_dim": "tenth"}, ConfigError, r"prototypes\.dim: .*, not '10'"),
        ({"models": [3]}, ModelError, "model 3: its factory failed with TypeError"),
    ],
)
def test_a_mistake_is_an_error_in_words(
    changes: Mapping[str, Any], error: type[tp.TinyProtoError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        simulate(**changes)
    assert isinstance(caught.value, tp.TinyProtoError)


@pytest.mark.parametrize("models", ["small_cnn_a", flat(DIM)])
def test_one_network_in_the_place_of_a_list_is_taken_as_one_or_refused_as_such(models: Any) -> None:
    # Spelt out letter by letter, or layer by layer, it gives messages that nobody understands.
    try:
        result = simulate(models=models, rounds=1)
    except tp.TinyProtoError as error:
        assert "list" in str(error)  # noqa: PT017
    else:
        assert len(result.clients) == CLIENTS


def test_only_what_is_there_can_be_asked_of_the_package() -> None:
    assert set(tp.__all__) >= {"simulate", "data", "Result", "SplitModel", "TinyProtoError"}
    assert all(hasattr(tp, name) for name in tp.__all__)
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        _ = tp.simulat


def test_clients_beyond_the_budget_are_read_from_disk_when_asked_for() -> None:
    def run(memory: str) -> tp.Result:
        return tp.simulate(
            num_clients=4, alpha=1.0, rounds=2, models="small_cnn_c", proto_dim=10,
            settings={"train": {"client_memory": memory}},
        )  # fmt: skip

    roomy, tight = run("1GB"), run("1B")
    assert roomy.rounds == tight.rounds
    assert [client.id for client in tight.clients] == [0, 1, 2, 3]
    assert (tight.clients[-1].id, [client.id for client in tight.clients[1:3]]) == (3, [1, 2])
    with pytest.raises(IndexError):
        tight.clients[4]
    for one, other in zip(roomy.clients, tight.clients, strict=True):
        for name, tensor in one.model.state_dict().items():
            assert torch.equal(tensor, other.model.state_dict()[name])
        assert one.received is not None
        assert other.received is not None
        assert torch.equal(one.received.values, other.received.values)


def test_a_byte_budget_among_the_settings_takes_the_place_of_a_tenth() -> None:
    result = tp.simulate(
        data=IMAGES, models=[flat], algorithm="tinyproto_fp", num_clients=CLIENTS, alpha=1000.0, rounds=2,
        proto_dim=20, settings={"prototypes": {"byte_budget": "300B"}},
    )  # fmt: skip
    spent = sum(result.summary["wire_bytes_per_round"].values()) / CLIENTS
    assert 250 < spent <= 300
