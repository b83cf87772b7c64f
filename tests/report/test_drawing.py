"""Scales, ticks, pictures of cells, and SVG as text."""

from __future__ import annotations

import io
import math
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tinyproto.report import heatmap, svg
from tinyproto.report.heatmap import ABSENT, ABSENT_COLOUR, NEGATIVE, NOTHING, POSITIVE, SHADES, indices, png
from tinyproto.report.svg import Linear, Logarithmic, round_step, span

# Scales


def test_a_linear_scale_maps_its_ends_and_its_middle() -> None:
    scale = Linear(2, 6, 100, 0)
    assert [scale(value) for value in (2, 4, 6)] == [100, 50, 0]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 30, [0, 10, 20, 30]),
        (0.83, 1.0, [0.85, 0.9, 0.95, 1.0]),
        (0, 7, [0, 2, 4, 6]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
    ],
)
def test_ticks_are_round_and_inside(low: float, high: float, ticks: list[float]) -> None:
    assert Linear(low, high, 0, 1).ticks() == pytest.approx(ticks)


@pytest.mark.parametrize(("rounds", "ticks"), [(1, [0, 1]), (2, [0, 1, 2]), (3, [0, 1, 2, 3])])
def test_a_tick_is_never_at_half_a_round(rounds: int, ticks: list[float]) -> None:
    assert Linear(0, rounds, 0, 1, finest=1.0).ticks() == ticks


@pytest.mark.parametrize(
    ("about", "step"), [(0.3, 0.5), (0.5, 0.5), (0.51, 1), (1, 1), (1.1, 2), (3, 5), (6, 10), (70, 100), (0.02, 0.02)]
)
def test_a_step_is_one_two_or_five_times_a_power_of_ten_and_not_smaller(about: float, step: float) -> None:
    assert round_step(about) == pytest.approx(step)


def test_a_logarithmic_scale_gives_equal_ratios_equal_distances() -> None:
    scale = Logarithmic(10, 1000, 0, 100)
    assert [scale(value) for value in (10, 100, 1000)] == pytest.approx([0, 50, 100])


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (5, 20_000, [10, 100, 1000, 10_000]), (90, 1100, [100, 200, 500, 1000]),
        (154, 440, [200, 300, 400]), (1e9, 2e9, [1e9, 2e9]),
    ],
)  # fmt: skip
def test_logarithmic_ticks_are_powers_of_ten_or_finer_where_there_are_few(
    low: float, high: float, ticks: list[float]
) -> None:
    assert Logarithmic(low, high, 0, 1).ticks() == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.5, 0.5], (0.45, 0.55)),
        ([1.0], (0.95, 1.0)),
        ([0.0], (0.0, 0.05)),
        ([0.0, 1.0], (0.0, 1.0)),
        ([0.4, 0.8], (0.38, 0.82)),
    ],
)
def test_a_span_holds_all_values_with_air_and_stays_between_its_bounds(
    values: list[float], expected: tuple[float, float]
) -> None:
    assert span(values, 0.1, 0.0, 1.0) == pytest.approx(expected)


# Cells


def decoded(picture: bytes) -> NDArray[np.uint8]:
    """Return (height, width, RGBA) of a PNG with a palette."""
    image = Image.open(io.BytesIO(picture))
    assert (image.format, image.mode) == ("PNG", "P")
    return np.asarray(image.convert("RGBA"))


def test_a_picture_shows_positive_negative_nothing_and_absent_apart() -> None:
    values = np.array([[0.0, 2.0, -2.0], [1.0, -1.0, 9.0]], np.float32)
    present = np.array([[True, True, True], [True, True, False]])
    pixels = decoded(png(indices(values, present, 0.0, 2.0)))
    assert pixels.shape == (2, 3, 4)
    assert pixels[0, 0, 3] == 0
    assert pixels[0, 1].tolist() == [*POSITIVE, 255]
    assert pixels[0, 2].tolist() == [*NEGATIVE, 255]
    assert pixels[1, 0].tolist() == [*POSITIVE, pixels[1, 1, 3]]
    assert pixels[1, 1, :3].tolist() == list(NEGATIVE)
    assert 100 < pixels[1, 0, 3] < 200
    assert pixels[1, 2, :3].tolist() == list(ABSENT_COLOUR)


def test_the_palette_grows_with_the_value_and_the_smallest_one_is_visible() -> None:
    values = np.linspace(0, 1, SHADES + 1, dtype=np.float32)[None]
    alphas = decoded(png(indices(values, np.ones_like(values, bool), 0.0, 1.0)))[0, :, 3].tolist()
    assert alphas[0] == 0
    assert alphas == sorted(set(alphas))
    assert alphas[1] > 25
    tiny = np.array([[1e-6]], np.float32)
    assert indices(tiny, np.ones((1, 1), bool), 0.0, 1.0)[0, 0] != NOTHING


def test_equal_bounds_and_values_that_mean_nothing_do_no_harm() -> None:
    values = np.array([[0.0, math.nan]], np.float32)
    with np.errstate(all="raise"):
        assert indices(values, np.array([[True, False]]), 0.0, 0.0).tolist() == [[NOTHING, ABSENT]]


# SVG


def made(values: NDArray[np.float32], **changes: object) -> heatmap.Matrix:
    rows, columns = values.shape
    given: dict[str, object] = {
        "values": values, "present": np.ones_like(values, bool), "row_names": [f"row {row}" for row in range(rows)],
        "column_names": [str(column) for column in range(columns)], "column_title": "unit", "low": 0.0, "high": 1.0,
    }  # fmt: skip
    return heatmap.Matrix(**{**given, **changes})  # type: ignore[arg-type]


def words(parts: list[str]) -> list[str]:
    root = ElementTree.fromstring(f"<svg>{''.join(parts)}</svg>")
    return [element.text or "" for element in root.iter("text")]


def test_a_matrix_names_rows_and_columns_and_writes_numbers_where_there_is_room() -> None:
    drawing = made(np.array([[0.1, 0.9]], np.float32), number=lambda value: f"{100 * value:.0f}", title="share")
    parts = heatmap.draw(drawing)
    assert words(parts) == ["share", "row 0", "0", "1", "unit", "10", "90"]
    assert sum("on-ink" in part for part in parts) == 1


def test_a_matrix_with_many_columns_names_every_so_many_and_writes_no_numbers() -> None:
    drawing = made(np.ones((1, 500), np.float32), number=lambda value: "100")
    assert words(heatmap.draw(drawing)) == ["row 0", *(str(column) for column in range(0, 500, 50)), "unit"]


def test_a_matrix_with_many_rows_stays_a_page_high_and_skips_names() -> None:
    drawing = made(np.ones((200, 2), np.float32))
    assert drawing.height < 450
    named = [name for name in words(heatmap.draw(drawing)) if name.startswith("row")]
    assert named == [f"row {row}" for row in range(0, 200, 5)]


def test_a_long_row_name_keeps_its_ends_and_leaves_room_for_cells() -> None:
    drawing = made(np.ones((1, 2), np.float32), row_names=["beginning " + 200 * "x" + " end"])
    assert drawing.left < heatmap.RIGHT / 2
    name = words(heatmap.draw(drawing))[0]
    assert len(name) <= heatmap.LONGEST_NAME
    assert name.startswith("beginning")
    assert name.endswith("x end")
    assert "…" in name


def test_words_in_a_picture_are_words_whatever_they_contain() -> None:
    hostile = '</text><script>alert(1)</script> & "quotes" \x07\x00 日本'
    picture = svg.figure(10, [svg.text(0, 0, hostile), svg.marker(1, 1, "dot", hostile)], hostile)
    root = ElementTree.fromstring(picture)
    readable = hostile.replace("\x07", "\ufffd").replace("\x00", "\ufffd")
    space = "{http://www.w3.org/2000/svg}"
    assert [element.tag for element in root.iter()] == [space + tag for tag in ("svg", "text", "circle", "title")]
    assert [element.text for element in root.iter(f"{space}text")] == [readable]
    assert root.get("aria-label") == readable
    assert root.get("role") == "img"
