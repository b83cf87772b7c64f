"""Chromium, and what a page in it asks for and complains about."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-quic",
)  # fmt: skip


@contextmanager
def chromium() -> Iterator[Browser]:
    """Provide a browser; skip the test if there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield found
        found.close()


class Seen:
    """A page with its requests and console messages."""

    def __init__(self, browser: Browser, address: str, width: int = 1280, scheme: Any = "light") -> None:
        context = browser.new_context(
            viewport={"width": width, "height": 844}, color_scheme=scheme, accept_downloads=True
        )
        self.page: Page = context.new_page()
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address)

    def __enter__(self) -> Seen:
        return self

    def __exit__(self, *_: object) -> None:
        self.page.context.close()
