from __future__ import annotations

import torch

from tinyproto.core.prototypes import ClassSums, Prototypes, class_means, class_sums, nearest


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
