from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tinyproto.algorithms import ALGORITHMS, AlgorithmSpec, FederationSpec
from tinyproto.config import parse_config
from tinyproto.config.algorithms import AlgorithmEntry
from tinyproto.config.load import completed
from tinyproto.errors import ConfigError
from tinyproto.wire.values import WireSettings

FEDERATION = FederationSpec(
    num_classes=10, proto_dim=20, learning_rate=0.01, input_shape=(1, 8, 8), networks=("small_cnn_a",)
)


def entries(*algorithms: Any, **prototypes: Any) -> tuple[AlgorithmEntry, ...]:
    given = {"models": ["small_cnn_a"], "prototypes": {"dim": 20, "cps_dim": 4, **prototypes}}
    return parse_config({**given, "algorithms": list(algorithms)}).algorithms


def refusal(*algorithms: Any, **prototypes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        entries(*algorithms, **prototypes)
    return str(caught.value)


def test_every_registered_algorithm_can_be_named_and_built() -> None:
    for name, entry in zip(ALGORITHMS, entries(*ALGORITHMS), strict=True):
        assert entry.spec is ALGORITHMS[name]
        assert entry.build(FEDERATION).name == name


def test_entries_keep_the_order_of_the_config() -> None:
    assert [entry.label for entry in entries("fedtgp", "local", "fedproto")] == ["fedtgp", "local", "fedproto"]


def test_an_entry_sets_its_own_hyper_parameters_and_keeps_the_other_defaults() -> None:
    (entry,) = entries({"name": "fedtgp", "proto_weight": 2, "server_epochs": 7})
    assert (entry.hyper.proto_weight, entry.hyper.server_epochs, entry.hyper.server_batch_size) == (2.0, 7, 32)
    assert entry.label == "fedtgp"


def test_the_prototypes_section_reaches_every_method_that_sparsifies() -> None:
    fp, ft = entries("tinyproto_fp", "tinyproto_ft", cps_dim=5, mask_seed=3, masks="balanced")
    assert [(entry.hyper.cps_dim, entry.hyper.mask_seed) for entry in (fp, ft)] == [(5, 3), (5, 3)]
    assert fp.build(FEDERATION).row_width == 5


def test_an_entrys_own_cps_dimension_wins_and_null_sends_every_dimension() -> None:
    narrow, full = entries(
        {"name": "tinyproto_fp", "cps_dim": 2, "label": "narrow"},
        {"name": "tinyproto_fp", "cps_dim": None, "label": "full"},
    )
    assert narrow.build(FEDERATION).row_width == 2
    assert full.build(FEDERATION).row_width == 20


def test_two_entries_of_one_algorithm_are_told_apart_by_what_differs() -> None:
    plain, weighted, full = entries(
        "tinyproto_fp", {"name": "tinyproto_fp", "proto_weight": 2.5}, {"name": "tinyproto_fp", "cps_dim": None}
    )
    assert [entry.label for entry in (plain, weighted, full)] == [
        "tinyproto_fp",
        "tinyproto_fp(proto_weight=2.5)",
        "tinyproto_fp(cps_dim=null)",
    ]


@pytest.mark.parametrize("label", ["", " ", 5, True, ["a"], {"a": "b"}])
def test_a_label_is_some_text(label: Any) -> None:
    with pytest.raises(ConfigError, match=r"algorithms: fedproto: label: .* is not a name"):
        entries({"name": "fedproto", "label": label})


def test_a_label_of_ones_own_is_the_title_too() -> None:
    own, plain = entries({"name": "fedproto", "label": "weak pull", "proto_weight": 0.1}, "fedtgp")
    assert (own.label, own.title) == ("weak pull", "weak pull")
    assert (plain.label, plain.title) == ("fedtgp", "FedTGP")


def test_two_entries_that_cannot_be_told_apart_are_refused() -> None:
    assert "2 entries have the label 'fedproto'" in refusal("fedproto", "fedproto")
    assert "2 entries have the label 'x'" in refusal(
        {"name": "fedproto", "label": "x"}, {"name": "local", "label": "x"}
    )


def test_an_unknown_algorithm_is_refused_with_the_nearest_and_all() -> None:
    message = refusal("local", "fedprotto")
    assert "unknown algorithm 'fedprotto', did you mean 'fedproto'" in message
    assert "tinyproto_ft" in message


def test_an_unknown_hyper_parameter_is_refused_with_the_nearest() -> None:
    message = refusal({"name": "fedtgp", "server_epoch": 3})
    assert "fedtgp: unknown key 'server_epoch', did you mean 'server_epochs'" in message
    assert "local: unknown key 'proto_weight'" in refusal({"name": "local", "proto_weight": 1.0})


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"proto_weight": 1.0}, "has no name"),
        ({"name": ["fedproto"]}, r"['fedproto'] is not a name"),
        ({"name": "fedproto", "proto_weight": "strong"}, "fedproto: proto_weight: input should be a valid number"),
        ({"name": "fedproto", "proto_weight": True}, "fedproto: proto_weight: input should be a valid number"),
        ({"name": "fedproto", "distance": "cosine"}, "fedproto: distance: input should be 'mse' or 'l2', not 'cosine'"),
        ({"name": "fedtgp", "server_epochs": 1.5}, "fedtgp: server_epochs: input should be a valid integer, not 1.5"),
        ({"name": "fedproto", "proto_weight": -1.0}, "proto_weight must not be negative, not -1.0"),
        ({"name": "fedtgp", "server_epochs": 0}, "server_epochs must be above 0, not 0"),
        ({"name": "tinyproto_ft", "global_scale": 0.0}, "global_scale must be above 0, not 0.0"),
        ({"name": "tinyproto_ft", "global_scale": "best"}, "tinyproto_ft: global_scale"),
        ({"name": "tinyproto_ft", "cps_dim": 21}, "cps_dim (21) is greater than prototypes.dim (20)"),
        ({"name": "tinyproto_ft", "cps_dim": 0}, "cps_dim must be above 0, not 0"),
        ({"name": "fml", "local_weight": 1.5}, "fml: local_weight must lie between 0 and 1, not 1.5"),
        ({"name": "fml", "reduction": "sum"}, "fml: reduction: input should be 'batch' or 'element', not 'sum'"),
        ({"name": "fedkd", "detach_targets": 1}, "fedkd: detach_targets: input should be a valid boolean, not 1"),
        ({"name": "fedkd", "energy_start": 0.99}, "energy_start ≤ energy_end ≤ 1"),
        ({"name": "fedkd", "clip_norm": 0}, "clip_norm must be above 0, not 0"),
        ({"name": "feddistill", "distill_weight": -1.0}, "distill_weight must not be negative, not -1.0"),
        ({"name": "protonorm", "align_momentum": 1.0}, "protonorm: align_momentum must be below 1, not 1.0"),
        ({"name": "protonorm", "sent_dim": 0}, "protonorm: sent_dim must be above 0, not 0"),
        ({"name": "protonorm", "cps_dim": 3}, "protonorm: unknown key 'cps_dim'"),
        ({"name": "fedgh", "proto_weight": 1.0}, "fedgh: unknown key 'proto_weight'"),
        ({"name": "fedsa", "anchor_decay": 1.5}, "fedsa: anchor_decay must be between 0 and 1, not 1.5"),
        ({"name": "fedorgp", "orthogonality_weight": -1.0}, "orthogonality_weight must not be negative, not -1.0"),
        ({"name": "lg_fedavg", "proto_weight": 1.0}, "lg_fedavg: unknown key 'proto_weight'"),
    ],
)
def test_an_entry_that_cannot_be_is_refused_with_the_reason(entry: dict[str, Any], message: str) -> None:
    assert message in refusal(entry)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(("name", "key"), [("fedproto", "proto_weight"), ("tinyproto_ft", "global_scale")])
def test_a_hyper_parameter_has_to_be_finite(name: str, key: str, value: float) -> None:
    assert key in refusal({"name": name, key: value})


def test_what_does_not_fit_the_federation_is_an_error_that_names_the_entry() -> None:
    # Blocks of ⌊20/10⌋ = 2 dimensions cannot give a class 3.
    (entry,) = entries({"name": "tinyproto_fp", "label": "in blocks"}, masks="blocks", cps_dim=3)
    with pytest.raises(ConfigError, match="algorithm in blocks: "):
        entry.build(FEDERATION)


@pytest.mark.parametrize(
    ("entry", "networks", "message"),
    [
        ("fedavg", ("small_cnn_a", "small_cnn_b"), "algorithm fedavg: .* has small_cnn_a, small_cnn_b"),
        ({"name": "fml", "auxiliary": "resnet9"}, ("small_cnn_a",), "algorithm fml: auxiliary: unknown model"),
        ({"name": "fedkd", "auxiliary": "no_such:net"}, ("small_cnn_a",), "algorithm fedkd: auxiliary: .*no_such"),
    ],
)  # fmt: skip
def test_networks_that_a_method_cannot_share_are_an_error_that_names_the_entry(
    entry: Any, networks: tuple[str, ...], message: str
) -> None:
    (found,) = entries(entry)
    with pytest.raises(ConfigError, match=message):
        found.build(replace(FEDERATION, networks=networks))


def test_an_entry_is_written_out_with_every_hyper_parameter() -> None:
    (entry,) = entries("fedproto")
    assert entry.resolved() == {
        "name": "fedproto",
        "label": "fedproto",
        "proto_weight": 10.0,
        "distance": "mse",
        "prototype_source": "fresh",
    }


def test_an_algorithm_of_ones_own_is_found_by_its_dotted_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "method_of_a_user.py").write_text(
        "from dataclasses import dataclass, replace\n"
        "from tinyproto.algorithms.fedproto import SPEC as BASE\n"
        "SPEC = replace(BASE, name='mine', title='Mine')\n"
        "NOTHING = 5\n"
    )
    (entry,) = entries({"name": "method_of_a_user:SPEC", "proto_weight": 4.0})
    assert isinstance(entry.spec, AlgorithmSpec)
    assert (entry.label, entry.title, entry.hyper.proto_weight) == ("mine", "Mine", 4.0)
    assert entry.resolved()["name"] == "method_of_a_user:SPEC"
    assert "is int, not an AlgorithmSpec" in refusal("method_of_a_user:NOTHING")
    assert "importing 'no_method_of_a_user' failed" in refusal("no_method_of_a_user:SPEC")


def wired(*algorithms: Any, **wire: str) -> tuple[AlgorithmEntry, ...]:
    given = {"models": ["small_cnn_a"], "prototypes": {"dim": 20, "cps_dim": 4}, "wire": wire}
    return parse_config({**given, "algorithms": list(algorithms)}).algorithms


def test_an_entry_is_written_in_the_config_s_types_unless_it_names_its_own() -> None:
    mine = {"up": "int8", "down": "int8"}
    plain, own, partly, drawn = wired(
        "fedtgp",
        {"name": "tinyproto_ft", "wire": mine},
        {"name": "tinyproto_ft", "wire": {"up": "int4"}},
        {"name": "tinyproto_ft", "wire": {**mine, "rounding": "stochastic"}},
        down="float16",
    )
    assert plain.wire == WireSettings("float32", "float16")
    assert own.wire == WireSettings("int8", "int8")
    assert partly.wire == WireSettings("int4", "float16")
    assert drawn.wire == WireSettings("int8", "int8", "stochastic")
    assert [entry.label for entry in (plain, own, partly, drawn)] == [
        "fedtgp",
        "tinyproto_ft(wire=int8)",
        "tinyproto_ft(up=int4,down=float16)",
        "tinyproto_ft(wire=int8,rounding=stochastic)",
    ]
    assert "wire" not in plain.resolved()
    assert own.resolved()["wire"] == {**mine, "rounding": "nearest", "download": "all"}


def test_types_of_its_own_are_told_even_of_an_entry_that_stands_alone() -> None:
    (entry,) = wired({"name": "fedproto", "proto_weight": 1.0, "wire": {"up": "int8", "down": "int8"}})
    assert entry.label == "fedproto(wire=int8)"
    (same,) = wired({"name": "fedproto", "wire": {"up": "int8"}}, up="int8")
    assert same.label == "fedproto"


def test_what_a_config_resolves_to_gives_the_same_types_again() -> None:
    given = {"models": ["small_cnn_a"], "wire": {"up": "int8"}, "algorithms": [
        "local", {"name": "fedproto", "wire": {"rounding": "stochastic"}}
    ]}  # fmt: skip
    once = parse_config(given)
    plain = {"rounding": "nearest", "download": "all"}
    assert once.resolved()["wire"] == {"up": "int8", "down": "float32", **plain}
    again = parse_config(once.resolved())
    assert (again.algorithms, again.resolved()) == (once.algorithms, once.resolved())


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        ("int8", "fedproto: wire: 'int8' is not a mapping such as {up: int8, down: int8}"),
        ({"upp": "int8"}, "fedproto: wire: unknown key 'upp', did you mean 'up'?"),
        ({"up": "int7"}, "fedproto: wire.up: input should be 'float32', 'float16', 'bfloat16', 'int8' or 'int4', not"),
        ({"rounding": 3}, "fedproto: wire.rounding: input should be 'nearest' or 'stochastic', not 3"),
    ],
)
def test_a_type_that_is_none_is_an_error_that_names_the_entry_and_the_key(wire: Any, words: str) -> None:
    assert words in refusal({"name": "fedproto", "wire": wire})


def test_a_record_from_before_there_were_types_is_one_in_float32() -> None:
    old = {"name": "x", "train": {}, "prototypes": {"dim": 5}, "algorithms": [{"name": "tinyproto_ft", "cps_dim": 2}]}
    plain = {"up": "float32", "down": "float32", "rounding": "nearest", "download": "all"}
    assert completed(old)["wire"] == plain
    assert completed({**old, "wire": {"up": "int8"}})["wire"] == {**plain, "up": "int8"}
    train = completed(old)["train"]
    assert (train["dropout"], train["late"], train["max_left_out"]) == (0.0, 0.0, 0.5)
    assert completed({**old, "train": {"late": 0.5}})["train"]["late"] == 0.5
    prototypes = completed(old)["prototypes"]
    assert (prototypes["dim"], prototypes["byte_budget"]) == (5, None)
    assert [completed(values)["keep_models"] for values in (old, {**old, "keep_models": True})] == [False, True]
    assert completed(old)["algorithms"] == [{"name": "tinyproto_ft", "cps_dim": 2, "byte_budget": None}]
    entries = [{"name": "fedkd", "matrices": "kernels"}, {"name": "feddistill", "distill_weight": 1.0}]
    weights, everybody = completed({**old, "algorithms": entries})["algorithms"]
    assert (weights["factorised"], everybody["teachers"]) == ("weights", "all")


def test_a_byte_budget_takes_the_place_of_s_for_all_or_for_one_entry() -> None:
    everyone = {"models": ["small_cnn_a"], "prototypes": {"dim": 20, "byte_budget": "600B"}}
    config = parse_config({**everyone, "algorithms": ["tinyproto_fp", {"name": "tinyproto_ft", "cps_dim": 3}]})
    budgeted, own = config.algorithms
    assert (budgeted.hyper.cps_dim, budgeted.hyper.byte_budget, budgeted.label) == (None, "600B", "tinyproto_fp")
    assert (own.hyper.cps_dim, own.hyper.byte_budget) == (3, None)
    assert budgeted.build(FEDERATION).row_width == 6  # 102 bytes beside 10 rows of 4·s, up and down
    again = parse_config(config.resolved())
    assert again.resolved() == config.resolved()
    one, packed = entries(
        {"name": "tinyproto_fp", "byte_budget": "600B"},
        {"name": "tinyproto_ft", "byte_budget": "600B", "wire": {"up": "int8", "down": "int8"}},
    )
    assert (one.label, packed.label) == ("tinyproto_fp(byte_budget=600B)", "tinyproto_ft(byte_budget=600B,wire=int8)")
    assert (one.build(FEDERATION).row_width, packed.build(FEDERATION).row_width) == (6, 20)


def test_null_sends_all_even_where_a_budget_holds_for_the_others() -> None:
    (entry,) = entries({"name": "tinyproto_ft", "cps_dim": None}, cps_dim=None, byte_budget="600B")
    assert (entry.hyper.cps_dim, entry.hyper.byte_budget, entry.label) == (None, None, "tinyproto_ft(cps_dim=null)")
    assert entry.build(FEDERATION).row_width == 20


def test_s_and_a_byte_budget_at_once_are_refused() -> None:
    both = {"name": "tinyproto_ft", "cps_dim": 3, "byte_budget": "1kB"}
    assert "tinyproto_ft: cps_dim and byte_budget" in refusal(both)
    assert "cps_dim and byte_budget exclude each other" in refusal("local", byte_budget="1kB")
    assert "'much' is no amount of bytes" in refusal("local", cps_dim=None, byte_budget="much")
    assert "algorithms: tinyproto_ft: byte_budget: 'much' is no amount of bytes" in refusal(
        {"name": "tinyproto_ft", "byte_budget": "much"}
    )


def test_a_label_says_when_an_entry_is_sent_the_classes_held_alone() -> None:
    (entry,) = entries({"name": "tinyproto_ft", "wire": {"up": "int4", "down": "int4", "download": "held"}})
    assert entry.label == "tinyproto_ft(wire=int4,download=held)"
