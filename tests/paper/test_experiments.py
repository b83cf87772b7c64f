from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from paper.experiments import FOLDER, SAME_AS_PUBLISHED, PaperConfig, experiments, write_configs
from tinyproto.config import load_config

ROOT = Path(__file__).parents[2]
ALL = experiments()


def of(target: str) -> list[PaperConfig]:
    return [config for config in ALL if config.target == target]


def files(root: Path) -> dict[Path, str]:
    return {path.relative_to(root): path.read_text() for path in (root / FOLDER).iterdir()}


def test_the_files_in_configs_are_what_the_definition_says() -> None:
    assert files(ROOT) == {config.path: config.text() for config in ALL}, "run `make docs`"


@pytest.mark.parametrize("config", ALL, ids=lambda config: config.stem)
def test_every_config_of_the_paper_is_valid_and_says_how_to_run_it(config: PaperConfig) -> None:
    loaded = load_config(ROOT / config.path)
    assert loaded.model.name == config.stem
    others = {"readings_paper": "paper", "auto_sound_cifar10": "sound", "auto_sound_cifar100": "sound"}
    usual = "published" if config.target == "published" else "reference"
    assert loaded.model.preset == others.get(config.stem, usual)
    assert f"tinyproto run {config.path.as_posix()} data.root=data" in config.text()
    assert len(loaded.algorithms) * len(loaded.model.seeds) == config.cells


def test_table_1_has_the_paper_s_eight_methods_and_local_on_three_datasets_three_times() -> None:
    assert [config.values["data"]["name"] for config in of("table1")] == ["cifar10", "cifar100", "tiny_imagenet"]
    for config in of("table1"):
        assert len(config.values["algorithms"]) == 9
        assert config.cells == 27


def test_the_ablation_has_the_paper_s_rows_but_for_the_four_that_table_1_has() -> None:
    # 24 rows: 2 methods × (no CPS, five dimensions) × (scaled or not); FedProto, FedTGP and s=50 scaled are in Table 1.
    for config in of("appendix"):
        rows = {(entry["name"], entry["cps_dim"], entry["scaling"]) for entry in config.values["algorithms"]}
        assert len(rows) == len(config.values["algorithms"]) == 20
        assert not rows & {(name, 50, "count") for name in ("tinyproto_fp", "tinyproto_ft")}
        assert ("tinyproto_ft", None, "count") in rows
        assert ("tinyproto_fp", 450, "none") in rows


def test_table_3_changes_one_thing_at_a_time() -> None:
    partitions = [(c.values["partition"]["num_clients"], c.values["partition"]["alpha"]) for c in of("table3")]
    assert partitions == [(50, 0.1), (20, 0.01), (20, 0.5)]


def test_the_figures_move_the_width_and_a_tenth_of_it() -> None:
    assert [tuple(c.values["prototypes"].values()) for c in of("figure-neurons")] == [(100, 10), (1000, 100)]
    widths = [c.values["prototypes"]["dim"] for c in of("figure-compression")]
    assert widths == [50, 150, 250, 350, 450] * 2


def test_the_study_of_bytes_crosses_types_with_dimensions_and_has_a_baseline_in_smaller_types() -> None:
    (config,) = of("bytes")
    held = [entry for entry in config.values["algorithms"] if entry["wire"]["download"] == "held"]
    nearest = [entry for entry in held if entry["wire"]["rounding"] == "nearest"]
    assert len({(entry["cps_dim"], entry["wire"]["up"]) for entry in nearest if "global_scale" not in entry}) == 15
    derived = [(entry["cps_dim"], entry["wire"]["up"]) for entry in nearest if entry.get("global_scale") == "auto"]
    assert derived == [(50, "int4"), (25, "int4"), (10, "int4")]
    assert {entry["name"] for entry in config.values["algorithms"]} > {"fedproto", "fedtgp", "lg_fedavg", "feddistill"}


def test_the_first_100_classes_of_tiny_imagenet_have_table_1_s_methods_() -> None:
    (config,) = of("tiny-imagenet-100")
    (whole,) = [config for config in of("table1") if config.values["data"]["name"] == "tiny_imagenet"]
    changed = {key for key in whole.values if whole.values[key] != config.values[key]}
    assert changed == {"name", "data", "seeds"}
    assert config.values["data"] == {"name": "tiny_imagenet", "first_classes": 100}
    assert (config.dataset, whole.dataset) == ("tiny_imagenet, first 100 classes", "tiny_imagenet")
    assert (config.cells, config.values["seeds"], config.values["train"]["rounds"]) == (9, [0], 300)


def test_the_released_code_is_asked_for_the_methods_it_changes_and_three_times_for_those_with_prototypes() -> None:
    found = {config.stem: config for config in of("published")}
    for dataset in ("cifar100", "cifar10"):
        (whole,) = [config for config in of("table1") if config.values["data"]["name"] == dataset]
        parts = found[f"published_{dataset}"], found[f"published_others_{dataset}"]
        names = [name for part in parts for name in part.values["algorithms"]]
        assert sorted([*names, *SAME_AS_PUBLISHED]) == sorted(whole.values["algorithms"])
        assert [part.cells for part in parts] == [12, 1]
        for part in parts:
            changed = {key for key in whole.values if whole.values[key] != part.values[key]}
            assert changed <= {"name", "preset", "algorithms", "seeds"}


def test_fifty_clients_are_trained_as_in_the_scripts_loop() -> None:
    (config,) = [config for config in of("published") if config.stem == "published_clients50"]
    loaded = load_config(ROOT / config.path)
    assert (loaded.model.partition.num_clients, loaded.model.train.rounds) == (50, 500)
    keys = ("cps_dim", "proto_weight", "global_scale", "prototype_source", "masks")
    found = [tuple(asdict(entry.hyper)[key] for key in keys) for entry in loaded.algorithms]
    assert found == [(s, 20.0, 0.02, "running", "blocks") for s in (250, 50)]


def test_other_partitions_change_nothing_but_the_seed_of_the_draw() -> None:
    (whole,) = [config for config in of("table1") if config.values["data"]["name"] == "cifar100"]
    for config, seed in zip(of("partitions"), (2, 3), strict=True):
        assert config.values["partition"] == {**whole.values["partition"], "seed": seed}
        assert {key for key in whole.values if whole.values[key] != config.values[key]} == {
            "name", "partition", "algorithms", "seeds",
        }  # fmt: skip


def test_readings_are_asked_of_cifar10_where_it_lies_furthest_from_print() -> None:
    (config,) = [config for config in of("readings") if config.stem == "readings_cifar10"]
    entries = {entry.label: entry.hyper for entry in load_config(ROOT / config.path).algorithms}
    keys = ("prototype_source", "masks", "global_scale")
    found = {label: tuple(getattr(hyper, key, None) for key in keys) for label, hyper in entries.items()}
    assert found == {
        "fedproto(running)": ("running", None, None),
        "tinyproto_ft(blocks)": ("fresh", "blocks", 0.001),
        "tinyproto_ft(running)": ("running", "balanced", 0.001),
        "tinyproto_ft(blocks-running)": ("running", "blocks", 0.001),
        "tinyproto_ft(scale=0.003)": ("fresh", "balanced", 0.003),
        "tinyproto_ft(scale=0.01)": ("fresh", "balanced", 0.01),
    }


def test_a_reading_of_the_ablation_differs_from_its_cell_in_where_prototypes_come_from() -> None:
    (config,) = [config for config in of("readings") if config.stem == "readings_ablation"]
    (ablation,) = [config for config in of("appendix") if config.dataset == "cifar100"]
    plain = {entry.label: asdict(entry.hyper) for entry in load_config(ROOT / ablation.path).algorithms}
    for entry in load_config(ROOT / config.path).algorithms:
        own, cell = asdict(entry.hyper), plain[entry.label.replace(",running", "")]
        assert (own.pop("prototype_source"), cell.pop("prototype_source")) == ("running", "fresh")
        assert own == cell


def test_readings_with_50_clients_differ_from_table_3_in_one_key_each() -> None:
    (config,) = [config for config in of("readings") if config.stem == "readings_clients50"]
    (table,) = [config for config in of("table3") if config.stem == "table3_clients50"]
    assert {key for key in table.values if table.values[key] != config.values[key]} == {"name", "algorithms", "seeds"}
    (plain,) = [entry.hyper for entry in load_config(ROOT / table.path).algorithms if entry.label == "tinyproto_ft"]
    changed = {}
    for entry in load_config(ROOT / config.path).algorithms:
        own, cell = asdict(entry.hyper), asdict(plain)
        changed[entry.label] = {key: (own[key], cell[key]) for key in cell if own[key] != cell[key]}
    assert changed == {
        "tinyproto_ft(auto)": {"global_scale": ("auto", 0.01)},
        "tinyproto_ft(scale=0.02)": {"global_scale": (0.02, 0.01)},
        "tinyproto_ft(blocks)": {"masks": ("blocks", "balanced")},
        "tinyproto_ft(running)": {"prototype_source": ("running", "fresh")},
    }


def test_writing_removes_what_the_definition_no_longer_has(tmp_path: Path) -> None:
    write_configs(tmp_path)
    (tmp_path / FOLDER / "old.yaml").write_text("name: old\n")
    write_configs(tmp_path)
    assert files(tmp_path) == files(ROOT)
    first = yaml.safe_load((tmp_path / ALL[0].path).read_text())
    assert first == dict(ALL[0].values)
