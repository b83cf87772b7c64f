"""`make test-lowest` installs exactly the lower bounds that pyproject.toml names."""

from __future__ import annotations

import subprocess
import sys

import pytest

import support_lowest
from support_lowest import pins


def test_every_bound_but_torch_s_becomes_a_pin() -> None:
    assert list(pins(["torch>=2.6", "numpy>=1.26", "PyYAML>=6"])) == ["numpy==1.26", "PyYAML==6"]


def test_a_dependency_without_a_bound_is_refused_by_name() -> None:
    with pytest.raises(SystemExit, match="'rich' has no lower bound"):
        list(pins(["rich"]))


def test_every_dependency_of_the_project_has_a_bound() -> None:
    done = subprocess.run([sys.executable, str(support_lowest.__file__)], capture_output=True, text=True, check=True)
    names = [line.partition("==")[0] for line in done.stdout.splitlines()]
    assert {"numpy", "typer", "pytest"} <= set(names)
