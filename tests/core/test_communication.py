from __future__ import annotations

import pytest

from tinyproto.algorithms.base import prototype_parameters

CIFAR10_CLASSES_HELD = [7, 6, 4, 6, 2, 2, 5, 7, 6, 3, 4, 8, 6, 6, 4, 6, 5, 1, 4, 10]


@pytest.mark.parametrize(("width", "millions"), [(500, 0.151), (50, 0.0151)])
def test_the_formula_gives_table_1_for_cifar_10(width: int, millions: float) -> None:
    assert prototype_parameters(CIFAR10_CLASSES_HELD, 10, width) == pytest.approx(millions * 1e6)


def test_the_formula_gives_table_1_for_cifar_100() -> None:
    assert prototype_parameters([46] * 19 + [47], 100, 500) / 1e6 == pytest.approx(1.4605)
