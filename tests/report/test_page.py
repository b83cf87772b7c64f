"""The page: its content, its safety and its size."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from support_paper import PaperRecord
from support_report import FIVE, Made, without_terms
from tinyproto.report.figures.prototypes import Shown
from tinyproto.report.page import Report, make_report
from tinyproto.report.runs import find_runs, read_runs

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>&\"'"


class Parsed(HTMLParser):
    """The elements of a page with their attributes, and its words by element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "image"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag  # every element is closed, and in order

    def handle_data(self, data: str) -> None:
        self.words.setdefault(self.open[-1] if self.open else "", []).append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def report(folder: Path, *made: Made) -> Report:
    return make_report(read_runs([one.write(folder / f"run{index}") for index, one in enumerate(made)]))


def test_the_verdict_comes_first_then_the_table_then_the_figures_then_the_prototypes(tmp_path: Path) -> None:
    page = report(tmp_path, Made()).html
    marks = [page.index(mark) for mark in ('aria-label="Verdict"', "<table>", "<figure", ">Prototypes<", ">Reproduce<")]
    assert marks == sorted(marks)
    assert re.search("nearest global prototype, last round: FedProto 83.3 %", without_terms(page))


def test_the_table_has_a_row_per_method_and_stresses_the_number_it_is_read_by(tmp_path: Path) -> None:
    page = report(tmp_path, Made()).html
    table = page[page.index("<table>") : page.index("</table>")]
    assert re.findall(r'scope="row">([^<]*)<', table) == ["Local", "FedProto"]
    assert re.findall(r'class="headline">([^<]*)<', table) == ["83.3", "83.3"]
    assert "±" not in table


def test_several_seeds_show_their_spread(tmp_path: Path) -> None:
    page = without_terms(report(tmp_path, Made(seeds=(0, 1))).html)
    assert "85.0 ± 2.4" in page  # 25/30 and 26/30, with n − 1
    captions = re.findall(r"<p[^>]*>([^<]*± sample standard deviation \(n − 1\)[^<]*)</p>", page)
    assert len(captions) == 2  # numbers and dead units
    assert "±" not in report(tmp_path / "one", Made()).html


def test_nothing_on_the_page_comes_from_elsewhere_and_the_browser_is_told_so(tmp_path: Path) -> None:
    parsed = Parsed(report(tmp_path, Made()).html)
    (policy,) = [
        meta["content"] for meta in parsed.named("meta") if meta.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    addresses = [
        value or "" for _, attributes in parsed.elements for key, value in attributes.items() if key in ("href", "src")
    ]
    assert len(addresses) > 10
    assert [address[:40] for address in addresses if not address.startswith("data:")] == []
    assert not parsed.named("link")
    assert "url(" not in "".join(parsed.words["style"])
    assert "@import" not in "".join(parsed.words["style"])


def test_every_figure_has_a_name_words_data_and_a_place_of_its_own(tmp_path: Path) -> None:
    made = report(tmp_path, Made(seeds=(0, 1)))
    parsed = Parsed(made.html)
    slugs = [figure["id"] for figure in parsed.named("figure")]
    assert slugs == [figure.slug for figure in made.figures]
    assert len(set(slugs)) == len(slugs) == 11  # three rules, bytes, clients, holdings, 2 + 3 of prototypes
    pictures = parsed.named("svg")
    assert len(pictures) == len(slugs)
    assert all(picture["role"] == "img" and picture["aria-label"] for picture in pictures)
    with_data = [f"{slug}.csv" for slug in slugs if not str(slug).startswith("prototypes")]
    assert [link["download"] for link in parsed.named("a")] == with_data  # a heatmap's data is in the run folder
    assert all(figure.alternative in without_terms(made.html).replace("&#x27;", "'") for figure in made.figures)


def test_each_term_is_explained_where_it_stands_and_once(tmp_path: Path) -> None:
    parsed = Parsed(report(tmp_path, Made(algorithms=FIVE, derived=derived_of_two)).html)
    asked = {button["popovertarget"] for button in parsed.named("button") if button.get("class") == "term"}
    explained = [one["id"] for one in parsed.named("p") if "popover" in one]
    assert len(explained) == len(asked)
    assert set(explained) == asked
    assert {"preset sound", "formula", "μ", "CPS", "payload", "Pareto front"} <= set(parsed.words["button"])


def test_prototypes_are_folded_until_asked_for(tmp_path: Path) -> None:
    page = report(tmp_path, Made()).html
    folded = re.findall(
        r'<details class="asked"><summary>([^<]*)</summary><div class="figures"><figure id="([^"]*)"', page
    )
    assert folded == [
        ("Show the prototypes of Local, seed 0", "prototypes-0-class"),
        ("Show the prototypes of FedProto, seed 0", "prototypes-1-class"),
    ]


def test_names_that_look_like_html_stay_words(tmp_path: Path) -> None:
    entries = ({"name": "fedproto", "label": HOSTILE, "note": HOSTILE},)
    plain = Parsed(report(tmp_path / "plain", Made(algorithms=({"name": "fedproto", "label": "plain"},))).html)
    made = report(tmp_path / "hostile", Made(name=HOSTILE, algorithms=entries, dataset=HOSTILE))
    hostile = Parsed(made.html)
    assert len(hostile.named("script")) == 1
    assert hostile.named("img") == []
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in plain.elements]
    assert not [key for _, attributes in hostile.elements for key in attributes if key.startswith("on")]
    assert "".join(hostile.words["h1"]) == HOSTILE
    assert "".join(hostile.words["title"]).startswith(f"tinyproto report: {HOSTILE}")


def test_the_same_runs_give_the_same_bytes_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [Made(seeds=(0, 1), rounds=200).write(tmp_path / "a"), Made(name="b", clients=4).write(tmp_path / "b")]
    first = make_report(read_runs(folders))
    assert ".csv.gz" in first.html  # packed data could bring a date along
    monkeypatch.setattr("time.time", lambda: 1e9)
    assert make_report(read_runs(folders)) == first


def test_what_methods_derived_stands_below_the_table(tmp_path: Path) -> None:
    made = Made(algorithms=FIVE, seeds=(0, 1), derived=derived_of_two)
    page = without_terms(report(tmp_path, made).html)
    sentence = "<p>Derived: TinyProto-FP μ = 0.01 to 0.015; TinyProto-FT s = 42, μ = 0.02.</p>"
    assert page.index("</table>") < page.index(sentence) < page.index(">Figures<")


def derived_of_two(label: str, seed: int) -> dict[str, int | float]:
    found: dict[str, dict[str, int | float]] = {
        "tinyproto_fp": {"global_scale": 0.01 + 0.005 * seed}, "tinyproto_ft": {"cps_dim": 42, "global_scale": 0.02}
    }  # fmt: skip
    return found.get(label, {})


def test_a_record_that_does_not_say_what_was_derived_is_shown_without_it(tmp_path: Path) -> None:
    assert "Derived:" not in report(tmp_path / "old", Made(algorithms=FIVE, derived=lambda label, seed: None)).html
    both = Made(
        algorithms=FIVE, seeds=(0, 1), derived=lambda label, seed: derived_of_two(label, seed) if seed else None
    )
    page = without_terms(report(tmp_path / "b", both).html)
    assert "<p>Derived: TinyProto-FP μ = 0.015; TinyProto-FT s = 42, μ = 0.02.</p>" in page


def test_old_runs_are_shown_with_a_word_on_what_they_lack(tmp_path: Path) -> None:
    made = report(tmp_path, Made(federation=False, prototypes=False))
    assert "no federation.json" in made.html
    assert "no prototypes.safetensors" in made.html
    assert [figure.slug for figure in made.figures] == [
        "rounds-global",
        "bytes",
        "rounds-head",
        "rounds-local",
        "clients",
    ]


def test_an_unfinished_run_says_how_much_is_missing_and_how_to_resume(tmp_path: Path) -> None:
    page = report(tmp_path, Made(seeds=(0, 1), done=3)).html
    assert re.search(f"made .* 1 cell of its grid .*tinyproto resume {tmp_path}", page)
    assert "same seeds: Local 0, 1; FedProto 0." in page


def test_of_a_federation_that_is_not_finished_it_names_the_verb_that_goes_on(tmp_path: Path) -> None:
    run = Made(seeds=(0, 1), done=3).write(tmp_path / "run")
    (run / "serve.json").write_text("{}")
    assert f"tinyproto serve {run} --resume" in make_report(read_runs([run])).html


def test_settings_stand_side_by_side_with_their_names_and_what_differs(tmp_path: Path) -> None:
    page = report(tmp_path, Made(name="short"), Made(name="long", rounds=3)).html
    differences = page[page.index(">Differences between the settings<") : page.index(">Numbers<")]
    assert re.findall(r'scope="col">(.*?)<', differences) == ["setting", "train.rounds"]
    assert re.findall(r'scope="row">(.*?)</th><td>(.*?)<', differences) == [("short", "2"), ("long", "3")]
    numbers = page[page.index(">Numbers<") : page.index(">Figures<")]
    assert re.findall(r"<h3>(.*?)</h3>", numbers) == ["short", "long"]


def test_studies_have_tables_and_prototypes_of_their_own(tmp_path: Path) -> None:
    made = report(tmp_path, Made(name="a"), Made(name="b", dataset="cifar"))
    assert re.search(r"2 studies .*\(quarters, cifar\)", made.html)
    assert made.html.count(">Numbers<") == 2
    assert re.findall(r">(Prototypes: .*?)<", made.html) == ["Prototypes: quarters: a", "Prototypes: cifar: b"]
    assert len({figure.slug for figure in made.figures}) == len(made.figures) == 22


@pytest.mark.parametrize(
    "made",
    [
        Made(rounds=1, clients=1, classes=1, dim=1), Made(algorithms=("local",)), Made(correct=lambda *_: 0),
        Made(rounds=12, evaluated=lambda number: (1,) if number % 5 == 1 else ()),
        Made(algorithms=({"name": "package.module:SPEC", "label": "mine/1 [x] \x07"},)), Made(clients=300, classes=2),
    ],
    ids=["one of everything", "local alone", "never right", "every five rounds", "own method", "many clients"],
)  # fmt: skip
def test_runs_at_the_edge_are_drawn(tmp_path: Path, made: Made) -> None:
    page = report(tmp_path, made).html
    Parsed(page)
    assert "nan" not in re.sub(r'href="[^"]*"', "", page)
    assert "<figure" in page


def test_a_run_in_which_nothing_could_be_evaluated_says_so(tmp_path: Path) -> None:
    page = report(tmp_path, Made(correct=lambda *_: None)).html
    assert "No client has test samples" in page
    assert "it is unknown what communication brings" not in page
    assert 'id="bytes"' not in page


def test_dead_units_are_a_mean_over_seeds(tmp_path: Path) -> None:
    page = report(tmp_path, Made(algorithms=("fedproto",), seeds=(0, 1))).html
    shares = [(Made()._tensors("fedproto", seed)[f"fedproto/{seed}/local/values"]) for seed in (0, 1)]
    zero = [100 * (one.reshape(12, 6)[1:] == 0).mean() for one in shares]  # client 0 does not hold class 0
    middle, deviation = sum(zero) / 2, abs(zero[0] - zero[1]) / 2**0.5
    assert f"<td>{middle:.1f} ± {deviation:.1f}</td>" in page[page.index("dead units") :]


def test_a_page_of_many_classes_stays_below_three_megabytes(tmp_path: Path) -> None:
    made = report(tmp_path, Made(algorithms=FIVE, clients=20, classes=200, dim=500, rounds=5))
    assert len(made.html.encode()) < 3_000_000
    assert {figure["id"] for figure in Parsed(made.html).named("figure")} == {figure.slug for figure in made.figures}


def test_a_class_and_a_client_can_be_chosen(tmp_path: Path) -> None:
    run = replace(Made().read(tmp_path / "run"), name="chosen")
    page = make_report([run], Shown(class_=2, client=1)).html
    assert "FedProto: class 2 over clients" in page
    assert "FedProto: client 1 over classes" in page


def test_many_runs_are_counted_in_the_heading_and_alike_ones_repeated_once(tmp_path: Path) -> None:
    for stem in ("table1_cifar100", "table1_cifar10"):
        for label in ("local", "lg_fedavg", "fedproto", "fedtgp"):
            PaperRecord(stem, label, rounds=2).write(tmp_path)
    page = make_report(read_runs(find_runs([tmp_path]))).html
    assert "<h1>table1_cifar10, table1_cifar100 (8 runs)</h1>" in page
    assert page.count(">Config<") == 2
    assert page.count(" and 3 more ") == 2
