"""The report: one HTML file that needs nothing beside it, the verdict first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib import resources

import yaml

import tinyproto
from tinyproto.report import html
from tinyproto.report.columns import accuracy_cells, columns, cost_cells, cost_columns, share_cell
from tinyproto.report.compare import RULE_NAMES, spread
from tinyproto.report.figures.clients import accuracy_per_client, who_holds_what
from tinyproto.report.figures.figure import Figure
from tinyproto.report.figures.prototypes import ANY, DeadUnits, Shown, dead_units, prototype_figures
from tinyproto.report.figures.rounds import accuracy_over_rounds
from tinyproto.report.figures.traffic import accuracy_over_bytes
from tinyproto.report.networks import network_rows
from tinyproto.report.runs import Run
from tinyproto.report.studies import Series, Setting, Study, arrange
from tinyproto.report.words import counted, derived_sentence, left_out_lines
from tinyproto.tracking.run_folder import how_to_resume

MOST_BYTES = 2_900_000
"""Of the whole page; prototypes that would not fit are left out, and the page says so."""


MOST_FIGURES_BYTES, MOST_DATA_BYTES = 2_600_000, 1_700_000
"""Up to where figures on accuracy are drawn, and up to where they bring their data."""

FEW_SETTINGS = 4
"""So many stand side by side in a table."""


@dataclass(frozen=True)
class Report:
    """A page, the studies it is about, and the figures on it."""

    html: str
    studies: Sequence[Study]
    figures: Sequence[Figure]


@dataclass(frozen=True)
class Chapter:
    """HTML and figures that an extension puts before the studies."""

    html: str
    figures: Sequence[Figure] = ()


def make_report(
    runs: Sequence[Run], shown: Shown = ANY, passed_over: Sequence[str] = (), chapter: Chapter | None = None
) -> Report:
    """Show all runs on one page, with a sentence about each that could not be read."""
    studies = arrange(runs)
    several = len(studies) > 1
    prefixes = [f"study{number}-" if several else "" for number in range(len(studies))]
    figures: list[Figure] = [] if chapter is None else [*chapter.figures]
    body, end = "".join(_head(runs, studies, passed_over)), "".join(to_repeat(runs))
    if chapter is not None:
        body += chapter.html
    for study, prefix in zip(studies, prefixes, strict=True):
        drawn = list(_overview(study, prefix))
        figures += drawn
        taken = len((body + end).encode())
        body += "".join(_study(study, drawn, taken, titled=several or chapter is not None))
    without = body
    for study, prefix in zip(studies, prefixes, strict=True):
        heading = html.element("h2", escape(f"Prototypes: {_title(study)}" if several else "Prototypes"))
        room = MOST_BYTES - len((body + heading + end).encode())
        content = _prototypes(study, prefix, shown, figures, room)
        body += heading + content if content else ""
    if body == without:
        body += html.element("h2", "Prototypes") + html.paragraph(
            "There is no prototypes.safetensors beside these runs, so prototypes cannot be drawn.", "quiet"
        )
    return Report(_page(f"tinyproto report: {_named(runs)}", body + end), studies, figures)


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


def _named(runs: Sequence[Run]) -> str:
    """By name, cells of one experiment by that; many are counted."""
    groups = dict.fromkeys(run.group for run in runs)
    if len(groups) > FEW_RUNS:
        return f"{len(runs)} runs" if len(groups) == len(runs) else f"{len(runs)} runs of {len(groups)} experiments"
    return ", ".join(groups) if len(runs) <= FEW_RUNS else f"{', '.join(groups)} ({len(runs)} runs)"


def _head(runs: Sequence[Run], studies: Sequence[Study], passed_over: Sequence[str]) -> Iterator[str]:
    yield html.element("h1", escape(_named(runs)))
    if passed_over:
        yield html.paragraph("Not in this report:") + html.bullets(passed_over)
    if len(studies) > 1:
        datasets = ", ".join(dict.fromkeys(study.dataset for study in studies))
        yield html.paragraph(
            f"These runs are {len(studies)} studies on different samples or clients ({datasets}); accuracies of "
            "different studies do not speak of the same thing, so each has its own table."
        )
    for run in runs:
        if run.unfinished:
            yield html.paragraph(
                f"{run.name} is not finished: {counted(run.unfinished, 'cell')} of its grid "
                f"{'is' if run.unfinished == 1 else 'are'} not in this report. "
                f"Interrupted cells resume with: {how_to_resume(run.folder)}"
            )


def _overview(study: Study, prefix: str) -> Iterator[Figure]:
    """The figures on accuracy, bytes and clients, part by part where there are more curves than colours."""
    panels = study.panels()
    for number, panel in enumerate(panels):
        own = list(_accuracy_figures(panel, f"{prefix}part{number}-" if len(panels) > 1 else prefix))
        yield from own if len(panels) == 1 else (replace(one, title=f"{one.title}: {panel.name}") for one in own)
    held = who_holds_what(study, f"{prefix}holdings")
    if held is not None:
        yield held


def _accuracy_figures(study: Study, prefix: str) -> Iterator[Figure]:
    """The headline rule's curves first."""
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


def _study(study: Study, figures: Sequence[Figure], taken: int, *, titled: bool) -> Iterator[str]:
    several = len(study.settings) > 1
    if titled:
        yield html.element("h2", escape(_title(study)))
    for setting in study.settings:
        yield from _verdict(setting, titled=several)
    if several:
        yield html.element("h3", "What differs between the settings")
        yield _differences(study)
    yield html.element("h2", "Numbers")
    for setting in study.settings:
        if several:
            yield html.element("h3", escape(setting.name))
        yield _table(setting) + _derived(setting) + _left_out(setting) + _by_network(setting)
    yield html.element("h2", "Figures")
    yield from _drawn(figures, taken)
    if not any(run.federation for run in study.runs):
        yield html.paragraph("Who holds what was not recorded by this run (no federation.json).", "quiet")


def _title(study: Study) -> str:
    return f"{study.dataset}: {_named(study.runs)}"


def _differences(study: Study) -> str:
    """A row per key beside few settings, a row per setting where they are many."""
    found = study.differences()
    names = [setting.name for setting in study.settings]
    if len(names) <= FEW_SETTINGS:
        return html.table(["key", *names], [[key, *map(str, values)] for key, values in found.items()])
    rows = [[name, *(str(values[index]) for values in found.values())] for index, name in enumerate(names)]
    return html.table(["setting", *found], rows)


def _drawn(figures: Sequence[Figure], taken: int) -> Iterator[str]:
    """As many pictures as have room on a page of which so much is taken, and the data of as many of them."""
    written: list[str] = []
    left_out, bare = [], []
    for figure in figures:
        whole, picture = (html.figure(figure, with_data=with_data) for with_data in (True, False))
        if taken + len(whole.encode()) <= MOST_DATA_BYTES:
            written.append(whole)
        elif taken + len(picture.encode()) <= MOST_FIGURES_BYTES:
            written.append(picture)
            bare.append(figure.title)
        else:
            left_out.append(figure.title)
            continue
        taken += len(written[-1].encode())
    yield html.element("div", "".join(written), class_="figures")
    yield from _shortened(left_out, bare)


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
        costs = cost_cells(row)
        rows.append([row.title, *accuracy_cells(comparison, row), *(costs[name] for name in cost_columns(comparison))])
        strong.append(1 + list(RULE_NAMES).index(comparison.headline_rule(row)))
    seeds = max(len(series.cells) for series in setting.series)
    caption = (
        f"Accuracy in %, {comparison.statistic_words}"
        f"{', mean ± standard deviation over seeds' if seeds > 1 else ''}: by own head, nearest global and nearest "
        "local prototype; bold is the number a method is read by. Δ: points over what Local reaches alone. Parameters "
        "and bytes a round are measured, up and down, all clients; “formula” is the paper's Table 2."
        f"{' “socket” is what went over the network, polling included.' if 'socket' in names else ''}"
    )
    return html.table(["algorithm", *names], rows, strong) + html.paragraph(caption, "quiet")


def _derived(setting: Setting) -> str:
    """Nothing where all hyper-parameters were given."""
    sentence = derived_sentence(setting.comparison)
    return html.paragraph(sentence) if sentence else ""


def _left_out(setting: Setting) -> str:
    """Say who was left out when and why; nothing where every answer was taken in."""
    lines = [
        line
        for series in setting.series
        for cell in series.cells
        for line in left_out_lines(
            f"{series.name}, seed {cell.result['seed']}",
            cell.run.rounds[cell.result["label"], cell.result["seed"]],
        )
    ]
    told = "Clients left out of rounds; each kept the state it had before, by which it was evaluated."
    return html.paragraph(told) + html.bullets(lines) if lines else ""


def _by_network(setting: Setting) -> str:
    """Nothing where all clients have one network."""
    rows = network_rows(setting)
    if not rows:
        return ""
    compared = any(gain is not None for row in rows for gain in row.over_local.values())
    over = " In parentheses, points over what the same network reaches with Local." if compared else ""
    caption = (
        "The same by network: correct of the test samples of all clients that have it, in %, where the bold number "
        f"above is read.{over}"
    )
    table = html.table(["algorithm", *rows[0].accuracy], [row.words() for row in rows])
    return html.paragraph(caption) + table


def _prototypes(study: Study, prefix: str, shown: Shown, figures: list[Figure], room: int) -> str:
    """Shares of zeros over all seeds, and heatmaps of every method's first; nothing where no run kept prototypes."""
    dead: list[tuple[Series, list[DeadUnits]]] = []
    drawn: list[tuple[str, list[Figure]]] = []
    for number, (_, series) in enumerate(study.series):
        found = [cell.run.prototypes(cell.result["label"], cell.result["seed"]) for cell in series.cells]
        if found[0] is None:
            continue
        dead.append((series, [dead_units(values) for values in found if values is not None]))
        own = list(prototype_figures(series, found[0], shown, f"{prefix}prototypes-{number}"))
        figures += own
        drawn.append((f"{series.title}, seed {series.seeds[0]}", own))
    if not dead:
        return ""
    heatmaps = _that_fit(drawn, room)
    left_out = [title for index, (title, _) in enumerate(drawn) if index not in heatmaps]
    bare = [drawn[index][0] for index, content in heatmaps.items() if "download=" not in content]
    return "".join((*_explained(dead), *_shortened(left_out, bare), *heatmaps.values()))


def _that_fit(drawn: Sequence[tuple[str, Sequence[Figure]]], room: int) -> dict[int, str]:
    """As many pictures as there is room for, then the data of as many of them; by place in the sequence."""
    written: dict[int, str] = {}
    for with_data in (False, True):
        for index, (title, own) in enumerate(drawn):
            pictures = "".join(html.figure(figure, with_data=with_data) for figure in own)
            content = html.element("h3", escape(title)) + html.element("div", pictures, class_="figures")
            more = len(content.encode()) - len(written.get(index, "").encode())
            if more < room and (index in written or not with_data):
                written[index] = content
                room -= more
    return written


def _explained(dead: Sequence[tuple[Series, Sequence[DeadUnits]]]) -> Iterator[str]:
    yield html.paragraph(
        "Each row is a prototype at the end of training, each column a unit. Blue is positive, orange negative, blank "
        "is zero, grey is a class that a client does not hold (or that nobody has sent). L: a client's own; G: global. "
        "“Binary” shows where a value is greater than zero. A unit that is zero in a class's prototype is dead for it. "
        "Which units are dead differs between clients, so an average over clients has few zeros; with CPS a class's "
        "global prototype holds the units that all have agreed to send for it, and zero elsewhere."
    )
    rows = [
        [
            series.title,
            share_cell(spread([one.local for one in units])),
            share_cell(spread([one.global_ for one in units])),
        ]
        for series, units in dead
    ]
    yield html.table(["dead units, %", "local prototypes", "global prototypes"], rows)
    yield html.paragraph("Shares of zero entries, over all classes that are there, clients and seeds.", "quiet")


def _shortened(left_out: Sequence[str], bare: Sequence[str]) -> Iterator[str]:
    notes = {"Not drawn": left_out, "Drawn without their data": bare}
    said = "; ".join(f"{note}: {', '.join(titles)}" for note, titles in notes.items() if titles)
    if said:
        yield html.paragraph(
            f"To keep this page small, not all is on it. {said}. `tinyproto report RUN --figures DIR` writes it all."
        )


FEW_RUNS = 6
"""So many are spoken of one by one."""


def to_repeat(runs: Sequence[Run]) -> Iterator[str]:
    """Config, versions, hardware and commit of every run, once for those that are alike."""
    yield html.element("h2", "To repeat it")
    for alike in _alike(runs):
        run, environment = alike[0], alike[0].environment
        where = ", ".join(
            str(environment[key]) for key in ("cpu", "device", "platform") if environment.get(key) is not None
        )
        version, commit = environment.get("tinyproto", "?"), environment.get("commit") or "unknown"
        rest = f" and {len(alike) - 1} more, which differ from it in algorithm and seed" if len(alike) > 1 else ""
        yield html.paragraph(
            f"{run.name}{rest}: tinyproto {version}, commit {commit}, Python {environment.get('python', '?')}; "
            f"{where}. "
            "Save the config below and run: tinyproto run config.yaml"
        )
        config = yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True)
        shown = html.element("summary", "Config") + html.element("pre", escape(config))
        versions = html.element("summary", "Environment") + html.element(
            "pre", escape(json.dumps(environment, indent=1))
        )
        yield html.element("details", shown) + html.element("details", versions)
    yield html.paragraph(f"Made by tinyproto {tinyproto.__version__}.", "quiet")


def _alike(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs of one group on one machine that differ in algorithms and seeds alone; few stand for themselves."""
    if len(runs) <= FEW_RUNS:
        return [[run] for run in runs]
    groups: dict[str, list[Run]] = {}
    for run in runs:
        config = {key: value for key, value in run.config.items() if key not in ("algorithms", "seeds")}
        groups.setdefault(json.dumps([run.group, config, run.environment], sort_keys=True), []).append(run)
    return list(groups.values())
