"""The report: one HTML file that needs nothing beside it, the verdict first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import resources

import yaml

import tinyproto
from tinyproto.report import html
from tinyproto.report.columns import accuracy_cells, columns, cost_cells
from tinyproto.report.compare import RULE_NAMES, STATISTIC_NAMES
from tinyproto.report.figures.clients import accuracy_per_client
from tinyproto.report.figures.figure import Figure
from tinyproto.report.figures.holdings import who_holds_what
from tinyproto.report.figures.prototypes import ANY, DeadUnits, Shown, dead_units, prototype_figures
from tinyproto.report.figures.rounds import accuracy_over_rounds
from tinyproto.report.figures.traffic import accuracy_over_bytes
from tinyproto.report.runs import Run
from tinyproto.report.studies import Series, Setting, Study, arrange
from tinyproto.report.words import counted

MOST_BYTES = 2_900_000
"""Of the whole page; prototypes that would not fit are left out, and the page says so."""


@dataclass
class Report:
    """A page and the figures on it."""

    html: str
    figures: list[Figure] = field(default_factory=list)


def make_report(runs: Sequence[Run], shown: Shown = ANY) -> Report:
    """All runs on one page."""
    studies = arrange(runs)
    figures: list[Figure] = []
    body = "".join(_head(runs, studies))
    for number, study in enumerate(studies):
        prefix = f"study{number}-" if len(studies) > 1 else ""
        drawn = list(_overview(study, prefix))
        figures += drawn
        body += "".join(_study(study, drawn, titled=len(studies) > 1))
    for number, study in enumerate(studies):
        prefix = f"study{number}-" if len(studies) > 1 else ""
        body += _prototypes(study, prefix, shown, figures, room=MOST_BYTES - len(body.encode()))
    body += "".join(_repeat(runs))
    names = ", ".join(dict.fromkeys(run.name for run in runs))
    return Report(_page(f"tinyproto report: {names}", body), figures)


def figure_style() -> str:
    """The colours of figures, for a picture on its own."""
    return _asset("figure.css")


def _page(title: str, body: str) -> str:
    """No script but ours, nothing fetched: the browser is told to refuse both."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{escape(title)}</title><style>{_asset('page.css')}</style>"
        f'<style id="figure-style">{_asset("figure.css")}</style>'
    )
    script = f"<script>{_asset('page.js')}</script>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}{script}</body></html>\n'


def _asset(name: str) -> str:
    return (resources.files("tinyproto.report") / name).read_text(encoding="utf-8")


def _head(runs: Sequence[Run], studies: Sequence[Study]) -> Iterator[str]:
    names = ", ".join(dict.fromkeys(run.name for run in runs))
    yield html.element("h1", escape(names))
    if len(studies) > 1:
        datasets = ", ".join(dict.fromkeys(study.dataset for study in studies))
        yield html.paragraph(
            f"These runs are {len(studies)} studies on different samples or clients ({datasets}); accuracies of "
            "different studies do not speak of the same thing, so each has its own table."
        )
    for run in runs:
        if run.unfinished:
            yield html.paragraph(
                f"{run.name} is not finished: {counted(run.unfinished, 'cell')} of its grid are not in this report. "
                f"Go on with: tinyproto resume {run.folder}"
            )


def _overview(study: Study, prefix: str) -> Iterator[Figure]:
    """The figures on accuracy, bytes and clients; the headline rule's curves first."""
    headline = study.settings[0].comparison.rule
    rules = [headline, *(rule for rule in RULE_NAMES if rule != headline)]
    over_rounds = {rule: accuracy_over_rounds(study, rule, f"{prefix}rounds-{rule}") for rule in rules}
    found = [
        over_rounds[headline],
        accuracy_over_bytes(study, f"{prefix}bytes"),
        *(over_rounds[rule] for rule in rules[1:]),
        accuracy_per_client(study, f"{prefix}clients"),
        who_holds_what(study, f"{prefix}holdings"),
    ]
    yield from (figure for figure in found if figure is not None)


def _study(study: Study, figures: Sequence[Figure], *, titled: bool) -> Iterator[str]:
    several = len(study.settings) > 1
    if titled:
        yield html.element("h2", escape(f"{study.dataset}: {', '.join(run.name for run in study.runs)}"))
    for setting in study.settings:
        yield from _verdict(setting, titled=several)
    if several:
        yield html.element("h3", "What differs between the settings")
        rows = [[key, *map(str, values)] for key, values in study.differences().items()]
        yield html.table(["key", *(setting.name for setting in study.settings)], rows)
    yield html.element("h2", "Numbers")
    for setting in study.settings:
        yield _table(setting)
    yield html.element("h2", "Figures")
    yield html.element("div", "".join(map(html.figure, figures)), class_="figures")
    if not any(run.federation for run in study.runs):
        yield html.paragraph("Who holds what was not recorded by this run (no federation.json).", "quiet")


def _verdict(setting: Setting, *, titled: bool) -> Iterator[str]:
    run, result = setting.runs[0], setting.runs[0].results[0]
    seeds = sorted({seed for series in setting.series for seed in series.seeds})
    facts = (
        f"{result['dataset']}, {counted(result['num_clients'], 'client')}, {counted(result['rounds'], 'round')}, "
        f"{counted(len(seeds), 'seed')} ({', '.join(map(str, seeds))}), preset {result['preset']}, "
        f"networks {', '.join(map(str, run.config['models']))}"
    )
    yield html.element("h2" if titled else "p", escape(setting.name if titled else facts), class_="facts")
    if titled:
        yield html.paragraph(facts)
    yield html.element("section", html.bullets(setting.verdict()), class_="verdict", aria_label="Verdict")


def _table(setting: Setting) -> str:
    comparison = setting.comparison
    names = columns(comparison)
    rows, strong = [], []
    for row in comparison.rows:
        rows.append([row.title, *accuracy_cells(comparison, row), *cost_cells(row).values()])
        strong.append(1 + list(RULE_NAMES).index(comparison.headline_rule(row)))
    seeds = max(len(series.cells) for series in setting.series)
    caption = (
        f"Accuracy in %, {STATISTIC_NAMES[comparison.statistic]}"
        f"{', mean ± standard deviation over seeds' if seeds > 1 else ''}: by own head, nearest global and nearest "
        "local prototype; bold is the number a method is read by. Δ: points over what Local reaches alone. Parameters "
        "and bytes a round are measured, up and down, all clients; “formula” is the paper's Table 2."
    )
    return html.table(["algorithm", *names], rows, strong) + html.paragraph(caption, "quiet")


def _prototypes(study: Study, prefix: str, shown: Shown, figures: list[Figure], room: int) -> str:
    """Heatmaps of every method's first seed, as many as there is room for."""
    dead: list[tuple[Series, DeadUnits]] = []
    drawn, left_out = "", []
    for number, (_, series) in enumerate(study.series):
        cell = series.cells[0]
        values = cell.run.prototypes(cell.result["label"], cell.result["seed"])
        if values is None:
            continue
        dead.append((series, dead_units(values)))
        own = list(prototype_figures(series, values, shown, f"{prefix}prototypes-{number}"))
        figures += own
        for with_data in (True, False):
            pictures = "".join(html.figure(figure, with_data=with_data) for figure in own)
            if len(drawn) + len(pictures) < room:
                title = html.element("h3", escape(f"{series.title}, seed {cell.result['seed']}"))
                drawn += title + html.element("div", pictures, class_="figures")
                break
        else:
            left_out.append(series.title)
    if not dead:
        return html.element("h2", "Prototypes") + html.paragraph(
            "There is no prototypes.safetensors beside these runs, so prototypes cannot be drawn.", "quiet"
        )
    return "".join((html.element("h2", "Prototypes"), *_explained(dead, left_out), drawn))


def _explained(dead: Sequence[tuple[Series, DeadUnits]], left_out: Sequence[str]) -> Iterator[str]:
    yield html.paragraph(
        "Each row is a prototype at the end of training, each column a unit. Blue is positive, orange negative, blank "
        "is zero, grey is a class that a client does not hold (or that nobody has sent). L: a client's own; G: global. "
        "“Binary” shows where a value is greater than zero. A unit that is zero in a class's prototype is dead for it. "
        "Without CPS these lie elsewhere at every client, so the global prototypes fill up; with CPS all agree on them."
    )
    rows = [
        [series.title, _share(units.local), "–" if units.global_ is None else _share(units.global_)]
        for series, units in dead
    ]
    yield html.table(["zero entries", "local prototypes", "global prototypes"], rows)
    if left_out:
        yield html.paragraph(
            f"Not drawn, to keep this page small: {', '.join(left_out)}. `tinyproto report --figures DIR` draws all."
        )


def _share(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def _repeat(runs: Sequence[Run]) -> Iterator[str]:
    yield html.element("h2", "To repeat it")
    for run in runs:
        environment = run.environment
        where = ", ".join(
            str(environment[key]) for key in ("cpu", "device", "platform") if environment.get(key) is not None
        )
        version, commit = environment.get("tinyproto", "?"), environment.get("commit") or "unknown"
        yield html.paragraph(
            f"{run.name}: tinyproto {version}, commit {commit}, Python {environment.get('python', '?')}; {where}. "
            "Save the config below and run: tinyproto run config.yaml"
        )
        config = yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True)
        shown = html.element("summary", "Config") + html.element("pre", escape(config))
        versions = html.element("summary", "Environment") + html.element(
            "pre", escape(json.dumps(environment, indent=1))
        )
        yield html.element("details", shown) + html.element("details", versions)
    yield html.paragraph(f"Made by tinyproto {tinyproto.__version__}.", "quiet")
