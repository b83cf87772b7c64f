"""The pictures are what their scripts draw now."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from support_docs import PAGES, ROOT, taken_apart

PICTURES = ROOT / "docs" / "pictures"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"picture_{name}", PICTURES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_flow_is_drawn_by_its_script() -> None:
    assert (PICTURES / "flow.svg").read_text(encoding="utf-8") == script("flow").draw(), "run `make docs`"


def test_accuracy_over_bytes_is_drawn_from_the_records() -> None:
    draw = script("draw")
    curves = draw.curves(draw.lines_of(ROOT / "results" / "quickstart"))
    drawn = {
        "quickstart.svg": draw.draw_quickstart(curves),
        "what_communication_buys.svg": draw.draw_cifar100(draw.cifar100_points()),
    }
    for name, picture in drawn.items():
        assert (PICTURES / name).read_text(encoding="utf-8") == picture, "run `make docs`"


@pytest.mark.parametrize("picture", sorted(PICTURES.glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_is_shown_on_a_page_with_words_and_has_a_title_and_a_ground(picture: Path) -> None:
    name = picture.name
    shown = [words for page in PAGES for words in re.findall(rf"!\[([^\]]*)\]\([^)]*{name}\)", taken_apart(page)[1])]
    assert shown
    assert all(len(words.split()) > 5 for words in shown)
    tree = ElementTree.parse(PICTURES / name).getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert tree.findtext(f"{space}title")
    ground = tree.find(f"{space}rect")
    assert ground is not None
    assert ground.get("fill") == "#ffffff"  # so that it reads on a dark page too
