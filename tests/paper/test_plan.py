"""Which cells a target is made of, in which order, and what is said of a wrong name."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest

from paper.command import Asked
from paper.experiments import SAME_AS_PUBLISHED, experiments
from paper.matching import paper_cells
from paper.page.markdown import RECORDS
from paper.plan import ALGORITHM_ORDER, JOBS, TARGETS, Job, Selection, plan
from support_reproduce import paper, use
from tinyproto.config import parse_config
from tinyproto.errors import ConfigError

SEED_0 = Selection(seeds=[0])


def labels(target: str, part: Selection = SEED_0) -> dict[str, list[str]]:
    """By config."""
    found: dict[str, list[str]] = {}
    for cell in plan(target, part):
        found.setdefault(cell.group, []).append(cell.label)
    return found


@pytest.mark.parametrize(
    "target", ["table1", "table3", "appendix", "readings", "tiny-imagenet-100", "published", "partitions"]
)
def test_a_table_is_every_cell_of_its_configs(target: str) -> None:
    own = [config for config in experiments() if config.target == target]
    found = plan(target, Selection())
    assert Counter(cell.stem for cell in found) == {config.stem: config.cells for config in own}
    keys = {cell.key for config in own for cell in paper_cells(config)}
    assert {cell.key for cell in found} == keys


def test_cells_come_seed_after_seed_and_what_is_worth_knowing_first() -> None:
    found = plan("table1", Selection())
    assert [cell.seed for cell in found] == [0] * 27 + [1] * 27 + [2] * 27
    first = found[:27]
    assert [cell.paper.dataset for cell in first] == ["cifar100"] * 9 + ["cifar10"] * 9 + ["tiny_imagenet"] * 9
    assert [cell.label for cell in first[:9]] == list(ALGORITHM_ORDER)


def test_the_released_code_runs_each_method_once_on_cifar100_before_anything_else() -> None:
    found = [(cell.paper.dataset, cell.entry["name"], cell.seed) for cell in plan("published", Selection())]
    changed = [name for name in ALGORITHM_ORDER if name not in SAME_AS_PUBLISHED]
    assert found[:5] == [("cifar100", name, 0) for name in changed]
    assert [seed for _, _, seed in found] == [0] * 12 + [1] * 8 + [2] * 8
    assert found[7:12] == [("cifar10", name, 0) for name in changed]


def test_figure_1_has_no_cells() -> None:
    assert plan("figure1", Selection()) == []


def test_the_figures_take_cells_of_the_tables() -> None:
    neurons = labels("figure-neurons")
    assert {stem: len(found) for stem, found in neurons.items()} == {
        "table1_cifar100": 6, "neurons_100": 6, "neurons_1000": 6
    }  # fmt: skip
    ablation = labels("figure-ablation")
    assert ablation["table1_cifar10"] == ablation["table1_tiny_imagenet"] == ["fedtgp", "tinyproto_ft"]
    assert len(ablation["appendix_cifar10"]) == 10
    assert all(label.startswith("tinyproto_ft") for label in ablation["appendix_tiny_imagenet"])
    compression = labels("figure-compression", Selection(seeds=[0], datasets=["cifar100"]))
    assert compression["table1_cifar100"] == ["tinyproto_fp"]
    assert compression["appendix_cifar100"] == [
        f"tinyproto_fp(cps_dim={width},scaling=count)" for width in (150, 250, 350, 450)
    ]
    assert [stem for stem in compression if stem.startswith("compression")] == [
        f"compression_cifar100_{width}" for width in (50, 150, 250, 350, 450)
    ]
    heatmaps = [(cell.stem, cell.label, cell.seed) for cell in plan("heatmaps", Selection(datasets=["cifar10"]))]
    assert heatmaps == [
        ("table1_cifar10", "fedproto", 0),
        ("appendix_cifar10", "tinyproto_fp(cps_dim=50,scaling=none)", 0),
        ("appendix_cifar10", "tinyproto_fp(cps_dim=250,scaling=none)", 0),
    ]


def test_a_part_is_chosen_by_dataset_algorithm_and_seed() -> None:
    part = Selection(datasets=["cifar10", "cifar100"], algorithms=["tinyproto_ft", "local"], seeds=[5])
    assert [(cell.paper.dataset, cell.label, cell.seed) for cell in plan("table1", part)] == [
        ("cifar100", "tinyproto_ft", 5),
        ("cifar100", "local", 5),
        ("cifar10", "tinyproto_ft", 5),
        ("cifar10", "local", 5),
    ]
    one = "tinyproto_fp(cps_dim=150,scaling=none)"
    assert labels("appendix", Selection(datasets=["cifar10"], algorithms=[one], seeds=[0])) == {
        "appendix_cifar10": [one]
    }


def test_a_part_may_be_some_of_the_configs() -> None:
    part = Selection(configs=["table3_alpha05", "table3_clients50"], algorithms=["fedtgp"], seeds=[0])
    assert labels("table3", part) == {"table3_clients50": ["fedtgp"], "table3_alpha05": ["fedtgp"]}


def test_another_preset_or_number_of_rounds_has_a_folder_of_its_own() -> None:
    part = Selection(datasets=["cifar100"], algorithms=["fedproto"], seeds=[1])
    (usual,) = plan("table1", part)
    assert usual.place == "table1_cifar100/fedproto-1"
    (sound,) = plan("table1", Selection(**{**vars(part), "preset": "sound"}))
    assert sound.place == "table1_cifar100@sound/fedproto-1"
    assert sound.key != usual.key
    assert sound.config["evaluate"]["statistic"] == "last10"
    (short,) = plan("table1", Selection(**{**vars(part), "rounds": 60, "preset": "sound"}))
    assert short.place == "table1_cifar100@sound@60rounds/fedproto-1"
    assert short.key == sound.key
    assert short.rounds == 60
    (named,) = plan("table1", Selection(**{**vars(part), "rounds": 300, "preset": "reference"}))
    assert named.place == usual.place


def test_a_cell_s_config_is_of_it_alone_and_repeats_itself() -> None:
    part = Selection(datasets=["cifar100"], algorithms=["tinyproto_ft"], seeds=[2], root="elsewhere")
    (cell,) = plan("table1", part, ["train.trainer=stacked", "checkpoint.every_seconds=600"])
    resolved = cell.parsed.resolved()
    assert parse_config(resolved).resolved() == resolved
    assert (resolved["name"], resolved["seeds"], len(resolved["algorithms"])) == ("table1_cifar100", [2], 1)
    assert (resolved["data"]["root"], resolved["train"]["trainer"]) == ("elsewhere", "stacked")
    (plain,) = plan("table1", Selection(datasets=["cifar100"], algorithms=["tinyproto_ft"], seeds=[2]))
    assert cell.key == plain.key


@pytest.mark.parametrize(
    ("target", "part", "words"),
    [
        ("tabel1", Selection(), "'tabel1'.*'table1'"),
        ("table3", Selection(datasets=["cifar10"]), "--dataset: table3 .*cifar10; .*cifar100"),
        ("table1", Selection(datasets=["cifar"]), "--dataset: .*'cifar'.*'cifar10'"),
        ("table3", Selection(configs=["alpha05"]), "--configs: .*'alpha05'.*'table3_alpha05'"),
        ("table3", Selection(configs=["table1_cifar10"]), "--configs: table3 .*table1_cifar10; .*table3_alpha05"),
        ("table1", Selection(algorithms=["fedavg"]), "--algorithms: table1 .*fedavg; .*fedproto"),
        ("table1", Selection(algorithms=["fedprot"]), "--algorithms: .*'fedproto'"),
        ("table1", Selection(preset="sond"), "--preset: .*'sond'.*'sound'"),
        ("figure1", Selection(datasets=["cifar10"]), "figure1 has no cells with cifar10; it has none"),
        (
            "figure-ablation",
            Selection(datasets=["cifar10"], algorithms=["fedproto"]),
            "figure-ablation has no cells with fedproto",
        ),
        (
            "figure-compression",
            Selection(datasets=["cifar10"], algorithms=["tinyproto_ft"]),
            "figure-compression has no cells with tinyproto_ft",
        ),
    ],
)
def test_a_wrong_name_is_a_sentence(target: str, part: Selection, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan(target, part)


def test_a_part_that_is_empty_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    use(
        monkeypatch, [paper("table1", "one", ["local"]), paper("table1", "two", ["fedproto"], data={"name": "cifar10"})]
    )
    with pytest.raises(ConfigError, match="no cell of table1 "):
        plan("table1", Selection(datasets=["digits"], algorithms=["fedproto"]))


@pytest.mark.parametrize("override", ["train.learning_rate=0.1", "name=mine", "algorithms=[local]", "data.root=x"])
def test_what_changes_numbers_is_not_overridden(override: str) -> None:
    with pytest.raises(ConfigError, match=rf"{re.escape(override)}.*train\.parallel_cells"):
        plan("table1", Selection(), [override])


def test_every_target_that_the_configs_name_is_one() -> None:
    assert {config.target for config in experiments()} <= TARGETS.keys()


def test_the_session_starts_with_one_cell_of_each_method_that_the_released_code_changes() -> None:
    first = [cell for job in JOBS[:2] for cell in job.cells()]
    assert Counter(cell.entry["name"] for cell in first) == Counter({*ALGORITHM_ORDER} - {*SAME_AS_PUBLISHED})
    assert {(cell.config["preset"], cell.seed) for cell in first} == {("published", 0)}


def test_the_session_has_all_cells_of_a_seed_before_other_seeds() -> None:
    seeds = [cell.seed for job in JOBS for cell in job.cells()]
    assert seeds == sorted(seeds, key=bool)
    cells = {cell.place for job in JOBS for cell in job.cells()}
    wanted = [*plan("published", Selection()), *plan("partitions", Selection())]
    for target in ("table1", "table3", "appendix", "figure-neurons", "figure-compression"):
        wanted += plan(target, SEED_0)
    missing = {cell.place for cell in wanted} - cells
    recorded = {"table1_cifar10", "table1_cifar100"}
    assert {place.partition("/")[0] for place in missing} == {"appendix_tiny_imagenet", *recorded}


def test_all_jobs_run_as_one_target_in_their_order_and_each_cell_once() -> None:
    jobs = [[cell.identity for cell in job.cells()] for job in JOBS if job.results is None]
    found = [cell.identity for cell in plan("planned", Selection())]
    assert len(set(found)) == len(found)
    assert found == list(dict.fromkeys(identity for cells in jobs for identity in cells))
    assert found[: len(jobs[0])] == jobs[0]


def test_a_part_of_all_jobs_is_chosen_as_of_a_table() -> None:
    part = Selection(datasets=["cifar10"], algorithms=["fedproto"], seeds=[1, 2], rounds=3, root="there")
    found = plan("planned", part)
    assert [(cell.stem, cell.seed) for cell in found] == [
        ("published_cifar10", 1), ("published_cifar10", 2), ("table1_cifar10", 1), ("table1_cifar10", 2),
    ]  # fmt: skip
    assert {(cell.rounds, cell.config["data"]["root"], cell.label) for cell in found} == {(3, "there", "fedproto")}
    with pytest.raises(ConfigError, match="no cell of planned matches"):
        plan("planned", Selection(seeds=[9]))


def test_a_cell_is_repeated_at_one_commit_into_two_folders() -> None:
    first, second = (job for job in JOBS if "same commit" in job.words)
    assert [cell.identity for cell in first.cells()] == [cell.identity for cell in second.cells()]
    records = Path(first.results or ""), Path(second.results or "")
    assert {folder.parent for folder in records} == {RECORDS}  # below the records that the page reads
    assert records[0] != records[1]  # neither sees the other's records, nor resumes its cells
    assert (first.runs, second.runs) == (None, "runs/again")


@pytest.mark.parametrize("stem", ["readings_ablation", "readings_clients50"])
def test_every_run_that_may_explain_a_number_has_a_job(stem: str) -> None:
    (config,) = [config for config in experiments() if config.stem == stem]
    planned = {cell.label for job in JOBS for cell in job.cells() if cell.stem == stem}
    assert planned == {cell.label for cell in paper_cells(config)}


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.words)
def test_the_command_of_a_job_selects_its_cells(job: Job) -> None:
    *_, target = (words := shlex.split(job.command))[:4]
    options = dict(zip(words[4::2], words[5::2], strict=True))
    datasets, configs, algorithms, seeds = (
        [options[name]] if name in options else None for name in ("--dataset", "--configs", "--algorithms", "--seeds")
    )
    rounds = int(options["--rounds"]) if "--rounds" in options else None
    asked = Asked.parse(target, datasets, configs, algorithms, seeds, rounds, None, Path("data"), None)
    assert [cell.place for cell in asked.reproduction(Path(), Path()).cells] == [cell.place for cell in job.cells()]
    assert (options.get("--results"), options.get("--runs")) == (job.results, job.runs)
