"""The table of results for a paper: methods by rules, bytes and seeds, as LaTeX, Markdown or CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence

from tinyproto.engine.measure import RULES
from tinyproto.report.compare import SPREAD_WORDS, Comparison, Row, share_cell
from tinyproto.report.formats import TableFormat
from tinyproto.report.studies import Study
from tinyproto.report.words import size

Settings = Sequence[tuple[str, Comparison]]
"""The settings of a table with their names."""

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "|": r"$|$", "±": r"$\pm$",
    "†": r"$^\dagger$", "–": "--", "−": "$-$", "×": r"$\times$", "α": r"$\alpha$", "λ": r"$\lambda$", "μ": r"$\mu$",
}  # fmt: skip


def results_table(studies: Sequence[Study], format_: TableFormat) -> str:
    """Return the results of all settings in one table, with a column that names the setting if there are several."""
    found = [(study, setting) for study in studies for setting in study.settings]
    several = len({study.dataset for study in studies}) > 1
    settings = [
        (f"{study.dataset}: {setting.name}" if several else setting.name, setting.comparison)
        for study, setting in found
    ]
    return {TableFormat.LATEX: _latex, TableFormat.MARKDOWN: _markdown, TableFormat.CSV: _csv}[format_](settings)


def _latex(settings: Settings) -> str:
    header, *rows = _cells(settings, lambda words: "".join(_LATEX.get(one, one) for one in words), r"\textbf{%s}")
    numbers = len(header) - _names(settings)
    lines = [
        r"\begin{table}  % needs \usepackage{booktabs}",
        r"\centering\small",
        rf"\caption{{{''.join(_LATEX.get(one, one) for one in ' '.join(_notes(settings)))}}}",
        r"\smallskip",
        rf"\begin{{tabular}}{{@{{}}{'l' * _names(settings)}{'r' * numbers}@{{}}}}",
        r"\toprule",
        rf"{' & '.join(header)} \\",
        r"\midrule",
        *(rf"{' & '.join(row)} \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _markdown(settings: Settings) -> str:
    header, *rows = _cells(settings, lambda words: re.sub(r"([\\`*|<])", r"\\\1", words), "**%s**")
    aligned = ["---"] * _names(settings) + ["---:"] * (len(header) - _names(settings))
    table = "".join(f"| {' | '.join(line)} |\n" for line in (header, aligned, *rows))
    return f"{table}\n{' '.join(_notes(settings))}\n"


def _csv(settings: Settings) -> str:
    """Return numbers for programs: accuracies as fractions, an unknown value as an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    statistics = [f"{rule}_{name}" for rule in RULES for name in ("mean", "deviation")]
    writer.writerow(["setting", "method", *statistics, "payload_bytes_per_round", "seeds", "note"])
    for name, comparison in settings:
        for row in comparison.rows:
            spreads = [row.accuracy[rule] for rule in RULES]
            values = [value for one in spreads for value in ((one.mean, one.deviation) if one else (None, None))]
            rounded = [None if value is None else float(f"{value:.6g}") for value in [*values, row.payload_bytes]]
            note = f"fewer seeds ({len(row.seeds)} of {comparison.most_seeds})" if comparison.has_fewer(row) else ""
            writer.writerow([name, row.title, *rounded, len(row.seeds), note])
    return text.getvalue()


def _names(settings: Settings) -> int:
    """Return the number of columns of words, which come before those of numbers."""
    return 2 if len(settings) > 1 else 1


def _cells(settings: Settings, escaped: Callable[[str], str], bold: str) -> list[list[str]]:
    """Return the header and the rows; a rule that applies to no method has no column."""
    rules = [rule for rule in RULES if any(row.accuracy[rule] for _, one in settings for row in one.rows)]
    header = ["method", *rules, "payload", "seeds"]
    lines = [["setting", *header] if len(settings) > 1 else header]
    for name, comparison in settings:
        best = {rule: _best(comparison, rule) for rule in rules}
        for row in comparison.rows:
            cells = [escaped(cell) for cell in (comparison.marked(row), *(share_cell(row.accuracy[r]) for r in rules))]
            for column, rule in enumerate(rules, 1):
                mean, _, rest = cells[column].partition(" ")
                if _mean(row, rule) == best[rule]:
                    cells[column] = f"{bold % mean} {rest}".rstrip()
            cells += [escaped(size(row.payload_bytes)), str(len(row.seeds))]
            lines.append([escaped(name), *cells] if len(settings) > 1 else cells)
    return lines


def _best(comparison: Comparison, rule: str) -> str:
    """Return the highest mean as it is written; empty if there is nothing to compare."""
    known = [_mean(row, rule) for row in comparison.rows if row.accuracy[rule]]
    return max(known, key=float) if len(known) > 1 else "-"


def _mean(row: Row, rule: str) -> str:
    return share_cell(row.accuracy[rule]).partition(" ")[0]


def _notes(settings: Settings) -> list[str]:
    """Return what the numbers are, what is bold, and which rows have fewer seeds."""
    comparisons = [comparison for _, comparison in settings]
    statistics = " or ".join(dict.fromkeys(one.statistic_words for one in comparisons))
    spread = f", {SPREAD_WORDS}" if any(one.has_deviations for one in comparisons) else ""
    notes = [
        f"Accuracy in %, {statistics}{spread}: by own head, nearest global and nearest local prototype; bold is the "
        f"highest{' in a setting' if len(settings) > 1 else ''}. Payload: bytes per round, up and down, all clients.",
    ]
    return [*notes, *dict.fromkeys(one.seeds_note for one in comparisons if one.seeds_note)]
