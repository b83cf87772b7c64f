from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tinyproto.data import CountedSamples, FederatedData, Share, from_arrays

# Sample i is an image of the single pixel 10·i. Client 0 trains on samples 0, 1, 4 and tests on 5; client 1 trains on
# 3 and tests on 2 and 6; client 2 has one sample and nothing to test on.
LABELS = [0, 0, 1, 1, 2, 2, 0, 3]
FEDERATION = FederatedData(
    from_arrays(np.arange(0, 80, 10, dtype=np.uint8).reshape(8, 1, 1), LABELS, num_classes=5),
    [
        Share(train=np.array([4, 0, 1]), test=np.array([5])),
        Share(train=np.array([3]), test=np.array([2, 6])),
        Share(train=np.array([7]), test=np.array([], dtype=np.int64)),
    ],
)
TRAIN_COUNTS = [[2, 0, 1, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 1, 0]]
ALL_COUNTS = [[2, 0, 2, 0, 0], [1, 2, 0, 0, 0], [0, 0, 0, 1, 0]]


def test_counts_are_by_client_and_class_over_every_class_of_the_dataset() -> None:
    assert FEDERATION.num_clients == 3
    assert FEDERATION.train_counts.tolist() == TRAIN_COUNTS
    assert FEDERATION.counts.tolist() == ALL_COUNTS


@pytest.mark.parametrize(("samples", "counts"), [("train", TRAIN_COUNTS), ("all", ALL_COUNTS)])
def test_scaling_counts_what_it_is_told_to_count(samples: CountedSamples, counts: list[list[int]]) -> None:
    assert FEDERATION.counted(samples).tolist() == counts


def test_a_client_gets_its_own_samples_with_their_labels_in_their_order() -> None:
    train, test = FEDERATION.train(0), FEDERATION.test(1)
    assert train.inputs.flatten().tolist() == [40, 0, 10]
    assert train.labels.tolist() == [2, 0, 0]
    assert test.inputs.flatten().tolist() == [20, 60]
    assert test.labels.tolist() == [1, 0]


def test_a_clients_samples_reach_the_network_as_the_dataset_says() -> None:
    batch = FEDERATION.train(0).batch(torch.tensor([0]))
    torch.testing.assert_close(batch.inputs, torch.tensor([[[[40 * 2 / 255 - 1]]]]))


def test_an_empty_test_part_keeps_the_shape_of_an_image() -> None:
    test = FEDERATION.test(2)
    assert len(test) == 0
    assert test.batch(slice(None)).inputs.shape == (0, 1, 1, 1)


def test_all_clients_share_one_pool_of_pixels() -> None:
    pools = {part(client).pool.data_ptr() for part in (FEDERATION.train, FEDERATION.test) for client in range(3)}
    assert pools == {FEDERATION.images.inputs.data_ptr()}


def test_a_subset_of_a_clients_samples_stays_in_the_pool() -> None:
    subset = FEDERATION.train(0).subset(torch.tensor([2, 0]))
    assert subset.inputs.flatten().tolist() == [10, 40]
    assert subset.labels.tolist() == [0, 2]
    assert subset.pool.data_ptr() == FEDERATION.images.inputs.data_ptr()


def test_moving_a_federation_moves_its_pool_once() -> None:
    assert FEDERATION.to("cpu").images is FEDERATION.images
    moved = FEDERATION.to("meta")
    assert moved.train(0).pool is moved.test(1).pool is moved.images.inputs
    assert moved.train(0).labels.device.type == "meta"


def test_with_scope_all_each_client_is_tested_on_everybody_s_samples_and_trains_on_its_own() -> None:
    wide = replace(FEDERATION, scope="all")
    everything = torch.cat([FEDERATION.test(client).labels for client in range(wide.num_clients)])
    for client in range(wide.num_clients):
        assert wide.test(client).labels.equal(everything)
        assert wide.train(client).labels.equal(FEDERATION.train(client).labels)
    assert wide.counts.equal(FEDERATION.counts)  # K_i of Table 2 stays what the client holds
    assert wide.to("cpu").test(0).labels.equal(everything)
