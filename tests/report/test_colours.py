"""Colours of methods are told apart with any colour vision, on light and on dark, and are not all that differs."""

from __future__ import annotations

import importlib.util
import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from support_docs import ROOT
from tinyproto.report.page import figure_style
from tinyproto.report.studies import INKS, Series

# Machado, Oliveira, Fernandes 2009: what linear RGB becomes without one kind of cone.
VISION = {
    "all cones": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "no long": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no middle": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "no short": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
TO_CONES = (
    (0.41222147, 0.53633254, 0.05144599),
    (0.2119035, 0.68069955, 0.10739696),
    (0.08830246, 0.28171884, 0.6299787),
)
TO_OKLAB = (
    (0.21045426, 0.79361778, -0.00407205),
    (1.9779985, -2.42859221, 0.45059371),
    (0.02590404, 0.78277177, -0.80867577),
)
GROUNDS = {"light": "#ffffff", "dark": "#0f1419"}
APART = 0.08  # in Oklab, where 0.02 is just noticeable


def linear(colour: str) -> NDArray[np.float64]:
    values = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.asarray(np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4))


def seen(colour: str, vision: str) -> NDArray[np.float64]:
    left = np.clip(np.array(VISION[vision]) @ linear(colour), 0, 1)
    return np.asarray(np.array(TO_OKLAB) @ np.cbrt(np.array(TO_CONES) @ left))


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def palettes() -> dict[str, list[str]]:
    found = re.findall(r"--c\d: (#\w{6})", figure_style())
    return {"light": found[:INKS], "dark": found[INKS:]}


def picture_colours() -> list[str]:
    spec = importlib.util.spec_from_file_location("draw", Path(ROOT) / "docs" / "pictures" / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.COLOURS.values())


@pytest.mark.parametrize("vision", VISION)
def test_no_two_methods_look_alike(vision: str) -> None:
    for colours in (*palettes().values(), picture_colours()):
        for one, other in combinations(colours, 2):
            assert float(np.linalg.norm(seen(one, vision) - seen(other, vision))) > APART, (one, other)


@pytest.mark.parametrize("ground", GROUNDS)
def test_every_colour_stands_out_from_its_ground(ground: str) -> None:
    found = palettes()[ground]
    assert len(found) == INKS
    assert min(contrast(colour, GROUNDS[ground]) for colour in found) > 3


def test_words_in_the_pictures_of_the_documentation_can_be_read() -> None:
    assert min(contrast(colour, "#ffffff") for colour in picture_colours()) > 4.5


def test_methods_differ_in_their_markers_too() -> None:
    marks = [Series("a", "a", colour, []).marker(0, 0, "") for colour in range(INKS)]
    assert len({re.sub(r" c\d", "", mark) for mark in marks}) == INKS
