"""`tinyproto report`: runs in, one HTML file out, and its figures as files where wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tinyproto.cli.terminal import Output
from tinyproto.errors import RunFolderError
from tinyproto.report.draw.svg import with_style
from tinyproto.report.figures.prototypes import Shown
from tinyproto.report.networks import network_rows
from tinyproto.report.page import FEW_SETTINGS, Report, figure_style, make_report
from tinyproto.report.runs import find_runs, read_readable_runs, read_runs
from tinyproto.report.studies import Setting
from tinyproto.report.words import size
from tinyproto.tracking.run_folder import write_whole


def report_runs(
    paths: Sequence[Path], out: Path | None, figures: Path | None, shown: Shown, output: Output
) -> None:  # fmt: skip
    """One page for all the runs meant; where nothing is said, beside the run, or here where there are several."""
    folders = find_runs(paths)
    runs, passed_over = read_readable_runs(folders)
    page = make_report(runs, shown, passed_over)
    target = out or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    _write(target, page.html)
    if figures is not None:
        write_figures(page, figures)
    settings = [setting for study in page.studies for setting in study.settings]
    for sentence in [*_claims(page), *_verdicts(settings)]:
        output.console.print(f"• {sentence}", markup=False)
    for sentence in passed_over:
        output.say(f"Not in the report: {sentence}")
    output.say(f"Written to {target} ({size(len(page.html.encode()))})")
    if figures is not None:
        output.say(f"{len(page.figures)} figures, each as .svg and .csv, in {figures}")
    output.result(
        {
            "report": str(target),
            "figures": [figure.slug for figure in page.figures],
            "settings": [_setting(setting) for setting in settings],
            "passed_over": passed_over,
            "paper": None if page.paper is None else page.paper.plain(),
        }
    )


def _setting(setting: Setting) -> dict[str, Any]:
    return {**setting.plain(), "networks": [row.plain() for row in network_rows(setting)]}


def _claims(page: Report) -> Iterator[str]:
    """The paper's, where it is repeated, and what goes beyond it."""
    if page.paper is not None:
        yield from page.paper.verdict()
        claims = [*page.paper.claims, *page.paper.beyond.claims]
        yield from (f"{claim.words}: {claim.tally}" for claim in claims)


def _verdicts(settings: Sequence[Setting]) -> Iterator[str]:
    """All sentences while settings are few, else the ranking of each."""
    for setting in settings:
        sentences = setting.verdict() if len(settings) <= FEW_SETTINGS else setting.verdict()[:1]
        yield from (f"{setting.name}: {one}" if len(settings) > 1 else one for one in sentences)


def write_report(folders: Sequence[Path], target: Path) -> Path:
    """The page of these runs."""
    _write(target, make_report(read_runs(folders)).html)
    return target


def write_figures(page: Report, folder: Path) -> None:
    """Every figure as a picture with its colours, and as data."""
    for figure in page.figures:
        _write(folder / f"{figure.slug}.svg", with_style(figure.svg, figure_style()))
        _write(folder / f"{figure.slug}.csv", figure.csv())


def _write(target: Path, text: str) -> None:
    if target.is_dir():
        raise RunFolderError(f"cannot write {target}: it is a folder; name a file")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, text)
    except OSError as error:
        raise RunFolderError(f"cannot write {target}: {error.strerror or error}") from error
