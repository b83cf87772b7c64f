"""The report page: one self-contained HTML file that begins with the verdict."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from importlib import resources
from typing import Any

import yaml

import tinyproto
from tinyproto.config.load import stated
from tinyproto.report import html
from tinyproto.report.compare import RULE_NAMES, SPREAD_WORDS, share_cell, spread, table_cells
from tinyproto.report.federation import how_to_repeat, known_facts, unknown_facts
from tinyproto.report.figures import Figure
from tinyproto.report.figures.clients import accuracy_per_client, who_holds_what
from tinyproto.report.figures.curves import accuracy_over_bytes, accuracy_over_rounds
from tinyproto.report.figures.prototypes import ANY, DeadUnits, Shown, dead_units, prototype_figures
from tinyproto.report.networks import network_rows
from tinyproto.report.runs import Run
from tinyproto.report.studies import Series, Setting, Study, arrange, grouped
from tinyproto.report.terms import explanations
from tinyproto.report.verdict import derived_sentence, left_out_lines
from tinyproto.report.words import counted
from tinyproto.tracking.run_folder import how_to_resume

FEW_SETTINGS = 4
"""Settings that are shown side by side in a table."""

FEW_RUNS = 6
"""Runs that are named one by one."""


SIMULATE = "Save the config below as config.yaml and run: tinyproto run config.yaml"


@dataclass(frozen=True)
class Chapter:
    """A chapter that an extension puts before the studies, with sentences for the terminal and values for --json."""

    html: str
    figures: Sequence[Figure] = ()
    verdict: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    runs: Sequence[Run] | None = None  # those that the studies average; None: all


@dataclass(frozen=True)
class Report:
    """A page, its studies and its figures."""

    html: str
    studies: Sequence[Study]
    figures: Sequence[Figure]


def make_report(
    runs: Sequence[Run], shown: Shown = ANY, passed_over: Sequence[str] = (), chapter: Chapter | None = None
) -> Report:
    """Show all runs on one page; `passed_over` has a sentence about each run that could not be read."""
    studies = arrange(runs if chapter is None or chapter.runs is None else chapter.runs)
    several = len(studies) > 1
    prefixes = [f"study{number}-" if several else "" for number in range(len(studies))]
    figures: list[Figure] = [] if chapter is None else [*chapter.figures]
    body = "".join(_head(runs, studies, passed_over)) + ("" if chapter is None else chapter.html)
    for study, prefix in zip(studies, prefixes, strict=True):
        drawn = list(_overview(study, prefix))
        figures += drawn
        body += "".join(_study(study, drawn, titled=several or chapter is not None))
    without = body
    for study, prefix in zip(studies, prefixes, strict=True):
        heading = f"Prototypes: {_title(study)}" if several else "Prototypes"
        body += _prototypes(study, heading, prefix, shown, figures)
    if body == without:
        body += html.element("h2", "Prototypes") + html.paragraph(
            "A coordinator stores no prototypes to draw."
            if all(run.real for run in runs)
            else "These runs have no prototypes.safetensors, so no prototypes are drawn.",
            "quiet",
        )
    body += "".join(_how_to_reproduce(runs))
    return Report(document(f"tinyproto report: {_named(runs)}", body), studies, figures)


def figure_style() -> str:
    """Return the stylesheet of figures, for a picture in a file of its own."""
    return _asset("figure.css")


def document(title: str, body: str, live: str = "") -> str:
    """Return a page; its policy tells the browser to fetch nothing or, for a `live` script, only from its server."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    policy += "; connect-src 'self'" if live else ""
    icon = '<link rel="icon" href="data:,">' if live else ""  # a browser would ask the server for one
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{escape(title)}</title><style>{_asset('page.css')}</style>"
        f'<style id="figure-style">{figure_style()}</style>'
    )
    scripts = "".join(f"<script>{text}</script>" for text in (_asset("page.js"), live) if text)
    content = f"{body}{explanations(body)}{scripts}"
    return f'<!doctype html>\n<html lang="en"><head>{head}{icon}</head><body>{content}</body></html>\n'


def _asset(name: str) -> str:
    return (resources.files("tinyproto.report") / name).read_text(encoding="utf-8")


def _named(runs: Sequence[Run]) -> str:
    """Name few runs, or the experiments that they are cells of; count many."""
    groups = dict.fromkeys(run.group for run in runs)
    if len(groups) > FEW_RUNS:
        return f"{len(runs)} runs" if len(groups) == len(runs) else f"{len(runs)} runs of {len(groups)} experiments"
    return ", ".join(groups) if len(runs) <= FEW_RUNS else f"{', '.join(groups)} ({len(runs)} runs)"


def _title(study: Study) -> str:
    return f"{study.dataset}: {_named(study.runs)}"


def _head(runs: Sequence[Run], studies: Sequence[Study], passed_over: Sequence[str]) -> Iterator[str]:
    yield html.element("h1", escape(_named(runs)))
    if passed_over:
        yield html.paragraph("Not in this report:") + html.bullets(passed_over)
    if len(studies) > 1:
        datasets = ", ".join(dict.fromkeys(study.dataset for study in studies))
        yield html.paragraph(
            f"These runs form {len(studies)} studies on different samples or clients ({datasets}). Accuracies of "
            "different studies cannot be compared, so each study has its own table."
        )
    for run in runs:
        if run.unfinished:
            yield html.paragraph(
                f"{run.name} is incomplete: {counted(run.unfinished, 'cell')} of its grid "
                f"{'is' if run.unfinished == 1 else 'are'} missing from this report. "
                f"Resume interrupted cells with: {how_to_resume(run.folder)}"
            )


def _overview(study: Study, prefix: str) -> Iterator[Figure]:
    """Yield the figures on accuracy, bytes and clients, in parts if there are more curves than colours."""
    panels = study.panels()
    for number, panel in enumerate(panels):
        if len(panels) == 1:
            yield from _accuracy_figures(panel, prefix)
        else:
            for figure in _accuracy_figures(panel, f"{prefix}part{number}-"):
                yield replace(figure, title=f"{figure.title}: {panel.name}")
    held = who_holds_what(study, f"{prefix}holdings")
    if held is not None:
        yield held


def _accuracy_figures(study: Study, prefix: str) -> Iterator[Figure]:
    """Yield the figures with the headline rule's curves first."""
    headline = study.settings[0].comparison.rule
    rules = [headline, *(rule for rule in RULE_NAMES if rule != headline)]
    over_rounds = {rule: accuracy_over_rounds(study, rule, f"{prefix}rounds-{rule}") for rule in rules}
    found = [
        over_rounds[headline],
        accuracy_over_bytes(study, f"{prefix}bytes"),
        *(over_rounds[rule] for rule in rules[1:]),
        accuracy_per_client(study, f"{prefix}clients"),
    ]
    yield from (figure for figure in found if figure is not None)


def _study(study: Study, figures: Sequence[Figure], *, titled: bool) -> Iterator[str]:
    several = len(study.settings) > 1
    if titled:
        yield html.element("h2", escape(_title(study)))
    for setting in study.settings:
        yield from _verdict(setting, titled=several)
    if several:
        yield html.element("h3", "Differences between the settings")
        yield _differences(study)
    yield html.element("h2", "Numbers")
    for setting in study.settings:
        if several:
            yield html.element("h3", escape(setting.name))
        yield _table(setting) + _notes(setting) + _by_network(setting)
    yield html.element("h2", "Figures")
    yield html.element("div", "".join(map(html.figure, figures)), class_="figures")
    if all(run.real for run in study.runs):
        yield html.paragraph("Who holds what is not drawn: a coordinator does not see the clients' samples.", "quiet")
    elif not any(run.federation for run in study.runs):
        yield html.paragraph("Who holds what is not drawn: there is no federation.json beside these runs.", "quiet")


def _verdict(setting: Setting, *, titled: bool) -> Iterator[str]:
    run, result = setting.runs[0], setting.runs[0].results[0]
    seeds = sorted({seed for series in setting.series for seed in series.seeds})
    about = known_facts(result) if run.real else f"{result['dataset']}, {counted(result['num_clients'], 'client')}"
    facts = (
        f"{about}, {counted(result['rounds'], 'round')}, "
        f"{counted(len(seeds), 'seed')} ({', '.join(map(str, seeds))}), preset {result['preset']}"
        f"{'' if run.real else ', networks ' + ', '.join(map(str, run.config['models']))}"
    )
    if titled:
        yield html.element("h2", escape(setting.name))
    yield html.paragraph(facts, "facts")
    if run.real:
        yield html.paragraph(unknown_facts(result), "quiet")
    yield html.element("section", html.bullets(setting.verdict()), class_="verdict", aria_label="Verdict")


def _differences(study: Study) -> str:
    """Return a table with a row per setting and a column per key."""
    found = study.differences()
    names = [setting.name for setting in study.settings]
    rows = [[name, *(str(values[index]) for values in found.values())] for index, name in enumerate(names)]
    return html.table(["setting", *found], rows)


def _table(setting: Setting) -> str:
    comparison = setting.comparison
    cells = [table_cells(comparison, row) for row in comparison.rows]
    rows = [[comparison.marked(row), *found.values()] for row, found in zip(comparison.rows, cells, strict=True)]
    strong = [1 + list(RULE_NAMES).index(comparison.headline_rule(row)) for row in comparison.rows]
    caption = (
        f"Accuracy in %, {comparison.statistic_words}{f', {SPREAD_WORDS}' if comparison.has_deviations else ''}: by "
        "own head, nearest global and nearest local prototype. Bold is the number a method is read by."
        f"{' Δ is in points over Local by its better rule.' if comparison.baseline else ''} Parameters and bytes per "
        "round are measured, up and down, for all clients"
        f"{'; “formula” is the paper’s Table 2' if 'formula' in cells[0] else ''}."
        f"{' “socket” is the traffic on the network, with encryption.' if 'socket' in cells[0] else ''}"
        f" {comparison.seeds_note}".rstrip()
    )
    return html.table(["algorithm", *cells[0]], rows, strong) + html.paragraph(caption, "quiet")


def _notes(setting: Setting) -> str:
    """Return what methods derived and which clients were left out; empty if there is neither."""
    derived = derived_sentence(setting.comparison)
    lines = [
        line
        for series in setting.series
        for cell in series.cells
        for line in left_out_lines(f"{series.name}, seed {cell.result['seed']}", cell.rounds)
    ]
    left_out = "Clients left out of rounds. Each kept its previous state and was evaluated with it."
    return (html.paragraph(derived) if derived else "") + (
        html.paragraph(left_out) + html.bullets(lines) if lines else ""
    )


def _by_network(setting: Setting) -> str:
    """Return a table of accuracy by network; empty if all clients have one network."""
    rows = network_rows(setting)
    if not rows:
        return ""
    compared = any(gain is not None for row in rows for gain in row.over_local.values())
    caption = (
        "The same by network: accuracy in % over the test samples of all clients with that network, by the rule and "
        f"statistic of the bold number above{f', {SPREAD_WORDS}' if setting.comparison.has_deviations else ''}."
        f"{' In parentheses: points over the same network trained by Local.' if compared else ''}"
    )
    table = html.table(["algorithm", *rows[0].accuracy], [row.words() for row in rows])
    return html.paragraph(caption) + table


def _prototypes(study: Study, heading: str, prefix: str, shown: Shown, figures: list[Figure]) -> str:
    """Return the shares of zeros over all seeds and heatmaps of each first seed; empty if no run kept prototypes.

    Heatmaps come without their data, which would be most of the page; the run folder has it.
    """
    dead: list[tuple[Series, list[DeadUnits]]] = []
    content = ""
    for number, (_, series) in enumerate(study.series):
        found = [cell.run.prototypes(cell.result["label"], cell.result["seed"]) for cell in series.cells]
        if found[0] is None:
            continue
        dead.append((series, [dead_units(values) for values in found if values is not None]))
        drawn = list(prototype_figures(series, found[0], shown, f"{prefix}prototypes-{number}"))
        figures += drawn
        pictures = "".join(html.figure(figure, with_data=False) for figure in drawn)
        shown_as = f"Show the prototypes of {series.title}, seed {series.seeds[0]}"
        content += html.folded(shown_as, html.element("div", pictures, class_="figures"), "asked")
    return html.element("h2", escape(heading)) + _dead_units(dead) + content if dead else ""


def _dead_units(dead: Sequence[tuple[Series, Sequence[DeadUnits]]]) -> str:
    explanation = html.paragraph(
        "Each row is a prototype at the end of training, each column a unit. Blue is positive, orange negative, blank "
        "zero; grey is a class that a client does not hold, or that no client has sent. L is a client's local "
        "prototype, G the global one. “Binary” shows where a value is greater than zero. A unit that is zero in a "
        "class's prototype is dead for that class. Dead units differ between clients, so an average over clients has "
        "few zeros. With CPS, a class's global prototype has values only in the units that all clients send for it."
    )
    rows = [
        [
            series.title,
            share_cell(spread([one.local for one in units])),
            share_cell(spread([one.global_ for one in units])),
        ]
        for series, units in dead
    ]
    deviations = f"; {SPREAD_WORDS}" if any(len(units) > 1 for _, units in dead) else ""
    return (
        explanation
        + html.table(["dead units, %", "local prototypes", "global prototypes"], rows)
        + html.paragraph(f"Shares of zero entries over all classes and clients with a prototype{deviations}.", "quiet")
    )


def _how_to_reproduce(runs: Sequence[Run]) -> Iterator[str]:
    """Yield config, versions, hardware and commit of every run, once for cells of one experiment on one machine."""
    yield html.element("h2", "Reproduce")
    fixed = {"algorithms": None, "seeds": None}
    for alike in grouped(runs, lambda run: [run.group, {**run.config, **fixed}, run.environment]):
        run, environment = alike[0], alike[0].environment
        where = ", ".join(
            str(environment[key]) for key in ("cpu", "device", "platform") if environment.get(key) is not None
        )
        version, commit = environment.get("tinyproto", "?"), environment.get("commit") or "unknown"
        rest = f" and {len(alike) - 1} more that differ only in algorithm and seed" if len(alike) > 1 else ""
        yield html.paragraph(
            f"{run.name}{rest}: tinyproto {version}, commit {commit}, Python {environment.get('python', '?')}; "
            f"{where}. {how_to_repeat(run.results[0], run.config) if run.real else SIMULATE}"
        )
        values = stated(run.config) if run.real else dict(run.config)
        config = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
        yield html.folded("Config", html.element("pre", escape(config)))
        yield html.folded("Environment", html.element("pre", escape(json.dumps(environment, indent=1))))
    yield html.paragraph(f"Made by tinyproto {tinyproto.__version__}.", "quiet")
