"""Every command and snippet of the README and the docs is run, and every link leads somewhere.

A page is played from top to bottom in a folder of its own, as a reader would: `bash` in a shell, `python` in one
namespace, `yaml` through the config loader. A block that starts with the comment `# name.py` or `# name.yaml` is saved
under that name. `bash flower` and `bash mqtt` need the extra of that name and are played by tests/federation. `text`
and `bash shown` are only shown, `text output` is what the block before it prints, `text record` is what the committed
record prints.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import ModuleType

import pytest
import typer.main
from rich.console import Console

from benchmarks.__main__ import app as benchmarks
from support_cli import environment
from support_docs import PAGES, ROOT, Block, anchors, blocks_of, inline_code, links, modules_of_a_folder, taken_apart
from tinyproto.cli.main import app
from tinyproto.cli.report import print_comparison
from tinyproto.config import load_config, parse_config
from tinyproto.config.load import parse_yaml
from tinyproto.fetch import ARCHIVES
from tinyproto.report.compare import compare
from tinyproto.report.verdict import verdict
from tinyproto.tracking.run_folder import RunFolder

INFOS = {
    "python",
    "bash",
    "bash flower",
    "bash mqtt",
    "bash shown",
    "yaml",
    "json",
    "text",
    "text output",
    "text record",
}
NOT_PLAYED = {
    "make run": "takes a minute, so `test_make_run_does_the_quickstart` is slow; here only that make knows it",
    "make test": "it is what runs this test; here only that make knows it",
    "tinyproto export runs/kept --client 3 --algorithm tinyproto_ft --rule global -o client.onnx": (
        "needs the extra `export`; tests/trained plays it where that is installed"
    ),
    "tinyproto data fetch cifar100": "needs a network; tests/fetch plays it against a server of its own",
    "tinyproto run configs/quickstart.yaml name=cifar data.name=cifar100": "needs the files; it has to be valid",
}
"""Lines of shell that are not run when their page is played, and why."""

MINIMAL = {"models": ["small_cnn_a"], "algorithms": ["local"]}
SECONDS = 300


def by_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


LONG = ("grid.md", "scale.md", "benchmarks.md", "report.md")
"""Pages whose blocks start many processes or measure; `make test-all` plays them."""


def every_page(check: Callable[[Path], None]) -> Callable[[], None]:
    """Run a check on all pages in one test, and report all failures in one message."""

    @wraps(check)
    def test() -> None:
        failures = []
        for page in PAGES:
            try:
                check(page)
            except AssertionError as failure:
                failures.append(f"{by_name(page)}: {failure}")
        assert not failures, "\n".join(failures)

    del test.__wrapped__  # pytest would look for a fixture `page`
    return test


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a reader has after `make run`: a folder with the configs, the examples and an environment."""
    for name in ("configs", "examples", "benchmarks", "paper"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "records"))
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Reader:
    """Plays a page from top to bottom."""

    def __init__(self, folder: Path, namespace: dict[str, object]) -> None:
        self.folder = folder
        self.namespace = namespace
        self.printed: str | None = None

    def play(self, block: Block) -> None:
        if block.file_name is not None:
            (self.folder / block.file_name).write_text(block.text, encoding="utf-8")
            sys.modules.pop(Path(block.file_name).stem, None)  # another test's module of that name is not the page's
        if block.language == "python" and block.file_name is None:
            self._python(block)
        elif block.info == "bash":
            self._bash(block)
        elif block.language == "yaml":
            check_yaml(block)
        elif block.language == "json":
            json.loads(block.text)
        elif block.info == "text output":
            assert self.printed is not None, f"{block}: no block before it printed anything"
            assert_shown(block, self.printed)
        elif block.info == "text record":
            assert_shown(block, printed_for_the_record())

    def _python(self, block: Block) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            # Line breaks put the code where it stands on the page, so that a traceback names the right line.
            code = compile("\n" * block.line + block.text, str(block.page), "exec")
            exec(code, self.namespace)
        self.printed = printed.getvalue()

    def _bash(self, block: Block) -> None:
        lines = [line for line in block.text.splitlines() if bare(line) not in NOT_PLAYED]
        script = "\n".join(["set -euo pipefail", *lines])
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=environment(PATH=path), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, encoding="utf-8", timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}: {script}\n{done.stdout}"
        self.printed = done.stdout


def bare(line: str) -> str:
    """A line of shell without its comment."""
    return line.partition("  #")[0].strip()


def assert_shown(block: Block, real: str) -> None:
    shown, printed = (
        "\n".join(line.rstrip() for line in text.splitlines()).strip("\n").splitlines() for text in (block.text, real)
    )
    difference = "\n".join(difflib.unified_diff(shown, printed, "the page", "what is printed", lineterm="", n=99))
    assert shown == printed, f"{block} does not show what is printed:\n{difference}"


def check_yaml(block: Block) -> None:
    """A whole config is loaded as it is, a piece of one within the smallest config there is."""
    values = parse_yaml(block.text, "the page")
    assert isinstance(values, dict), f"{block} holds no keys"
    parse_config(MINIMAL | values, source=str(block))


def printed_for_the_record() -> str:
    """What the quickstart prints at its end, of seed 0 of the record."""
    folder = ROOT / "results" / "quickstart"
    config = load_config(folder / "config.yaml")
    results = [result for result in RunFolder(folder).read_results() if result["seed"] == 0]
    titles = {entry.label: entry.title for entry in config.algorithms}
    comparison = compare(results, titles, config.model.evaluate.rule, config.model.evaluate.statistic)
    console = Console(width=120, file=io.StringIO(), force_terminal=False)
    with console.capture() as captured:
        print_comparison(console, comparison, verdict(comparison))
    return captured.get()


def played(page: Path) -> object:
    """A page as a parameter, marked where it takes long."""
    return pytest.param(page, marks=pytest.mark.slow) if page.name in LONG else page


@pytest.mark.parametrize("page", [played(page) for page in PAGES if blocks_of(page)], ids=by_name)
def test_a_page_s_blocks_run_from_top_to_bottom(page: Path, clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(f"page_{page.stem}")  # dataclasses on a page look their module up by name
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "nets", raising=False)  # another test's; pages write one of their own
    with modules_of_a_folder(clone):
        reader = Reader(clone, vars(module))
        for block in blocks_of(page):
            reader.play(block)


@every_page
def test_a_block_says_what_it_is(page: Path) -> None:
    for block in blocks_of(page):
        assert block.info in INFOS, f"{block}: {block.info!r} is none of {sorted(INFOS)}"
        if block.language == "text":
            commands = [
                line for line in block.text.splitlines() if re.match(r"\s*(\$|make|tinyproto|pip|python) ", line)
            ]
            assert not commands, f"{block}: {commands} would never be run; that is `bash`"


FEDERATIONS = {
    "bash flower": ("docs/start/federation.md", "docs/how-to/deploy.md"),
    "bash mqtt": ("README.md", "docs/start/federation.md", "docs/how-to/deploy.md"),
}
"""Pages whose blocks are typed by tests/federation, in the tests of tutorials and of machines."""


@every_page
def test_a_federation_s_block_stands_where_it_is_typed_and_has_options_that_there_are(page: Path) -> None:
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for block in blocks_of(page):
        if block.info not in FEDERATIONS:
            continue
        assert by_name(page) in FEDERATIONS[block.info], f"{block}: nothing types it"
        for line in block.text.splitlines():
            if not line.startswith("tinyproto "):
                continue
            words = shlex.split(line, comments=True)
            options = {name for parameter in verbs[words[1]].params for name in parameter.opts}
            unknown = [word for word in words if word.startswith("--") and word not in options]
            assert not unknown, f"{block}: {line}: {unknown}"


def test_the_readme_s_federation_works_when_pasted() -> None:
    """Nobody has to put another name in the place of one, and who listens to the loopback is called so."""
    (block,) = [block for block in blocks_of(ROOT / "README.md") if block.info == "bash mqtt"]
    lines = [shlex.split(line, comments=True) for line in block.text.splitlines()]
    joins = [words for words in lines if words[:2] == ["tinyproto", "join"]]
    (serve,) = [words for words in lines if words[:2] == ["tinyproto", "serve"] and "--init" not in words]
    config = load_config(ROOT / serve[2])
    assert "--listen" not in serve
    assert [words[words.index("--client-id") + 1] for words in joins] == ["0", "1", "2"]
    for words, model in zip(joins, config.model.models, strict=True):
        assert words[words.index("--server") + 1] == "localhost:8883"
        assert words[words.index("--share") + 1] == serve[2]
        assert words[words.index("--model") + 1] == model


@every_page
def test_no_block_escapes_by_indentation(page: Path) -> None:
    """A code block without a fence, indented by four after an empty line, would not be found."""
    indented = re.findall(r"\n\s*\n( {4,}|\t)(?![-*\d] ?)(.*)", taken_apart(page)[1])
    assert not indented, f"{page.name}: {indented} is an indented code block; give it a fence"


@every_page
def test_a_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"https?://|mailto:", link):
            continue
        target, _, anchor = link.partition("#")
        found = (page.parent / target).resolve() if target else page
        assert found.exists(), f"{page.name}: {link} leads nowhere"
        assert found.is_relative_to(ROOT), f"{page.name}: {link} leads out of the repository"
        if anchor:
            assert anchor in anchors(found), f"{page.name}: {link}: there is no such heading"


@every_page
def test_a_command_in_a_sentence_is_one_that_there_is(page: Path) -> None:
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    measurements = typer.main.get_command(benchmarks).commands  # type: ignore[attr-defined]
    rules = re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = {target for rule in rules for target in rule.split()}
    for code in inline_code(page):
        words = code.split()
        if words[0] == "make" and len(words) > 1:
            assert words[1] in targets, f"{page.name}: `{code}`"
        if words[:3] == ["python", "-m", "benchmarks"] and len(words) > 3:
            assert words[3] in {*measurements, "VERB"}, f"{page.name}: `{code}`"
        if words[0].rpartition("/")[2] != "tinyproto" or len(words) == 1:
            continue
        assert words[1] in verbs or words[1] in ("--help", "--version"), f"{page.name}: `{code}`"
        command = verbs.get(words[1])
        if len(words) > 2 and words[2] in getattr(command, "commands", {}):
            command = command.commands[words[2]]
        options = {name for parameter in command.params for name in parameter.opts} if command else ()
        assert all(word in options for word in words[2:] if word.startswith("--")), f"{page.name}: `{code}`"
        if words[1] == "run" and len(words) > 2 and words[2].endswith(".yaml"):
            config, *overrides = shlex.split(code)[2:]
            with contextlib.chdir(ROOT), modules_of_a_folder(ROOT / "examples"):
                load_config(Path(config), [word for word in overrides if not word.startswith("--")])


@every_page
def test_a_function_that_a_page_names_is_there(page: Path) -> None:
    """`core/cps.py: sparsify` names a file of the package and what is in it, `tests/x.py` a file of the repository."""
    for code in inline_code(page):
        found = re.fullmatch(r"([\w/]+/\w+\.py)(?:: ([\w., ]+))?", code)
        if found is None:
            continue
        path, names = found.groups()
        places = [place for place in (ROOT / "src" / "tinyproto" / path, ROOT / path) if place.is_file()]
        assert places, f"{page.name}: `{code}`: there is no such file"
        if names:
            module = importlib.import_module(f"tinyproto.{path.removesuffix('.py').replace('/', '.')}")
            for name in names.split(", "):
                thing: object = module
                for part in name.split("."):
                    assert hasattr(thing, part) or part in getattr(thing, "__annotations__", {}), (
                        f"{page.name}: `{code}`"
                    )
                    thing = getattr(thing, part, None)


@pytest.mark.parametrize("command", NOT_PLAYED)
def test_what_is_not_played_is_on_a_page_and_could_be(command: str) -> None:
    lines = [bare(line) for page in PAGES for block in blocks_of(page) for line in block.text.splitlines()]
    assert command in lines, f"no page shows {command!r} any more; take it off the list"
    if command.startswith("tinyproto run "):
        config, *overrides = command.split()[2:]
        assert load_config(ROOT / config, overrides).model.data.name == "cifar100"
    if command.startswith("tinyproto data fetch "):
        assert command.split()[3] in ARCHIVES
    if not command.startswith("make "):
        return
    target = command.removeprefix("make ")
    planned = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    wanted = {"run": ["tinyproto run configs/quickstart.yaml --overwrite"], "test": ["ruff check", "mypy", "pytest"]}
    assert all(part in planned for part in wanted[target])


@pytest.mark.slow
def test_make_run_does_the_quickstart(clone: Path) -> None:
    done = subprocess.run(
        ["make", "--assume-old=.venv/.core", "run"], cwd=clone, env=environment(), capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = RunFolder(clone / "runs" / "quickstart").read_results()
    assert [result["rounds"] for result in results] == [30] * 7
    assert "TinyProto-FT" in done.stdout
