"""The live page in Chromium: it follows the records, can be used by keyboard, and becomes the report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support_browser import Seen, chromium
from support_report import FIVE, Made
from tinyproto.cli.live import live_page
from tinyproto.cli.report import write_report
from tinyproto.cli.terminal import Output
from tinyproto.config import Config, parse_config
from tinyproto.errors import Interrupted

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
MADE = Made(name="watched", algorithms=FIVE, seeds=(0, 1), rounds=6, clients=4)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def config() -> Config:
    return parse_config({**MADE.resolved(), "data": {}, "models": ["small_cnn_a"]})


class Playing:
    """A run folder whose records are written line by line."""

    def __init__(self, folder: Path) -> None:
        self.folder = MADE.write(folder)
        self.rest = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
        (folder / "rounds.jsonl").unlink()

    def write(self, lines: int) -> None:
        written, self.rest = self.rest[:lines], self.rest[lines:]
        with (self.folder / "rounds.jsonl").open("a") as file:
            file.write("".join(written))


def address_of(said: str) -> str:
    (found,) = re.findall(r"http://\S+", said)
    return str(found)


def wait_for(page: Page, selector: str, words: str) -> None:
    page.locator(selector, has_text=words).first.wait_for(state="attached", timeout=10_000)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_it_follows_a_run_and_becomes_its_report(
    browser: Browser, config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str], width: int, scheme: str
) -> None:
    playing = Playing(tmp_path / "watched")
    with live_page(True, config, playing.folder, Output(), new=False):
        address = address_of(capsys.readouterr().out)
        seen = Seen(browser, address, width, scheme)
        page = seen.page
        wait_for(page, "#rounds", "0 of 60 rounds")
        wait_for(page, "#status", "Waiting for the first round")
        playing.write(2)
        wait_for(page, "#rounds", "2 of 60 rounds")
        wait_for(page, "#here li", "Local, seed 0: round 2 of 6 with 4 clients")
        wait_for(page, "#numbers tbody tr", "2 of 12")
        before = page.locator("#numbers tbody tr").first.text_content()
        playing.write(1)
        wait_for(page, "#rounds", "3 of 60 rounds")
        wait_for(page, "#left", "left")
        assert page.locator("#numbers tbody tr").first.text_content() != before
        playing.write(12)
        wait_for(page, "#rounds", "13 of 60 rounds")
        assert page.locator("#figure svg .curve").count() == 2  # FedProto, and its place in the legend
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        playing.write(100)
        wait_for(page, "#rounds", "60 of 60 rounds")
        write_report([playing.folder], playing.folder / "report.html")
    wait_for(page, "section.verdict", "nearest global prototype")
    assert page.title().startswith("tinyproto report: watched")
    page.locator("button.term", has_text="formula").first.click()
    assert page.locator("[popover]:visible").count() == 1  # all of it is here, although its server is gone
    assert page.locator("#rounds-global svg").count() == 1
    assert seen.complaints == []
    assert [asked for asked in seen.asked if not asked.startswith((address, "data:"))] == []
    seen.page.context.close()


def test_it_can_be_used_by_keyboard(
    browser: Browser, config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    playing = Playing(tmp_path / "watched")
    with live_page(True, config, playing.folder, Output(), new=False):
        seen = Seen(browser, address_of(capsys.readouterr().out))
        page = seen.page
        playing.write(2)
        wait_for(page, "#rounds", "2 of 60 rounds")
        focused = "document.activeElement.id || document.activeElement.textContent"
        passed = []
        while "pause" not in passed:
            page.keyboard.press("Tab")
            passed.append(page.evaluate(focused))
            assert len(passed) < 10
        page.keyboard.press("Enter")
        wait_for(page, "#pause[aria-pressed=true]", "Resume")
        playing.write(2)
        page.wait_for_timeout(1500)
        assert page.locator("#rounds").text_content() == "2 of 60 rounds"
        page.keyboard.press("Space")
        wait_for(page, "#rounds", "4 of 60 rounds")
        assert page.evaluate(focused) == "pause"
        (playing.folder / "report.html").write_text("<!doctype html><title>report</title>done")
    assert seen.complaints == []
    seen.page.context.close()


def test_it_says_that_a_run_was_interrupted(
    browser: Browser, config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    playing = Playing(tmp_path / "watched")

    def interrupted() -> Seen:
        with live_page(True, config, playing.folder, Output(), new=False):
            seen = Seen(browser, address_of(capsys.readouterr().out))
            playing.write(2)
            wait_for(seen.page, "#rounds", "2 of 60 rounds")
            found.append(seen)
            raise Interrupted("resume with: tinyproto resume runs/watched")

    found: list[Seen] = []
    with pytest.raises(Interrupted):
        interrupted()
    wait_for(found[0].page, "#status", "The run was interrupted; resume with: tinyproto resume runs/watched")
    assert found[0].complaints == []
    found[0].page.context.close()
