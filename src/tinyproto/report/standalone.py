"""Figures in files of their own: every colour and font written into the picture, as SVG, PDF or PNG.

On the page, figures take their colours from `figure.css`, with variables and classes that programs such as CairoSVG,
librsvg and Inkscape know in part only.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Mapping

from PIL import Image

from tinyproto.errors import ConfigError, one_line
from tinyproto.report.formats import FigureFormat
from tinyproto.report.heatmap import data_address

FAMILY = "Helvetica, Arial, sans-serif"
"""A font that is found under this name, or replaced by one of the same widths, on every system."""

PNG_SCALE = 3.0
"""Pixels per unit of a figure; its 440 units are 1 320 pixels."""

IMAGE_PIXELS = 2000
"""Least width and height of the image inside a heatmap, so that a program that smooths it blurs no cell."""

_XLINK = 'xmlns:xlink="http://www.w3.org/1999/xlink"'  # Inkscape finds images by its href only
_WRITTEN = re.compile("fill|stroke|opacity|font-|image-rendering")
_TAG = re.compile(r'<([a-z]+)( [^<>]*?)class="([^"]*)"([^<>]*?)(/?)>', re.IGNORECASE)
_SELECTOR = re.compile(r"(svg)?((?:\.[\w-]+)+)")

Styles = list[tuple[frozenset[str], dict[str, str]]]


def standalone(picture: str, style: str) -> str:
    """Return a figure with the properties that a stylesheet gives it as attributes, and with a size of its own."""
    styles = _styles(style)
    written = _TAG.sub(lambda tag: _with_attributes(tag, styles), picture)
    written = re.sub(r'href="data:image/png;base64,([^"]+)"', _sharp, written)
    return re.sub(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', rf'\g<0> width="\1" height="\2" {_XLINK}', written, count=1)


def _sharp(address: re.Match[str]) -> str:
    """Return an image with many pixels for each of its own, on white: half of all programs smooth what they enlarge."""
    small = Image.open(io.BytesIO(base64.b64decode(address[1]))).convert("RGBA")
    ground = Image.new("RGBA", small.size, "white")
    flat = Image.alpha_composite(ground, small).convert("P", palette=Image.Palette.ADAPTIVE)
    size = [side * -(-IMAGE_PIXELS // side) for side in small.size]
    file = io.BytesIO()
    flat.resize((size[0], size[1]), Image.Resampling.NEAREST).save(file, "PNG", optimize=True)
    return f'xlink:href="{data_address(file.getvalue(), "image/png")}"'


def converter(format_: FigureFormat) -> Callable[[str], bytes]:
    """Return the function that turns a standalone picture into the content of a file; raise ConfigError if it cannot.

    PDF and PNG are made by CairoSVG, of the extra `figures`.
    """
    if format_ is FigureFormat.SVG:
        return lambda picture: picture.encode()
    try:
        import cairosvg
    except ImportError as error:
        raise ConfigError(f'--format {format_} needs CairoSVG: pip install "tinyproto-fl[figures]"') from error
    except OSError as error:  # CairoSVG finds no libcairo
        raise ConfigError(
            f"--format {format_} needs the library cairo, such as libcairo2: {one_line(error)}"
        ) from error
    if format_ is FigureFormat.PDF:
        return lambda picture: bytes(cairosvg.svg2pdf(picture.encode()))
    return lambda picture: bytes(cairosvg.svg2png(picture.encode(), scale=PNG_SCALE, background_color="white"))


def _styles(style: str) -> Styles:
    """Return the rules for light screens as classes and properties, the most specific last, without variables."""
    plain = re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL)
    plain = re.sub(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", "", plain)
    variables = dict(re.findall(r"(--[\w-]+)\s*:\s*([^;}]+)", plain))
    found: Styles = []
    for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", plain):
        pairs = [declaration.split(":", 1) for declaration in body.split(";") if ":" in declaration]
        declared = {name.strip(): _valued(value.strip(), variables) for name, value in pairs}
        for selector in selectors.split(","):
            part = _SELECTOR.fullmatch(selector.split()[-1])
            if part is not None:
                found.append((frozenset(part[2].strip(".").split(".")), declared))
    return sorted(found, key=lambda rule: len(rule[0]))


def _valued(value: str, variables: Mapping[str, str]) -> str:
    return re.sub(r"var\((--[\w-]+)\)", lambda name: variables[name[1]], value)


def _with_attributes(tag: re.Match[str], styles: Styles) -> str:
    """Return a start tag with the properties of its classes instead of the classes."""
    name, before, classes, after, end = tag.groups()
    declared: dict[str, str] = {}
    for needed, properties in styles:
        if needed <= set(classes.split()):
            declared |= properties
    if font := declared.pop("font", None):  # a size in pixels, then families
        declared = {"font-size": font.split()[0], "font-family": FAMILY, **declared}
    if declared.get("font-weight", "").isdecimal():  # CairoSVG knows words only
        declared["font-weight"] = "bold" if int(declared["font-weight"]) >= 600 else "normal"
    colour = declared.get("color", "#000000")
    others = re.sub(rf' ({"|".join(declared) or "-"})="[^"]*"', "", before.rstrip() + after)
    attributes = "".join(
        f' {key}="{value.replace("currentColor", colour)}"' for key, value in declared.items() if _WRITTEN.match(key)
    )
    return f"<{name}{others}{attributes}{end}>"
