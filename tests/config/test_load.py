from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from torch import nn

from tinyproto.config import Config, load_config, parse_config
from tinyproto.config.load import BUILT_IN, COMMAND_LINE
from tinyproto.data import from_arrays
from tinyproto.errors import ConfigError, DataError
from tinyproto.experiment import Experiment

BASE = """\
name: trial
models: [small_cnn_a, small_cnn_c]
prototypes: {dim: 20, cps_dim: 4}
train: {rounds: 2, batch_size: 8}
algorithms: [local, fedproto]
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "base.yaml"
    path.write_text(BASE)
    return path


def values(**changes: Any) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(BASE)
    return {**loaded, **changes}


def refusal(path: Path, *overrides: str) -> str:
    """The message with which a config is refused."""
    with pytest.raises((ConfigError, DataError)) as caught:
        load_config(path, overrides)
    return str(caught.value)


def reason(path: Path, *overrides: str) -> str:
    """The message without the file's name in front."""
    return refusal(path, *overrides).removeprefix(str(path)).removeprefix(COMMAND_LINE)


def test_a_file_says_what_it_says_and_everything_else_has_a_default(base: Path) -> None:
    model = load_config(base).model
    assert (model.name, model.train.rounds, model.train.batch_size) == ("trial", 2, 8)
    assert (model.preset, model.data.name, model.partition.num_clients, model.seeds) == ("sound", "digits", 20, [0])


def test_an_override_wins_over_the_file_and_the_last_override_over_the_others(base: Path) -> None:
    model = load_config(base, ["train.rounds=10", "name=other", "train.rounds=11"]).model
    assert (model.train.rounds, model.train.batch_size, model.name) == (11, 8, "other")


def test_an_override_may_set_a_section_that_the_file_leaves_out(base: Path) -> None:
    assert load_config(base, ["partition.num_clients=5"]).model.partition.num_clients == 5


def test_an_override_is_read_as_yaml(base: Path) -> None:
    config = load_config(base, ["algorithms=[{name: fedproto, proto_weight: 2.5}]", "seeds=[3, 4]", "data.root=null"])
    assert config.algorithms[0].hyper.proto_weight == 2.5
    assert config.model.seeds == [3, 4]
    assert config.model.data.root is None


def test_a_whole_number_will_do_where_any_number_is_asked_for(base: Path) -> None:
    assert load_config(base, ["partition.alpha=1"]).model.partition.alpha == 1.0


@pytest.mark.parametrize(("text", "value"), [("1e-2", 0.01), ("5E-3", 0.005), ("1.5e-4", 0.00015)])
def test_numbers_may_be_written_with_an_exponent(base: Path, text: str, value: float) -> None:
    # Learning rates are often written so; YAML 1.1 alone would read 1e-2 as text.
    assert load_config(base, [f"train.learning_rate={text}"]).model.train.learning_rate == value
    base.write_text(BASE.replace("[local, fedproto]", f"[{{name: fedproto, proto_weight: {text}}}]"))
    assert load_config(base).algorithms[0].hyper.proto_weight == value


@pytest.mark.parametrize("override", ["train.rounds", "=5", " =5", ""])
def test_an_override_without_key_and_value_is_refused_with_an_example(base: Path, override: str) -> None:
    assert f"override {override!r} has to have the form key=value" in refusal(base, override)


def test_an_override_below_a_plain_value_is_refused_with_the_place(base: Path) -> None:
    assert "'train.rounds.more=5': train.rounds has no keys" in refusal(base, "train.rounds.more=5")
    assert "'models.0=x': models has no keys" in refusal(base, "models.0=x")


def test_an_override_that_is_not_yaml_is_refused_by_name(base: Path) -> None:
    message = refusal(base, "seeds=[0,", "1]")  # as a shell splits seeds=[0, 1]
    assert "override 'seeds=[0,': not valid YAML" in message.replace(", line 1", "")
    assert "'seeds=[0, 1]'" in message


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    missing = tmp_path / "nothing.yaml"
    message = refusal(missing)
    assert message.startswith(f"no config file at {missing}; ")
    assert "(quickstart, federation)" in message
    (tmp_path / "smallest.yaml").write_text("\n".join(re.findall(r"`(.*?)`", message)))
    assert [entry.label for entry in load_config(tmp_path / "smallest.yaml").algorithms] == ["local", "tinyproto_ft"]


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_config_is_found_by_its_name_from_any_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()  # a folder that happens to be called so
    in_the_repository = Path(__file__).parents[2] / "configs" / f"{name}.yaml"
    assert load_config(Path(name)).resolved() == load_config(in_the_repository).resolved()
    assert load_config(Path(name), ["train.rounds=2"]).model.train.rounds == 2


def test_a_file_takes_precedence_over_the_built_in_config_of_its_name(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(base.parent)
    base.rename(base.parent / "quickstart")
    assert load_config(Path("quickstart")).model.name == "trial"


def test_a_folder_or_a_binary_file_is_refused_by_name(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert f"cannot read the config file {binary}" in refusal(binary)
    assert refusal(tmp_path) == f"{tmp_path} is a folder; name a config file"
    (tmp_path / "config.yaml").write_text(BASE)
    assert f"`tinyproto resume {tmp_path}`" in refusal(tmp_path)


def test_a_file_that_is_not_yaml_is_refused_with_the_line(base: Path) -> None:
    base.write_text("name: trial\nmodels: [small_cnn_a\nseeds: [0]\n")
    assert f"{base}, line 3: not valid YAML" in refusal(base)


@pytest.mark.parametrize("text", ["", "only words", "- a\n- list\n", "3"])
def test_a_file_without_keys_is_refused(base: Path, text: str) -> None:
    base.write_text(text)
    assert f"{base} is not a config" in refusal(base)


def test_a_key_given_twice_is_refused(base: Path) -> None:
    base.write_text(BASE + "train: {rounds: 5}\n")
    assert "train" in reason(base)


@pytest.mark.parametrize(
    ("override", "key", "nearest"),
    [
        ("trian.rounds=3", "trian", "train"),
        ("train.round=3", "train.round", "train.rounds"),
        ("prototypes.cps_dims=3", "prototypes.cps_dims", "prototypes.cps_dim"),
        ("evaluate.evry=3", "evaluate.evry", "evaluate.every"),
        ("algorithm=[local]", "algorithm", "algorithms"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_valid_one(
    base: Path, override: str, key: str, nearest: str
) -> None:
    assert f"{COMMAND_LINE}: unknown key {key!r}, did you mean {nearest!r}?" in refusal(base, override)


@pytest.mark.parametrize(
    ("key", "nearest"), [("rounds", "train.rounds"), ("alpha", "partition.alpha"), ("dim", "prototypes.dim")]
)
def test_a_key_without_its_section_is_refused_with_the_full_key(base: Path, key: str, nearest: str) -> None:
    assert f"unknown key {key!r}, did you mean {nearest!r}?" in refusal(base, f"{key}=5")


def test_an_unknown_key_that_resembles_nothing_is_refused_with_all_that_are_known(base: Path) -> None:
    message = refusal(base, "xyzzy=1")
    assert "unknown key 'xyzzy'" in message
    assert all(name in message for name in ("preset", "partition", "prototypes", "seeds"))


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.rounds=many", "train.rounds: input should be a valid integer, not 'many'"),
        ("train.rounds='3'", "train.rounds: input should be a valid integer, not '3'"),
        ("train.rounds=true", "train.rounds: input should be a valid integer, not True"),
        ("train.rounds=2.5", "train.rounds: "),
        ("train.learning_rate=fast", "train.learning_rate: input should be a valid number, not 'fast'"),
        ("train.shuffle=1", "train.shuffle: input should be a valid boolean, not 1"),
        ("train.dropout=1", "train.dropout: input should be less than 1 or a valid string, not 1"),
        ("train.late=1", "train.late: input should be less than 1, not 1"),
        ("train={dropout: a.csv, late: 0.1}", "train: late and a file in dropout"),
        ("train.last_batch=first", "train.last_batch: input should be 'join', 'keep' or 'drop', not 'first'"),
        ("name=5", "name: input should be a valid string, not 5"),
        ("seeds=3", "seeds: a list is needed: 'seeds=[3]', not 3; it lists the seeds, not their number"),
        ("seeds=0,1", "seeds: a list is needed: 'seeds=[0,1]', not '0,1'"),
        ("seeds={a: 1}", "seeds: a list is needed, such as [a, b], not {'a': 1}"),
        ("seeds=[zero]", "seeds.0: input should be a valid integer, not 'zero'"),
        ("models=small_cnn_a", "models: a list is needed: 'models=[small_cnn_a]', not 'small_cnn_a'"),
        ("models=[5]", "models: 5 is not a name or a dotted path"),
        ("train=5", "train: "),
        ("schema_version=2", "schema_version: input should be 1, not 2"),
    ],
)
def test_a_wrong_type_is_refused_with_the_key_and_what_was_given(base: Path, override: str, expected: str) -> None:
    assert refusal(base, override).startswith(f"{COMMAND_LINE}: {expected}")


def test_a_wrong_value_in_the_file_is_not_blamed_on_the_command_line(base: Path) -> None:
    base.write_text(BASE.replace("rounds: 2", "rounds: many") + "seeds: 3\n")
    assert refusal(base, "train.batch_size=4", "name=x").startswith(f"{base}: train.rounds: ")
    assert refusal(base, "train.rounds=2").startswith(f"{base}: seeds: a list is needed: `seeds: [3]`, not 3")


def test_values_that_only_conflict_with_the_file_s_are_the_command_line_s(base: Path) -> None:
    assert refusal(base, "name=x", "prototypes.dim=3").startswith(f"{COMMAND_LINE}: prototypes.cps_dim (4) is greater")
    assert refusal(base, "train.rounds=many", "seeds=3").startswith(f"{COMMAND_LINE}: train.rounds: ")
    assert refusal(base, "algorithms=[{name: fedproto, proto_wait: 1}]").startswith(f"{COMMAND_LINE}: algorithms: ")


def test_a_relative_path_starts_at_the_current_folder_and_a_missing_file_is_shown_in_full(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    config = load_config(base, ["data.name=npz", "data.root=mine.npz"])
    assert config.model.data.root == "mine.npz"  # as it was given, so that a record can be moved
    with pytest.raises(DataError, match=str(elsewhere / "mine.npz")):
        Experiment(config)
    for override in ("train.dropout=gone.csv", "partition={kind: file, file: gone.csv}"):
        with pytest.raises(DataError, match=str(elsewhere / "gone.csv")):
            Experiment(load_config(base, [override]))


@pytest.mark.parametrize("given", ["[]", "0", "false", "''"])
def test_an_empty_value_of_the_wrong_type_is_no_section(base: Path, given: str) -> None:
    assert "train" in reason(base, f"train={given}")


def test_a_preset_of_the_wrong_type_is_refused_like_an_unknown_one(base: Path) -> None:
    assert "preset" in reason(base, "preset=[sound]")


def test_an_algorithm_of_the_wrong_type_is_refused_in_terms_of_the_config(base: Path) -> None:
    message = reason(base, "algorithms=[local, 5]")
    assert "algorithms" in message
    assert "5" in message
    assert ".str" not in message


@pytest.mark.parametrize("date", ["2024-01-02", "2024-13-45"])
def test_a_name_that_looks_like_a_date_is_a_name(base: Path, date: str) -> None:
    base.write_text(BASE.replace("name: trial", f"name: {date}"))
    assert load_config(base).model.name == date


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("train.rounds", "0"),
        ("train.batch_size", "-1"),
        ("train.learning_rate", "0"),
        ("train.learning_rate", ".inf"),
        ("train.learning_rate", ".nan"),
        ("train.participation", "0"),
        ("train.participation", "1.5"),
        ("partition.alpha", "0"),
        ("partition.alpha", ".inf"),  # numpy's draw would be NaN, which reads as the opposite: one holder per class
        ("partition.alpha", ".nan"),
        ("partition.num_clients", "0"),
        ("partition.min_samples", "0"),
        ("partition.train_fraction", "1"),
        ("partition.train_fraction", "0"),
        ("prototypes.dim", "0"),
        ("prototypes.cps_dim", "21"),
        ("prototypes.mask_seed", "-1"),
        ("evaluate.every", "0"),
        ("seeds", "[]"),
        ("seeds", "[-1]"),
        ("seeds", "[0, 0]"),  # two cells that no record could tell apart
        ("algorithms", "[]"),
        ("name", "''"),
        ("name", "a/b"),
        ("name", ".."),  # runs/.. is the folder the user works in, and --overwrite would empty it
        ("name", "."),
    ],
)
def test_an_impossible_value_is_refused_by_key(base: Path, key: str, given: str) -> None:
    assert key in reason(base, f"{key}={given}")


def test_a_cps_dimension_above_the_prototype_dimension_is_refused_with_both(base: Path) -> None:
    assert "prototypes.cps_dim (21) is greater than prototypes.dim (20)" in refusal(base, "prototypes.cps_dim=21")


def test_a_simulation_needs_networks_and_a_coordinator_does_not(base: Path) -> None:
    base.write_text("algorithms: [local]\n")
    with pytest.raises(ConfigError, match="the key 'models' is missing"):
        Experiment(load_config(base))


def test_a_file_has_to_name_algorithms(base: Path) -> None:
    base.write_text("models: [small_cnn_a]\n")
    assert "the key 'algorithms' is missing" in refusal(base)


def test_an_unknown_preset_is_refused_with_the_nearest_and_all(base: Path) -> None:
    message = refusal(base, "preset=referense")
    assert "unknown preset 'referense', did you mean 'reference'" in message
    assert "sound, reference, paper" in message


def test_an_unknown_dataset_is_refused_with_the_nearest(base: Path) -> None:
    assert "unknown dataset 'digit', did you mean 'digits'" in refusal(base, "data.name=digit")


@pytest.mark.parametrize("preset", ["sound", "reference", "paper"])
def test_the_resolved_config_loads_again_to_itself(base: Path, preset: str) -> None:
    algorithms = (
        "[local, fedtgp, {name: tinyproto_ft, global_scale: 0.01, label: mine}, "
        "{name: tinyproto_fp, scaling: none, cps_dim: null}]"
    )
    first = load_config(base, [f"preset={preset}", f"algorithms={algorithms}", "partition.min_samples=7"])
    base.write_text(yaml.safe_dump(first.resolved()))
    again = load_config(base)
    assert again.algorithms == first.algorithms
    assert again.resolved() == first.resolved()


def test_the_resolved_config_hides_no_preset_and_no_default(base: Path) -> None:
    resolved = load_config(base, ["preset=reference"]).resolved()
    assert resolved["train"]["last_batch"] == "drop"
    assert resolved["partition"]["train_fraction"] == 0.75
    assert resolved["algorithms"][1]["proto_weight"] == 10.0


def test_reading_a_config_leaves_the_values_as_they_were() -> None:
    given = values(algorithms=[{"name": "fedproto", "label": "mine", "proto_weight": 1.0}])
    before = copy.deepcopy(given)
    parse_config(given)
    assert given == before


def test_from_python_networks_are_objects_and_the_dataset_is_that_of_the_images() -> None:
    images = from_arrays(np.zeros((4, 8, 8), dtype=np.uint8), [0, 1, 0, 1], name="mine")
    module = nn.Flatten()
    config: Config = parse_config(values(models=[module, nn.ReLU]), images=images)
    assert config.model.data.name == "mine"
    assert config.model.models[0] is module
    assert config.model.models[1] is nn.ReLU


def test_an_amount_of_memory_is_checked_and_kept_as_it_was_given(base: Path) -> None:
    assert load_config(base).resolved()["train"]["client_memory"] == "auto"
    assert load_config(base, ["train.client_memory=1.5 GiB"]).resolved()["train"]["client_memory"] == "1.5 GiB"
    assert "train.client_memory: '3 heaps' is no amount of bytes" in refusal(base, "train.client_memory=3 heaps")
    assert "such as 500MB or 2kB" in refusal(base, "train.client_memory=3 heaps")


def test_where_a_key_takes_this_or_that_both_are_named(base: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"train\.workers: input should be 'auto' or greater than or equal to 1, not 0"
    ):
        load_config(base, ["train.workers=0"])
    with pytest.raises(ConfigError, match=r"train\.parallel_cells: input should be 'auto' or a valid integer, not 'x'"):
        load_config(base, ["train.parallel_cells=x"])
