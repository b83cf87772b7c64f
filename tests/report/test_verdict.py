from __future__ import annotations

from tinyproto.report.compare import Comparison, Row, Spread
from tinyproto.report.verdict import verdict

TITLES = {
    "local": "Local",
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
        accuracy={rule: None if value is None else Spread(value, 0.0, 1) for rule, value in accuracy.items()},
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
    assert about(found, "Frames sent only to evaluate") == (
        "Frames sent only to evaluate are not in payload and wire; they cost up to 5 kB more a round."
    )


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
    assert about(found, "TinyProto-FP") == (
        "TinyProto-FP sends 2.78 kB a round, 10.0× fewer payload bytes than FedProto (27.8 kB), "
        "at a gain of 1.3 points of accuracy."
    )
    assert about(found, "TinyProto-FT") == (
        "TinyProto-FT sends 5.56 kB a round, 5.0× fewer payload bytes than FedTGP (27.8 kB), "
        "at a loss of 2.0 points of accuracy."
    )


def test_equal_bytes_and_equal_accuracy_are_not_made_to_look_better() -> None:
    found = sentences(row("fedproto", 0.5, 0.4, 0.5, 1000), row("tinyproto_fp", 0.5, 0.4001, 0.5, 1000))
    sentence = about(found, "TinyProto-FP")
    assert "no fewer payload bytes than FedProto" in sentence
    assert "at no difference of accuracy" in sentence


def test_without_the_base_method_there_is_nothing_to_hold_it_against() -> None:
    found = sentences(row("fedtgp", 0.5, 0.4, 0.5, 1000), row("tinyproto_fp", 0.5, 0.4, 0.5, 100))
    assert not [sentence for sentence in found if "TinyProto-FP sends" in sentence]


def test_what_federating_brought_is_the_largest_gain_over_local_by_any_rule() -> None:
    found = sentences(
        row("local", 0.60, None, 0.50), row("fedproto", 0.62, 0.30, 0.50, 100), row("fedtgp", 0.61, 0.655, 0.50, 100)
    )
    assert found[-1] == (
        "Local training alone, which sends no parameters, reaches 60.0 % by own head; "
        "the most that federating added is +5.5 points (FedTGP, by nearest global prototype)."
    )


def test_methods_that_lose_to_local_training_are_named() -> None:
    found = sentences(
        row("local", 0.60, None, 0.50),
        row("fedproto", 0.59, 0.30, 0.50, 100),
        row("fedtgp", 0.70, 0.60, 0.50, 100),
        row("lg_fedavg", 0.60, None, 0.60, 100),
    )
    assert "added is +10.0 points (FedTGP, by own head)" in found[-1]
    assert found[-1].endswith("FedProto and LG-FedAvg did not beat it by any rule.")


def test_where_nothing_beats_local_training_the_verdict_says_so() -> None:
    found = sentences(row("local", 0.5, None, 0.8), row("fedproto", 0.7, 0.8, 0.8, 100))
    assert found[-1] == (
        "Local training alone, which sends no parameters, reaches 80.0 % by nearest local prototype: "
        "no federated method did better by any rule."
    )


def test_without_local_training_the_verdict_asks_for_it() -> None:
    found = sentences(row("fedproto", 0.7, 0.8, 0.8, 100))
    assert found[-1] == "Local training was not run, so what federating brought is unknown; add `local` to algorithms."


def test_local_training_alone_leaves_nothing_to_compare() -> None:
    assert sentences(row("local", 0.5, None, 0.8)) == []
