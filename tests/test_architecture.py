"""The import rules: a module imports only from packages to its left. Each test names all offenders at once."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import tinyproto

ROOT = Path(tinyproto.__file__).parent
RANKS = {
    "errors": 0,
    "imports": 1,
    "subprocesses": 1,
    "core": 2,
    "memory": 3,
    "models": 3,
    "data": 3,
    "wire": 3,
    "algorithms": 4,
    "stacked": 4,
    "engine": 5,
    "storage": 6,
    "config": 6,
    "fetch": 7,
    "tracking": 7,
    "builder": 8,
    "trained": 8,
    "simulation": 9,
    "federation": 9,
    "report": 9,
    "experiment": 10,
    "workers": 11,
    "grid": 12,
    "api": 13,
    "cli": 14,
    "__main__": 15,
}
ENTRY_POINTS = ("federation/flower/client_app.py", "federation/flower/server_app.py")
"""Flower's entry points, which rank with `cli` and which no module imports."""

LIGHT = ("core", "models", "data", "wire", "algorithms", "stacked", "engine")
ALLOWED_IN_LIGHT = {"torch", "numpy", "tinyproto", "sklearn", "PIL", "triton", "pyarrow"}
LAZY_IN_LIGHT = {"sklearn", "PIL", "pyarrow"}
IMPURE = {"time", "logging", "random", "datetime"}
RANDOMNESS = ("core/streams.py",)
"""May import `random`: it seeds Python's generator from a stream, since networks of users draw from it."""
PICKLES = {"pickle", "dill", "joblib", "cloudpickle"}
OUTSIDE = {"benchmarks", "paper", "tests", "examples"}
MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path, top_level_only: bool = False) -> Iterator[str]:
    """Yield the modules that a file imports; `from tinyproto import x` counts as `tinyproto.x`."""
    tree = tree_of(path)
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield f"{node.module}.{alias.name}" if node.module == "tinyproto" else node.module


def package(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def top(name: str) -> str:
    return name.partition(".")[0]


def importers(names: set[str], modules: list[Path], top_level_only: bool = False) -> list[str]:
    """Return the imports of top-level packages with these names, as `file: module`."""
    return [
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules
        for name in imported(path, top_level_only)
        if top(name) in names
    ]


light_modules = [path for path in MODULES if package(path) in LIGHT]


def test_every_package_has_a_rank() -> None:
    assert {package(path) for path in MODULES} == set(RANKS)


def test_a_module_imports_only_from_its_left() -> None:
    offenders = []
    for path in MODULES:
        place = path.relative_to(ROOT).as_posix()
        rank = RANKS["cli"] if place in ENTRY_POINTS else RANKS[package(path)]
        for name in imported(path):
            parts = name.split(".")
            if parts[0] == "tinyproto" and len(parts) > 1 and parts[1] != package(path) and RANKS[parts[1]] >= rank:
                offenders.append(f"{place} imports {name}")
    assert not offenders


def test_the_library_imports_no_benchmark_no_paper_and_no_test() -> None:
    assert not importers(OUTSIDE, MODULES)


def test_only_the_adapter_imports_flower() -> None:
    others = [path for path in MODULES if path.relative_to(ROOT).parts[:2] != ("federation", "flower")]
    assert not importers({"flwr"}, others)


def test_no_module_imports_flower_s_entry_points() -> None:
    entry_points = {f"tinyproto.{name.removesuffix('.py').replace('/', '.')}" for name in ENTRY_POINTS}
    assert all((ROOT / name).is_file() for name in ENTRY_POINTS)
    assert not [str(path) for path in MODULES if entry_points & set(imported(path))]


def test_up_to_the_engine_only_torch_and_numpy_are_imported() -> None:
    found = {top(name) for path in light_modules for name in imported(path)}
    unknown = found - ALLOWED_IN_LIGHT - set(sys.stdlib_module_names)
    assert not importers(unknown, light_modules)


def test_up_to_the_engine_heavy_packages_are_imported_where_they_are_used() -> None:
    assert not importers(LAZY_IN_LIGHT, light_modules, top_level_only=True)


def test_up_to_the_engine_nothing_reads_a_clock_or_writes_a_log() -> None:
    random = [path for path in light_modules if path.relative_to(ROOT).as_posix() in RANDOMNESS]
    others = [path for path in light_modules if path not in random]
    assert len(random) == len(RANDOMNESS)
    assert not importers(IMPURE, others)
    assert not importers(IMPURE - {"random"}, random)


def test_no_module_imports_pickle() -> None:
    assert not importers(PICKLES, MODULES)


def test_no_module_calls_torch_load_or_save() -> None:
    pickling = ("torch.load(", "torch.save(")
    texts = {path: path.read_text(encoding="utf-8") for path in MODULES}
    assert not [str(path) for path, text in texts.items() if any(call in text for call in pickling)]


def test_every_module_says_what_it_is_for() -> None:
    assert not [str(path.relative_to(ROOT)) for path in MODULES if not ast.get_docstring(tree_of(path))]
