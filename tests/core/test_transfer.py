from __future__ import annotations

import torch

from tinyproto.core.prototypes import Message, Prototypes, on_host
from tinyproto.core.transfer import fetched, portions


def test_portions_keep_the_order_and_hold_at_most_so_much_or_one_item() -> None:
    assert list(portions("abcdef", [2, 2, 1, 9, 1, 4], most=5)) == [["a", "b", "c"], ["d"], ["e", "f"]]
    assert list(portions("", [])) == []


def test_tensors_of_all_types_and_shapes_come_back_as_they_were() -> None:
    tensors = [torch.rand(3, 4), torch.tensor([True, False]), torch.rand(2, 6).T, torch.tensor(7), torch.zeros(0, 5)]
    for tensor, copy in zip(tensors, fetched(tensors), strict=True):
        assert copy.dtype == tensor.dtype
        assert torch.equal(copy, tensor)


def test_messages_on_the_host_have_tensors_of_their_own() -> None:
    message = Message(Prototypes.absent(3, 2), {"weight": torch.rand(2), "alone": torch.rand(1, 3)}, {"loss": 1.0})
    message.tensors["weight"].requires_grad_()
    found, nothing = on_host([message, Message()])
    assert nothing == Message()
    assert (found.metrics, list(found.tensors)) == (message.metrics, list(message.tensors))
    for tensor, copy in zip(message.all_tensors(), found.all_tensors(), strict=True):
        assert torch.equal(copy, tensor)
        assert copy.data_ptr() != tensor.data_ptr()
        assert not copy.requires_grad
