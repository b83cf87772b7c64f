"""The site: every page is in it, nothing is fetched from elsewhere, and the search works from a folder."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support_cli import environment
from support_docs import ROOT

hooks: Any = importlib.import_module("docs.site_hooks")  # a script: mypy knows it by another name
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FETCHED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]+src=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link[^>]+(?:stylesheet|preload|icon|preconnect)[^>]+href=["']?((?:https?:)?//[^"'\s>]+)"""
)


def test_every_page_is_listed_once_in_the_navigation() -> None:
    listed = [page for pages in hooks.sections().values() for page in pages]
    there = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")} - {"README.md"}
    assert sorted(listed) == sorted(there)


def test_a_page_loses_what_only_the_repository_understands() -> None:
    page = "See [the record](../../results/a/b.json) and [here](grid.md#x).\n\n```bash flower\nls\n```\n"
    assert hooks.on_page_markdown(page) == (
        "See the record (`results/a/b.json` in the repository) and [here](grid.md#x).\n\n```bash\nls\n```\n"
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a broken link, a missing anchor or a page in no section is an error."""
    ready = subprocess.run(["make", ".venv-site/.site"], cwd=ROOT, capture_output=True, text=True, check=False)
    if ready.returncode and "No matching distribution" in ready.stderr:
        pytest.skip("the packages of the site need a package index")
    assert ready.returncode == 0, ready.stderr
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [ROOT / ".venv-site" / "bin" / "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder], cwd=ROOT,
        env=environment(NO_MKDOCS_2_WARNING="1"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.slow
def test_the_site_is_complete_and_fetches_nothing(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    assert [(page.name, found) for page in pages for found in FETCHED.findall(page.read_text(encoding="utf-8"))] == []
    styles = "".join(file.read_text(encoding="utf-8") for file in site.rglob("*.css"))
    assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", styles)
    api = (site / "reference" / "api.html").read_text(encoding="utf-8")
    for name in ("simulate", "load_client", "data.from_arrays", "errors.ConfigError"):
        assert f'id="tinyproto.{name}"' in api
    assert not list(site.rglob("*.py"))
    assert "```" not in (site / "start" / "quickstart.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.browser
def test_the_search_finds_a_page_without_a_server_and_nothing_goes_to_the_network(site: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        asked: list[str] = []
        wrong: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.goto(f"file://{site}/how-to/deploy.html")
        page.locator(".md-search__input").click()
        page.keyboard.type("quorum")
        found = page.locator(".md-search-result__link").first
        found.wait_for(timeout=20_000)
        assert "quorum" in found.inner_text().lower()
        browser.close()
    assert wrong == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "about:", "blob:"))] == []
