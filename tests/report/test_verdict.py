from __future__ import annotations

import re

from tinyproto.report.compare import Comparison, Row, Spread
from tinyproto.report.verdict import verdict

TITLES = {
    "local": "Local",
    "anchors": "Anchors",
    "lg_fedavg": "LG-FedAvg",
    "fedproto": "FedProto",
    "fedtgp": "FedTGP",
    "tinyproto_fp": "TinyProto-FP",
    "tinyproto_ft": "TinyProto-FT",
}


def row(
    algorithm: str, head: float, global_: float | None, local: float, payload: float = 0.0, evaluation: float = 0.0
) -> Row:
    accuracy = {"head": head, "global": global_, "local": local}
    return Row(
        algorithm=algorithm,
        label=algorithm,
        title=TITLES[algorithm],
        accuracy={rule: None if value is None else Spread(value, None, 1) for rule, value in accuracy.items()},
        parameters=payload / 4,
        formula_parameters=payload / 4,
        payload_bytes=payload,
        wire_bytes=payload + 100,
        evaluation_bytes=evaluation,
        seconds=1.0,
    )


def sentences(*rows: Row, rule: str = "global", statistic: str = "best") -> list[str]:
    return verdict(Comparison(rows, rule, statistic))


def about(found: list[str], start: str) -> str:
    (sentence,) = [sentence for sentence in found if sentence.startswith(start)]
    return sentence


def test_traffic_that_only_evaluates_is_not_hidden() -> None:
    found = sentences(row("fedproto", 0.5, 0.6, 0.7, payload=100, evaluation=5000.0))
    assert [sentence for sentence in found if re.search("only to evaluate.* 5 kB", sentence)]


def test_methods_are_ranked_by_the_headline_best_first() -> None:
    found = sentences(
        row("local", 0.9, None, 0.9), row("fedproto", 0.8, 0.301, 0.7, 100), row("fedtgp", 0.5, 0.402, 0.7, 100)
    )
    assert found[0] == "By nearest global prototype, best round: FedTGP 40.2 %, FedProto 30.1 %."


def test_by_head_every_method_is_ranked() -> None:
    found = sentences(
        row("fedproto", 0.2, 0.3, 0.1, 100), row("local", 0.4, None, 0.1), rule="head", statistic="last10"
    )
    assert found[0] == "By own head, mean of the last 10 evaluations: Local 40.0 %, FedProto 20.0 %."


def test_each_tinyproto_is_held_against_the_method_it_builds_on() -> None:
    found = sentences(
        row("fedproto", 0.5, 0.40, 0.5, 27_800),
        row("fedtgp", 0.5, 0.50, 0.5, 27_800),
        row("tinyproto_fp", 0.5, 0.413, 0.5, 2_780),
        row("tinyproto_ft", 0.5, 0.48, 0.5, 5_560),
    )
    assert re.search(
        r"2\.78 kB .*10\.0× less than FedProto \(27\.8 kB\).* gains 1\.3 points", about(found, "TinyProto-FP")
    )
    assert re.search(
        r"5\.56 kB .* 5\.0× less than FedTGP \(27\.8 kB\).* loses 2\.0 points", about(found, "TinyProto-FT")
    )


def test_equal_bytes_and_equal_accuracy_are_not_made_to_look_better() -> None:
    found = sentences(row("fedproto", 0.5, 0.4, 0.5, 1000), row("tinyproto_fp", 0.5, 0.4001, 0.5, 1000))
    sentence = about(found, "TinyProto-FP")
    assert "no less than FedProto" in sentence
    assert "the same accuracy" in sentence


def test_without_the_base_method_there_is_nothing_to_hold_it_against() -> None:
    found = sentences(row("fedtgp", 0.5, 0.4, 0.5, 1000), row("tinyproto_fp", 0.5, 0.4, 0.5, 100))
    assert not [sentence for sentence in found if "TinyProto-FP sends" in sentence]


def test_what_federating_brought_is_the_largest_gain_over_local_by_any_rule() -> None:
    found = sentences(
        row("local", 0.60, None, 0.50), row("fedproto", 0.62, 0.30, 0.50, 100), row("fedtgp", 0.61, 0.655, 0.50, 100)
    )
    assert re.search(
        r"^Local .* 60\.0 % by own head.* \+5\.5 points \(FedTGP, by nearest global", about(found, "Local")
    )


def test_methods_that_lose_to_local_training_are_named() -> None:
    found = sentences(
        row("local", 0.60, None, 0.50),
        row("fedproto", 0.59, 0.30, 0.50, 100),
        row("fedtgp", 0.70, 0.60, 0.50, 100),
        row("lg_fedavg", 0.60, None, 0.60, 100),
    )
    assert re.search(
        r"\+10\.0 points \(FedTGP, by own head\)\. FedProto and LG-FedAvg did not beat it", about(found, "Local")
    )


def test_where_nothing_beats_local_training_the_verdict_says_so() -> None:
    found = sentences(row("local", 0.5, None, 0.8), row("fedproto", 0.7, 0.8, 0.8, 100))
    assert re.search(r"^Local .* 80\.0 % by nearest local prototype\. No federated method", about(found, "Local"))


def test_a_gain_that_silence_reaches_is_not_put_down_to_communication() -> None:
    found = sentences(
        row("local", 0.60, None, 0.50),
        row("anchors", 0.62, 0.66, 0.61),
        row("fedtgp", 0.61, 0.655, 0.50, 100),
        row("tinyproto_ft", 0.61, 0.663, 0.50, 10),
    )
    assert re.search(r"\+6\.3 points \(TinyProto-FT", about(found, "Local"))
    assert re.search(r"66\.0 % .* \+6\.0 points over Local\. .* \+0\.3 points .*TinyProto-FT", about(found, "Anchors"))


def test_where_nothing_beats_silence_the_verdict_says_so() -> None:
    found = sentences(row("local", 0.5, None, 0.5), row("anchors", 0.6, 0.66, 0.61), row("fedtgp", 0.6, 0.65, 0.5, 9))
    assert re.search(r"No method that communicates .* 1\.0 points below \(FedTGP", about(found, "Anchors"))


def test_anchors_below_local_training_are_said_to_be() -> None:
    found = sentences(row("local", 0.854, None, 0.5), row("anchors", 0.7, 0.749, 0.7))
    assert re.search(r"−10\.5 points over Local: fixed targets do not suit", about(found, "Anchors"))


def test_without_the_two_silent_methods_the_verdict_asks_for_them() -> None:
    assert re.search("add `local` and `anchors`", sentences(row("fedproto", 0.7, 0.8, 0.8, 100))[-1])
    found = sentences(row("local", 0.5, None, 0.5), row("fedproto", 0.7, 0.8, 0.8, 100))
    assert re.search("add `anchors`", found[-1])


def test_local_training_alone_leaves_nothing_to_compare() -> None:
    assert sentences(row("local", 0.5, None, 0.8)) == []
