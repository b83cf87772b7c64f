"""Parameters per round by the paper's Table 2, against the numbers of its Table 1 (M=20, d=500)."""

from __future__ import annotations

from typing import Any

import pytest

from tinyproto.algorithms import ALGORITHMS, FederationSpec
from tinyproto.models import build_model
from tinyproto.models.count import count_parameters

CIFAR10_CLASSES_HELD = [7, 6, 4, 6, 2, 2, 5, 7, 6, 3, 4, 8, 6, 6, 4, 6, 5, 1, 4, 10]
CIFAR100_CLASSES_HELD = [46] * 19 + [47]  # only their sum matters
NETWORKS = ("resnet8", "mobilenet_v2", "shufflenet_v2", "efficientnet_b0")


def federation(num_classes: int, networks: tuple[str, ...] = NETWORKS) -> FederationSpec:
    return FederationSpec(num_classes, 500, 0.01, (3, 32, 32), networks=networks)


def formula(name: str, num_classes: int, networks: tuple[str, ...] = NETWORKS, **hyper: Any) -> int | None:
    held = {10: CIFAR10_CLASSES_HELD, 100: CIFAR100_CLASSES_HELD}[num_classes]
    spec = ALGORITHMS[name]
    return spec.build(spec.hyper(**hyper), federation(num_classes, networks)).table2_parameters(held)


def test_the_classes_held_are_those_of_the_paper_s_partitions() -> None:
    assert (sum(CIFAR10_CLASSES_HELD), len(CIFAR10_CLASSES_HELD)) == (102, 20)
    assert (sum(CIFAR100_CLASSES_HELD), len(CIFAR100_CLASSES_HELD)) == (921, 20)


@pytest.mark.parametrize(
    ("name", "hyper", "exact", "millions"),
    [
        ("local", {}, (0, 0), ("0", "0")),
        ("lg_fedavg", {}, (200_000, 2_000_000), ("0.20", "2.00")),
        ("feddistill", {}, (3_020, 292_100), ("0.003", "0.292")),
        ("fedproto", {}, (151_000, 1_460_500), ("0.151", "1.460")),
        ("fedtgp", {}, (151_000, 1_460_500), ("0.151", "1.460")),
        ("tinyproto_fp", {"cps_dim": 50}, (15_100, 146_050), ("0.0151", "0.146")),
        ("tinyproto_ft", {"cps_dim": 50}, (15_100, 146_050), ("0.0151", "0.146")),
    ],
)
def test_the_formula_gives_the_paper_s_table_1(
    name: str, hyper: dict[str, Any], exact: tuple[int, int], millions: tuple[str, str]
) -> None:
    found = (formula(name, 10, **hyper), formula(name, 100, **hyper))
    assert found == exact
    for parameters, printed in zip(exact, millions, strict=True):
        digits = len(printed.partition(".")[2])
        assert f"{parameters / 1e6:.{digits}f}" == printed


@pytest.mark.parametrize(
    ("name", "hyper", "same_as"),
    [
        ("anchors", {"cps_dim": 50}, ("local", {})),
        ("tinyproto_sphere", {"cps_dim": 50}, ("tinyproto_fp", {"cps_dim": 50})),
        ("protonorm", {}, ("fedproto", {})),
        ("protonorm", {"sent_dim": 50}, ("tinyproto_fp", {"cps_dim": 50})),
        ("fedsa", {}, ("fedproto", {})),
        ("fedorgp", {}, ("fedproto", {})),
    ],
)
def test_methods_that_the_paper_does_not_have_count_as_those_that_send_the_same(
    name: str, hyper: dict[str, Any], same_as: tuple[str, dict[str, Any]]
) -> None:
    other, its = same_as
    assert formula(name, 10, **hyper) == formula(other, 10, **its)


def test_fedgh_counts_class_means_up_and_the_head_without_its_bias_down() -> None:
    assert formula("fedgh", 10) == 102 * 500 + 20 * 10 * 500
    assert formula("fedgh", 10, sent_dim=50) == 102 * 50 + 20 * 10 * 500


@pytest.mark.parametrize("num_classes", [10, 100])
def test_fml_counts_the_shared_resnet_8_forty_times(num_classes: int) -> None:
    # The paper prints 34.32 and 36.12 M, the size of no network in its experiments; this is 49.51 and 51.31 M.
    assert formula("fml", num_classes) == 40 * (1_232_704 + 501 * num_classes)
    assert formula("fml", num_classes, auxiliary="resnet8") == formula("fml", num_classes)


def test_fedavg_counts_its_one_network_forty_times_and_fedkd_has_no_formula() -> None:
    small = build_model("shufflenet_v2_x0_5", federation(10).shape, seed=0)
    assert formula("fedavg", 10, ("shufflenet_v2_x0_5",)) == 40 * count_parameters(small)
    assert formula("fedkd", 10) is None
