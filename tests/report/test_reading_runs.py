"""Damaged run folders: one sentence each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support_report import Made
from tinyproto.errors import RunFolderError
from tinyproto.report.runs import find_runs, read_run

NOT_UTF8 = "written in UTF-16"


def no_rounds_of_fedproto(folder: Path) -> None:
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join(line for line in lines if '"fedproto"' not in line))


def text(name: str, content: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_text(content, encoding="utf-16" if content == NOT_UTF8 else "utf-8")

    return write


def other_label(folder: Path) -> None:
    (folder / "summary.json").write_text((folder / "summary.json").read_text().replace('"fedproto"', '"fedporto"'))


def cut_in_half(name: str) -> Callable[[Path], None]:
    def cut(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return cut


def middle_line_damaged(folder: Path) -> None:
    first, _, *rest = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join([first, '{"label": "fed\n', *rest]))


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "no summary": (lambda folder: (folder / "summary.json").unlink(), "tinyproto resume"),
    "nothing finished": (text("summary.json", '{"results": []}'), "tinyproto resume"),
    "a summary cut short": (cut_in_half("summary.json"), "summary.json cannot be read"),
    "a summary that is a list": (text("summary.json", "[1]"), "summary.json cannot be read: TypeError"),
    "a summary without results": (text("summary.json", "{}"), "summary.json cannot be read: KeyError: 'results'"),
    "a result without fields": (text("summary.json", '{"results": [{}]}'), "summary.json cannot be read: KeyError"),
    "a result the config does not know": (other_label, "'fedporto'"),
    "no rounds": (lambda folder: (folder / "rounds.jsonl").unlink(), "rounds.jsonl cannot be read"),
    "rounds of one method missing": (no_rounds_of_fedproto, "no round of fedproto, seed 0"),
    "a line damaged": (middle_line_damaged, "rounds.jsonl cannot be read: JSONDecodeError"),
    "a line that is no record": (text("rounds.jsonl", "{}\n"), "rounds.jsonl cannot be read: KeyError: 'label'"),
    "rounds that are not text": (text("rounds.jsonl", NOT_UTF8), "Unicode"),
    "a config that is not YAML": (text("config.yaml", "a: [1"), "config.yaml cannot be read"),
    "a config nobody resolved": (text("config.yaml", "algorithms: [local]\n"), "not the resolved config"),
    "a config with only labels": (text("config.yaml", "algorithms: [{label: local}]\n"), "not the resolved config"),
    "a config without keys": (text("config.yaml", "words\n"), "not the resolved config"),
    "an environment cut short": (cut_in_half("environment.json"), "environment.json cannot be read"),
    "a federation without counts": (text("federation.json", "{}"), "federation.json cannot be read: KeyError"),
}  # fmt: skip


def test_of_a_federation_without_results_it_names_the_verb_that_goes_on(tmp_path: Path) -> None:
    folder = Made().write(tmp_path / "run")
    (folder / "summary.json").unlink()
    (folder / "serve.json").write_text("{}")
    with pytest.raises(RunFolderError, match=f"tinyproto serve {folder} --resume"):
        read_run(folder)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_run_folder_is_one_sentence_that_names_the_file(tmp_path: Path, name: str) -> None:
    break_it, says = BROKEN[name]
    folder = Made().write(tmp_path / "run")
    break_it(folder)
    with pytest.raises(RunFolderError) as error:
        read_run(folder)
    assert says in str(error.value)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


def test_the_rest_of_a_line_that_was_being_written_is_passed_over(tmp_path: Path) -> None:
    folder = Made().write(tmp_path / "run")
    whole = read_run(folder)
    with (folder / "rounds.jsonl").open("a") as file:
        file.write('{"algorithm": "fedproto", "label": "fedp')
    assert read_run(folder).rounds == whole.rounds


def test_rounds_of_cells_that_are_not_finished_are_left_out(tmp_path: Path) -> None:
    folder = Made(seeds=(0, 1)).write(tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({"results": summary["results"][:3]}))
    run = read_run(folder)
    assert sorted(run.rounds) == [("fedproto", 0), ("local", 0), ("local", 1)]
    assert run.unfinished == 1


def test_older_runs_have_neither_federation_nor_prototypes(tmp_path: Path) -> None:
    run = Made(federation=False, prototypes=False).read(tmp_path / "run")
    assert run.federation is None
    assert run.prototypes("fedproto", 0) is None


def test_damaged_prototypes_are_one_sentence(tmp_path: Path) -> None:
    folder = Made().write(tmp_path / "run")
    cut_in_half("prototypes.safetensors")(folder)
    with pytest.raises(RunFolderError, match=r"prototypes\.safetensors cannot be read"):
        read_run(folder).prototypes("fedproto", 0)


def test_labels_with_slashes_find_their_own_prototypes(tmp_path: Path) -> None:
    labels = ("a", "a/1", "ü/日 本")
    entries = [{"name": "fedproto", "label": label} for label in labels]
    run = Made(algorithms=entries, seeds=(0, 1)).read(tmp_path / "run")
    found = [run.prototypes(label, seed) for label in labels for seed in (0, 1)]
    values = [one.local for one in found if one is not None]
    assert len(values) == 6
    assert len({one.tobytes() for one in values}) == 6
    expected = Made()._tensors("a/1", 0)["a/1/0/local/values"]
    assert np.array_equal(values[2], expected)


def test_only_methods_with_global_prototypes_have_any(tmp_path: Path) -> None:
    run = Made().read(tmp_path / "run")
    local, fedproto = run.prototypes("local", 0), run.prototypes("fedproto", 0)
    assert local is not None
    assert fedproto is not None
    assert local.global_ is None
    assert local.global_present is None
    assert fedproto.global_ is not None
    assert fedproto.local_present.tolist() == [[False, True, True, True], [True] * 4, [True] * 4]


def test_a_folder_of_runs_stands_for_those_in_it_and_none_counts_twice(tmp_path: Path) -> None:
    b, a = Made().write(tmp_path / "all" / "b"), Made().write(tmp_path / "all" / "a")
    (tmp_path / "all" / "notes").mkdir()
    assert find_runs([tmp_path / "all"]) == [a, b]
    again = find_runs([b, tmp_path / "all", b / ".." / "b"])
    assert [path.resolve() for path in again] == [b, a]


@pytest.mark.parametrize("path", ["nothing", "empty", "file"])
def test_what_is_no_run_folder_is_said_to_be_none(tmp_path: Path, path: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=f"{path} is not a run folder"):
        find_runs([tmp_path / path])
