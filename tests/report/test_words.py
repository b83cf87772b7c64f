from __future__ import annotations

import pytest

from tinyproto.report.words import number, percent, points, size, times


@pytest.mark.parametrize(
    ("fraction", "text"), [(0.941, "94.1 %"), (0.0, "0.0 %"), (1.0, "100.0 %"), (0.12345, "12.3 %")]
)
def test_a_fraction_reads_as_percent_with_one_decimal(fraction: float, text: str) -> None:
    assert percent(fraction) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.013, "+1.3"), (-0.013, "\u22121.3"), (0.0, "0.0"), (0.0004, "0.0"), (-0.0004, "0.0"), (-0.5, "\u221250.0")],
)
def test_a_difference_has_a_sign_unless_it_rounds_to_zero(fraction: float, text: str) -> None:
    assert points(fraction) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (812, "812 B"),
        (812.4, "812 B"),
        (1000, "1 kB"),
        (11_120, "11.1 kB"),
        (292_100, "292 kB"),
        (1_460_500, "1.46 MB"),
        (36_120_000, "36.1 MB"),
        (2_500_000_000, "2.5 GB"),
    ],
)
def test_a_size_reads_in_decimal_units_with_three_digits(count: float, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("count", "texts"),
    [
        (999_600, ("1 MB", "1.00 MB", "1000 kB")),
        (999_999_999, ("1 GB", "1.00 GB", "1000 MB")),
        (2.4e12, ("2.4 TB", "2400 GB")),
    ],
)
def test_a_size_next_to_a_thousand_reads_without_an_exponent(count: float, texts: tuple[str, ...]) -> None:
    assert size(count) in texts


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (999, "999"), (27_800, "27 800"), (1_460_500, "1 460 500"), (1880.4, "1 880")]
)
def test_a_number_sets_thousands_apart(count: float, text: str) -> None:
    assert " ".join(number(count).split()) == text  # whichever space it is


def test_a_ratio_reads_as_times_with_one_decimal() -> None:
    assert times(10) == "10.0×"
    assert times(3.94) == "3.9×"
