from __future__ import annotations

import pytest
import torch

from tinyproto.core.prototypes import CentredSets, ClassSums, Prototypes, class_means, class_sums, nearest


def test_a_local_prototype_is_the_mean_feature_of_its_class() -> None:
    features = torch.tensor([[1.0, 2.0], [3.0, 6.0], [10.0, 0.0]])
    prototypes = class_means(features, torch.tensor([2, 2, 0]), num_classes=4)
    assert prototypes.values.tolist() == [[10.0, 0.0], [0.0, 0.0], [2.0, 4.0], [0.0, 0.0]]
    assert prototypes.present.tolist() == [True, False, True, False]


def test_no_samples_give_no_prototypes() -> None:
    prototypes = class_means(torch.empty(0, 3), torch.empty(0, dtype=torch.int64), num_classes=2)
    assert not prototypes.present.any()
    assert prototypes.values.tolist() == [[0.0] * 3] * 2


def test_sums_of_parts_add_up_to_the_sums_of_the_whole() -> None:
    features, labels = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3
    first, second = class_sums(features[:7], labels[:7], 4), class_sums(features[7:], labels[7:], 4)
    joined = ClassSums(first.sums + second.sums, first.counts + second.counts).means()
    torch.testing.assert_close(joined.values, class_means(features, labels, 4).values)


def test_the_nearest_prototype_wins() -> None:
    prototypes = Prototypes(torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]]), torch.ones(3, dtype=torch.bool))
    features = torch.tensor([[1.0, 1.0], [3.0, 0.5], [-1.0, 9.0]])
    assert nearest(features, prototypes).tolist() == [0, 1, 2]


def test_an_absent_class_is_never_the_answer_even_where_its_zero_row_is_nearest() -> None:
    prototypes = Prototypes(torch.tensor([[0.0, 0.0], [4.0, 0.0]]), torch.tensor([False, True]))
    assert nearest(torch.zeros(3, 2), prototypes).tolist() == [1, 1, 1]


def test_a_tie_goes_to_the_lower_class() -> None:
    prototypes = Prototypes(torch.tensor([[1.0], [-1.0]]), torch.ones(2, dtype=torch.bool))
    assert nearest(torch.zeros(1, 1), prototypes).tolist() == [0]


@pytest.mark.parametrize("present", [1.0, 0.6], ids=["all classes", "some classes"])
@pytest.mark.parametrize("far", [0.0, 1e6, -1e6], ids=["none far", "one far", "one far below"])
@pytest.mark.parametrize("offset", [0.0, 200.0, -3000.0])
def test_the_nearest_is_found_despite_a_common_offset_and_a_prototype_far_away(
    offset: float, far: float, present: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    classes, width, samples = 40, 100, 300
    held = torch.rand(classes, generator=generator) < present
    held[:2] = True
    labels = held.nonzero()[:, 0][torch.randint(int(held.sum()), (samples,), generator=generator)]
    values = 0.1 * torch.randn(classes, width, generator=generator) + offset
    features = values[labels] + 0.1 * torch.randn(samples, width, generator=generator)
    values[0] += far
    prototypes = Prototypes(values * held.unsqueeze(1), held)
    exact = (features.double().unsqueeze(1) - prototypes.values.double()).square().sum(2)
    assert torch.equal(nearest(features, prototypes), exact.masked_fill(~held, torch.inf).argmin(1))


def test_rows_of_absent_classes_have_no_influence() -> None:
    generator = torch.Generator().manual_seed(0)
    values, features = torch.randn(9, 5, generator=generator), torch.randn(50, 5, generator=generator)
    present = torch.arange(9) % 3 == 0
    chosen = nearest(features, Prototypes(values, present))
    for junk in (0.0, 1e30, float("nan")):
        assert torch.equal(
            nearest(features, Prototypes(values.masked_fill(~present.unsqueeze(1), junk), present)), chosen
        )


def test_a_sample_is_classified_alike_whatever_the_others_are() -> None:
    generator = torch.Generator().manual_seed(0)
    prototypes = Prototypes(torch.randn(9, 5, generator=generator) + 200, torch.ones(9, dtype=torch.bool))
    features = prototypes.values[:6] + 0.1 * torch.randn(6, 5, generator=generator)
    features[5] += 1e6
    assert nearest(features, prototypes)[:5].tolist() == nearest(features[:5], prototypes).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("offset", [0.0, 200.0])
def test_several_sets_at_once_give_the_nearest_of_each(offset: float) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(50, 5, generator=generator) + offset
    sets = []
    for least in (0.0, 0.3, 0.9):
        values = torch.randn(9, 5, generator=generator) + offset
        present = torch.rand(9, generator=generator) >= least
        present[4] = True
        sets.append(Prototypes(values.masked_fill(~present.unsqueeze(1), float("nan")), present))
    sets.append(Prototypes.absent(9, 5))
    chosen = CentredSets.of(sets).nearest(features)
    for each, classes in zip(sets[:3], chosen, strict=False):
        assert torch.equal(classes, nearest(features, each))
    assert chosen.shape == (4, 50)
