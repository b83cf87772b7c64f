"""The notebook in examples/ runs from top to bottom in an empty folder."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from support_docs import ROOT

NOTEBOOK = ROOT / "examples" / "own_data_to_predict.ipynb"


def cells(kind: str) -> list[str]:
    book: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == kind]


def test_its_cells_train_on_a_folder_of_pictures_and_classify_photos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for number, cell in enumerate(cells("code")):
            exec(compile(cell, f"cell {number} of {NOTEBOOK.name}", "exec"), namespace)
    said = printed.getvalue()
    assert "TinyProto-FT" in said, said
    assert "photos/seven.png by global: " in said
    names, labels = namespace["NAMES"], namespace["prediction"].labels.tolist()
    assert sum(sorted(names)[label] == name for name, label in zip(names, labels, strict=True)) >= 3  # chance is 1


def test_its_links_lead_somewhere() -> None:
    links = [link for cell in cells("markdown") for link in re.findall(r"\]\(([^)]+)\)", cell)]
    assert links
    assert [link for link in links if not (NOTEBOOK.parent / link).exists()] == []
