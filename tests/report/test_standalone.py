"""Figures in files of their own: literal colours and fonts, as SVG, PDF and PNG."""

from __future__ import annotations

import base64
import io
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from support_cli import in_process
from support_report import FIVE, Made
from tinyproto.errors import ConfigError
from tinyproto.report import heatmap, svg
from tinyproto.report.figures import Figure
from tinyproto.report.formats import FigureFormat
from tinyproto.report.page import figure_style, make_report
from tinyproto.report.standalone import converter, standalone

SVG = "{http://www.w3.org/2000/svg}"
STYLE = """
svg.figure { --ink: #123456; --c0: #aa0000; } /* svg.figure .line { stroke: none } */
svg.figure .label { fill: var(--ink); font: 11.5px system-ui, sans-serif; }
svg.figure .strong, svg.figure .loud { font-weight: 600; }
svg.figure .both.line { stroke-width: 3; }
svg.figure .line { stroke: currentColor; stroke-width: 1; cursor: help; }
svg.figure .line:hover { stroke: #ffffff; }
svg.figure .c0 { color: var(--c0); }
@media (prefers-color-scheme: dark) { svg.figure { --ink: #ffffff; } svg.figure .c0 { color: #fff; } }
"""


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> list[Figure]:
    run = Made(algorithms=FIVE, seeds=(0, 1)).read(tmp_path_factory.mktemp("run") / "made")
    return list(make_report([run]).figures)


def drawn(*parts: str) -> ElementTree.Element:
    return ElementTree.fromstring(standalone(svg.figure(50, parts, "name"), STYLE))


def test_classes_and_variables_become_literal_attributes_for_light_paper() -> None:
    picture = drawn(svg.text(1, 2, "a > b", class_="label strong"), svg.line(0, 0, 1, 1, "line both c0"))
    text, line = picture
    assert {key: text.get(key) for key in ("fill", "font-size", "font-weight")} == {
        "fill": "#123456", "font-size": "11.5px", "font-weight": "bold",
    }  # fmt: skip
    assert (text.get("font-family") or "").split(", ")[-1] == "sans-serif"
    assert (line.get("stroke"), line.get("stroke-width"), line.get("cursor")) == ("#aa0000", "3", None)
    assert (picture.get("width"), picture.get("height")) == ("440", "50")


def test_an_attribute_that_the_style_sets_too_is_there_once() -> None:
    (line,) = drawn(svg.element("line", stroke="#00ff00", x1=3.0, class_="line c0"))
    assert (line.get("stroke"), line.get("x1")) == ("#aa0000", "3")


def test_every_figure_of_a_report_is_free_of_classes_variables_and_styles(figures: list[Figure]) -> None:
    for figure in figures:
        picture = ElementTree.fromstring(standalone(figure.svg, figure_style()))
        assert picture.find(f"{SVG}style") is None
        for part in picture.iter():
            written = " ".join(part.attrib.values())
            assert "class" not in part.attrib
            assert "var(" not in written
            assert "currentColor" not in written
            if part.tag == f"{SVG}text":
                assert (part.get("fill") or "").startswith("#")
            if part.tag == f"{SVG}path":
                assert any((part.get(key) or "").startswith("#") for key in ("fill", "stroke"))


def test_cells_of_a_heatmap_are_large_and_opaque_so_that_nothing_blurs_them() -> None:
    cells = heatmap.data_address(heatmap.png(np.array([[0, 32], [65, 1]], "uint8")), "image/png")
    (image,) = drawn(svg.element("image", href=cells, width=20.0, class_="cells"))
    address = image.get("{http://www.w3.org/1999/xlink}href") or ""
    content = base64.b64decode(address.partition(",")[2])
    pixels = Image.open(io.BytesIO(content)).convert("RGBA")
    assert pixels.size == (2000, 2000)
    white, blue = (pixels.getpixel((x, 999)) for x in (999, 1000))
    assert (white, blue) == ((255, 255, 255, 255), (*heatmap.POSITIVE, 255))


@pytest.mark.parametrize(("kind", "start"), [("pdf", b"%PDF"), ("png", b"\x89PNG")])
def test_the_verb_writes_pdf_and_png(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, start: bytes) -> None:
    try:
        converter(FigureFormat(kind))
    except ConfigError as error:
        pytest.skip(str(error))
    Made().write(tmp_path / "run")
    assert in_process(monkeypatch, tmp_path, "report", "run", "--figures", "f", "--format", kind) == 0
    pictures = sorted((tmp_path / "f").glob(f"*.{kind}"))
    assert len(pictures) == len(list((tmp_path / "f").glob("*.csv"))) > 5
    assert all(path.read_bytes().startswith(start) for path in pictures)
    if kind == "png":
        assert {Image.open(path).width for path in pictures} == {1320}
        colours = Image.open(tmp_path / "f" / "bytes.png").convert("RGB").getcolors(1 << 20) or []
        assert len(colours) > 20


def test_without_the_package_nothing_is_written_and_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cairosvg", None)  # importing it fails
    Made().write(tmp_path / "run")
    assert in_process(monkeypatch, tmp_path, "report", "run", "--figures", "f", "--format", "pdf") == 2
    assert 'pip install "tinyproto-fl[figures]"' in capsys.readouterr().err
    assert not (tmp_path / "f").exists()
    assert not (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--format", "pdf"), "--format pdf needs --figures"),
        (("--figures", "run/config.yaml"), "run/config.yaml: it is a file; name a folder"),
    ],
)
def test_a_folder_for_figures_has_to_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...],
    words: str,
) -> None:  # fmt: skip
    Made().write(tmp_path / "run")
    assert in_process(monkeypatch, tmp_path, "report", "run", *arguments) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run" / "report.html").exists()
