"""The report in Chromium: on a phone and a desktop, light and dark, and printed."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from support_browser import Seen, chromium
from support_paper import PaperRecord, report_with_paper
from support_report import FIVE, Made
from tinyproto.report.page import Report
from tinyproto.report.runs import read_runs

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
LONG = "a label as sweeps write them, <b>s=50</b>, λ=10, and much longer than any column is wide"
PAGES: dict[str, Sequence[Made | PaperRecord]] = {
    "one run": [Made(algorithms=FIVE, seeds=(0, 1), rounds=30, clients=20, classes=10, dim=100)],
    "two settings and another study": [
        Made(name="short", algorithms=("local", {"name": "fedproto", "label": LONG}), rounds=1),
        Made(name="longer-name-of-a-run", algorithms=FIVE, rounds=300, seeds=(0, 1, 2)),
        Made(name="other", dataset="cifar", clients=100, classes=100, federation=False),
    ],
    "the paper": [
        *(
            PaperRecord("table1_cifar100", label, 40 + 10 * index, rounds=20, payload=500 * (1 + index))
            for index, label in enumerate(("local", "feddistill", "fedproto", "fedtgp", "tinyproto_ft"))
        ),
        PaperRecord("readings_methods", "fedproto(running)", 50, rounds=10),
        PaperRecord("appendix_cifar100", "tinyproto_ft(cps_dim=150,scaling=none)", 70, rounds=20),
        PaperRecord("compression_cifar10_250", "fedproto", 160, rounds=20),
        *(
            PaperRecord("bytes_cifar100", f"tinyproto_ft(s={s}-{kind}-held)", 60 + s // 5, rounds=20, payload=s // 5)
            for s in (25, 50)
            for kind in ("int8", "int4", "bfloat16")
        ),
        PaperRecord("readings_methods", "tinyproto_ft(auto)", 50, rounds=10),
    ],
    "many classes": [Made(algorithms=FIVE, clients=20, classes=200, dim=500, rounds=5)],
}
UNFOLD = "document.querySelectorAll('details.asked').forEach(one => { one.open = true; })"
VIEWS = [(width, scheme) for width in (390, 1280) for scheme in ("light", "dark")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Report]]:
    found = {}
    for name, runs in PAGES.items():
        folder = tmp_path_factory.mktemp("pages")
        made = report_with_paper(read_runs([run.write(folder / str(index)) for index, run in enumerate(runs)]))
        (folder / "report.html").write_text(made.html, encoding="utf-8")
        found[name] = (folder / "report.html", made)
    return found


def luminance(colour: str) -> float:
    """Return the luminance of `rgb(r, g, b)` as WCAG defines it."""
    channels = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(", ")]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_fetches_nothing_and_fits(
    browser: Browser, written: dict[str, tuple[Path, Report]], name: str, width: int, scheme: str
) -> None:
    file, made = written[name]
    with Seen(browser, file.as_uri(), width, scheme) as seen:
        page = seen.page
        page.evaluate(UNFOLD)
        assert page.locator("figure").count() == len(made.figures)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("section.verdict").first.bounding_box()["y"] < 600  # type: ignore[index]
        for picture in page.locator("figure").all():
            assert picture.locator("svg[role=img]").count() == 1
            assert picture.locator("svg").get_attribute("aria-label")
            assert len(picture.locator("details p").text_content() or "") > 30
            box = picture.locator("svg").bounding_box()
            assert box is not None
            assert box["width"] > 300
            assert box["height"] > 40
        assert seen.complaints == []
        assert [url[:80] for url in seen.asked if not url.startswith("data:")] == [file.as_uri()]


def test_a_table_of_the_paper_needs_no_scrolling_on_a_desk(browser: Browser, tmp_path: Path) -> None:
    widest = [
        PaperRecord(
            "table1_cifar100", "fedproto", 60 + seed, seed=seed, rounds=100, preset="sound", payload=143_400,
            formula=1_460_500, early=dict.fromkeys(range(91, 100), 60 + seed),
        )
        for seed in (0, 1)
    ]  # fmt: skip
    made = report_with_paper(read_runs([record.write(tmp_path / str(record.seed)) for record in widest]))
    (tmp_path / "report.html").write_text(made.html, encoding="utf-8")
    with Seen(browser, (tmp_path / "report.html").as_uri()) as seen:
        table = seen.page.locator("h4", has_text="preset sound").locator("xpath=following-sibling::div[1]")
        assert "30.25 ± 0.35" in (table.text_content() or "")
        assert table.evaluate("one => one.scrollWidth - one.clientWidth") == 0


@pytest.mark.parametrize("name", PAGES)
def test_there_is_a_row_for_every_method_of_every_setting(
    browser: Browser, written: dict[str, tuple[Path, Report]], name: str
) -> None:
    file, _ = written[name]
    with Seen(browser, file.as_uri()) as seen:
        tables = seen.page.locator("table").filter(has=seen.page.locator("th", has_text="payload"))
        rows = sorted(tables.nth(index).locator("tbody tr").count() for index in range(tables.count()))
        runs = [len(run.algorithms) for run in PAGES[name] if isinstance(run, Made)]
        # The paper's tables and that of the first 100 classes of Tiny-ImageNet, then three settings.
        assert rows == sorted(runs or [*[9] * 7, *[24] * 3, 12, 2, 1])


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
@pytest.mark.parametrize("name", PAGES)
def test_words_stay_inside_their_figure_and_off_each_other(
    browser: Browser, written: dict[str, tuple[Path, Report]], name: str, width: int, scheme: str
) -> None:
    file, _ = written[name]
    with Seen(browser, file.as_uri(), width, scheme) as seen:
        seen.page.evaluate(UNFOLD)
        found = seen.page.evaluate(
            """() => [...document.querySelectorAll("svg.figure")].flatMap(svg => {
              const frame = svg.viewBox.baseVal;
              const words = [...svg.querySelectorAll("text")].map(one => ({text: one.textContent, box: one.getBBox()}));
              const outside = words.filter(({box}) =>
                box.x < -1 || box.x + box.width > frame.width + 1 || box.y < -2 ||
                box.y + box.height > frame.height + 2);
              const overlap = (a, b) =>
                Math.max(0, Math.min(a.x + a.width, b.x + b.width) - Math.max(a.x, b.x)) *
                Math.max(0, Math.min(a.y + a.height, b.y + b.height) - Math.max(a.y, b.y)) /
                Math.min(a.width * a.height, b.width * b.height);
              const clash = words.slice(0, 120).flatMap((a, index) => words.slice(index + 1, 120)
                .filter(b => overlap(a.box, b.box) > 0.35).map(b => `${a.text} on ${b.text}`));
              const place = svg.closest("figure").id;
              return [...outside.map(one => `${place}: ${one.text} outside`), ...clash.map(one => `${place}: ${one}`)];
            })"""
        )
        assert found == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_read_by_day_and_by_night(
    browser: Browser, written: dict[str, tuple[Path, Report]], scheme: str
) -> None:
    file, _ = written["one run"]
    with Seen(browser, file.as_uri(), scheme=scheme) as seen:
        style = "(selector, key) => getComputedStyle(document.querySelector(selector))[key]"

        def computed(selector: str, key: str) -> str:
            return str(seen.page.evaluate(f"([selector, key]) => ({style})(selector, key)", [selector, key]))

        paper = computed("body", "backgroundColor")
        assert (luminance(paper) < 0.5) == (scheme == "dark")
        assert contrast(computed("body", "color"), paper) > 7
        assert contrast(computed(".quiet", "color"), paper) > 4.5
        assert contrast(computed("a", "color"), paper) > 4.5
        assert contrast(computed("svg.figure .label", "fill"), paper) > 7
        for method in range(5):
            assert contrast(computed(f"svg.figure .curve.c{method}", "color"), paper) > 3


@pytest.mark.parametrize(
    ("name", "slugs", "kind"),
    [
        ("one run", ("rounds-global", "bytes", "clients", "holdings"), "csv"),
        ("many classes", ("holdings",), "csv.gz"),
    ],
)
def test_data_are_downloaded_as_they_are(
    browser: Browser, written: dict[str, tuple[Path, Report]], name: str, slugs: Sequence[str], kind: str
) -> None:
    file, made = written[name]
    data = {figure.slug: figure.csv() for figure in made.figures}
    with Seen(browser, file.as_uri()) as seen:
        for slug in slugs:
            with seen.page.expect_download() as waiting:
                seen.page.locator(f"#{slug} a[download]").click()
            assert waiting.value.suggested_filename == f"{slug}.{kind}"
            content = waiting.value.path().read_bytes()
            assert (gzip.decompress(content) if kind.endswith("gz") else content).decode() == data[slug]
        assert seen.complaints == []


def test_a_picture_is_downloaded_with_its_colours(browser: Browser, written: dict[str, tuple[Path, Report]]) -> None:
    file, _ = written["one run"]
    with Seen(browser, file.as_uri()) as seen:
        seen.page.evaluate(UNFOLD)
        for slug in ("rounds-global", "holdings", "prototypes-1-class"):
            with seen.page.expect_download() as waiting:
                seen.page.locator(f"#{slug} button.link").click()
            assert waiting.value.suggested_filename == f"{slug}.svg"
            picture = ElementTree.parse(waiting.value.path()).getroot()
            assert picture.tag == "{http://www.w3.org/2000/svg}svg"
            assert "--ink" in (picture[0].text or "")
            assert len(list(picture.iter("{http://www.w3.org/2000/svg}text"))) > 5
        assert seen.complaints == []


def test_a_picture_alone_is_shown_with_its_colours(
    browser: Browser, written: dict[str, tuple[Path, Report]], tmp_path: Path
) -> None:
    from tinyproto.cli.report import write_figures

    write_figures(written["one run"][1], tmp_path)
    with Seen(browser, (tmp_path / "rounds-global.svg").as_uri(), scheme="dark") as seen:
        colour = seen.page.evaluate("getComputedStyle(document.querySelector('path[fill=none]')).stroke")
        assert colour not in ("rgb(0, 0, 0)", "rgb(255, 255, 255)")
        assert seen.complaints == []


def test_on_paper_it_is_light_and_whole(browser: Browser, written: dict[str, tuple[Path, Report]]) -> None:
    file, _ = written["one run"]
    with Seen(browser, file.as_uri(), width=700, scheme="dark") as seen:  # about what A4 leaves between its margins
        seen.page.emulate_media(media="print", color_scheme="dark")
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 700
        ink, paper = seen.page.evaluate(
            "(style => [style.color, style.backgroundColor])(getComputedStyle(document.body))"
        )
        assert luminance(ink) < 0.1 < 0.9 < luminance(paper)
        assert not seen.page.locator(".downloads").first.is_visible()
        printed = seen.page.pdf()
        assert printed.startswith(b"%PDF")
        assert len(printed) > 20_000


def test_without_scripts_only_the_svg_buttons_are_missing(
    browser: Browser, written: dict[str, tuple[Path, Report]]
) -> None:
    file, made = written["one run"]
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    assert page.locator("figure svg").count() == len(made.figures)
    assert page.locator("button.link:visible").count() == 0
    page.locator("button.term", has_text="formula").first.click()
    assert page.locator("[popover]:visible").count() == 1
    context.close()


def test_a_term_is_explained_by_keyboard_and_by_touch(
    browser: Browser, written: dict[str, tuple[Path, Report]]
) -> None:
    file, _ = written["one run"]
    with Seen(browser, file.as_uri()) as seen:
        term = seen.page.locator("button.term", has_text="formula").first
        term.focus()
        seen.page.keyboard.press("Enter")
        shown = seen.page.locator("[popover]:visible")
        assert "Table 2" in (shown.text_content() or "")
        seen.page.keyboard.press("Escape")
        assert shown.count() == 0
        assert term.evaluate("one => one === document.activeElement")
    context = browser.new_context(has_touch=True, viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(file.as_uri())
    page.locator("button.term", has_text="preset sound").first.tap()
    box = page.locator("[popover]:visible").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    context.close()


@pytest.mark.parametrize(("width", "hinted"), [(390, True), (1280, False)])
def test_a_table_that_scrolls_says_so(
    browser: Browser, written: dict[str, tuple[Path, Report]], width: int, hinted: bool
) -> None:
    file, _ = written["one run"]
    with Seen(browser, file.as_uri(), width) as seen:
        table = seen.page.locator(".wide").first
        hint = table.evaluate("one => getComputedStyle(one, '::before').content")
        assert ("scrolls sideways" in hint) == hinted


def test_the_verdict_fills_its_box(browser: Browser, written: dict[str, tuple[Path, Report]]) -> None:
    file, _ = written["one run"]
    with Seen(browser, file.as_uri()) as seen:
        widest = (
            "section => Math.max(...[...section.querySelectorAll('li')].map(one => one.getBoundingClientRect().right))"
        )
        box = seen.page.locator(".verdict").first
        end = box.bounding_box()
        assert end is not None
        assert box.evaluate(widest) > end["x"] + end["width"] - 60
