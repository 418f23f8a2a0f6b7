"""Storages that are resized while tensors use them."""

from __future__ import annotations

import pytest

import forebay

pytestmark = pytest.mark.usefixtures("clean")
TOO_SMALL = r"the tensor's storage has 8 bytes of 16: enlarge it first \(resize_\)"


@pytest.mark.parametrize(
    "use",
    [
        lambda tensor: tensor.fill_(1.5),
        lambda tensor: tensor.uniform_(),
        lambda tensor: tensor.copy_(forebay.ones(4)),
        lambda tensor: forebay.ones(4).copy_(tensor),
        lambda tensor: tensor[1:].tolist(),
        lambda tensor: tensor.numpy(),
        lambda tensor: tensor.clone(),
        lambda tensor: tensor.to("float64"),
        forebay.poisson,
    ],
)
def test_tensor_of_a_smaller_storage_cannot_be_used(use):
    tensor = forebay.ones(4)
    storage = tensor.untyped_storage()
    storage.resize_(8)
    with pytest.raises(forebay.ForebayError, match=TOO_SMALL):
        use(tensor)
    assert tensor.data_ptr() == storage.data_ptr()
    storage.resize_(16)
    assert tensor.tolist()[:2] == [1, 1]
    use(tensor)


def test_smaller_tensor_uses_the_remaining_bytes():
    tensor = forebay.tensor([1.0, 2.0, 3.0, 4.0])
    storage = tensor.untyped_storage().resize_(8)
    part = forebay.empty(0).set_(storage)
    assert part.tolist() == [1, 2]
    assert part.untyped_storage() is storage is tensor.untyped_storage()
    storage.resize_(32)
    assert tensor.tolist()[:2] == part.tolist() == [1, 2]
    part.fill_(7)
    assert tensor.tolist()[:2] == [7, 7]


def test_failed_resize_changes_nothing():
    with forebay.emulate("cuda", memory=64 << 20):
        tensor = forebay.full((1 << 20,), 3.0, device="cuda")
        with pytest.raises(forebay.OutOfMemory):
            tensor.untyped_storage().resize_(1 << 30)
        assert tensor.untyped_storage().nbytes() == 4 << 20
        assert tensor[-1].item() == 3


def test_numpy_array_keeps_the_previous_memory():
    tensor = forebay.tensor([1.0, 2.0])
    array = tensor.numpy()
    tensor.untyped_storage().resize_(0)
    assert array.tolist() == [1, 2]
