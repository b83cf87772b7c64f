"""The import rule: a module imports only from packages to its left."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tinyproto

ROOT = Path(tinyproto.__file__).parent
RANKS = {
    "errors": 0,
    "imports": 1,
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
"""Flower's, which rank with `cli` and which nobody imports."""

LIGHT = ("core", "models", "data", "wire", "algorithms", "stacked", "engine")
ALLOWED_IN_LIGHT = {"torch", "numpy", "tinyproto", "sklearn", "PIL", "triton"}
MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def layer(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imported(path: Path, top_level_only: bool = False) -> list[str]:
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    names = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [
                f"{node.module}.{alias.name}" if node.module == "tinyproto" else node.module for alias in node.names
            ]
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_from_its_left(path: Path) -> None:
    own = path.relative_to(ROOT).with_suffix("").parts[0]
    rank = RANKS["cli"] if str(path.relative_to(ROOT)) in ENTRY_POINTS else RANKS[own]
    for name in imported(path):
        if not name.startswith("tinyproto.") or name.split(".")[1] == own:
            continue
        assert RANKS[layer(name)] < rank, f"{own} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_package_flower_knows_flower_and_nobody_imports_its_entry_points(path: Path) -> None:
    names = imported(path)
    assert path.relative_to(ROOT).parts[:2] == ("federation", "flower") or "flwr" not in {
        name.split(".")[0] for name in names
    }
    entry_points = {f"tinyproto.{Path(name).with_suffix('').as_posix().replace('/', '.')}" for name in ENTRY_POINTS}
    assert not entry_points & set(names)


@pytest.mark.parametrize(
    "path", [p for p in MODULES if p.relative_to(ROOT).parts[0] in LIGHT], ids=lambda path: path.stem
)
def test_up_to_the_engine_only_torch_and_numpy_are_imported(path: Path) -> None:
    import sys

    for name in imported(path):
        top = name.split(".")[0]
        assert top in sys.stdlib_module_names or top in ALLOWED_IN_LIGHT, name
    assert not {"sklearn", "PIL"} & {name.split(".")[0] for name in imported(path, top_level_only=True)}


@pytest.mark.parametrize(
    "path", [p for p in MODULES if p.relative_to(ROOT).parts[0] in LIGHT], ids=lambda path: path.stem
)
def test_up_to_the_engine_nothing_reads_a_clock_or_writes_a_log(path: Path) -> None:
    assert not {"time", "logging", "random", "datetime"} & set(imported(path))


def test_every_package_has_a_rank() -> None:
    assert {path.relative_to(ROOT).with_suffix("").parts[0] for path in MODULES} == set(RANKS)


def test_no_pickle_anywhere() -> None:
    for path in MODULES:
        assert not {"pickle", "dill", "joblib", "cloudpickle"} & {name.split(".")[0] for name in imported(path)}
        text = path.read_text()
        assert "torch.load(" not in text
        assert "torch.save(" not in text
