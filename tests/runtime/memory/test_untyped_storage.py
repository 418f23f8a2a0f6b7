"""UntypedStorage: data of tensors over it, and its users, beyond the scenes (which run no kernels)."""

from __future__ import annotations

import gc

import pytest

import forebay
from forebay import UntypedStorage
from forebay.runtime.memory.untyped_storage import storage_at

pytestmark = pytest.mark.usefixtures("clean")


def test_exchanged_memory_moves_the_values_of_all_views():
    one, other = forebay.tensor([1.0, 2.0, 3.0]), forebay.tensor([4.0, 5.0, 6.0])
    view = one[1:]
    one.untyped_storage()._swap_data_ptr_(other.untyped_storage())
    assert (one.tolist(), view.tolist(), other.tolist()) == ([4, 5, 6], [5, 6], [1, 2, 3])


def test_set_views_the_values_of_another_tensor():
    source, view = forebay.arange(12, dtype=forebay.int32), forebay.empty(0, dtype=forebay.int32)
    assert view.set_(source.untyped_storage(), 1, (2, 3), (4, 1)).tolist() == [[1, 2, 3], [5, 6, 7]]
    view.fill_(0)
    assert source.tolist() == [0, 0, 0, 0, 4, 0, 0, 0, 8, 9, 10, 11]
    assert view.set_(source, size=(2, 2)).tolist() == [[0, 0], [0, 0]]
    assert view.set_(source.view(3, 4)[1:, 2:]).tolist() == [[0, 0], [10, 11]]
    assert view.set_().tolist() == []


def test_memory_of_an_array_has_a_storage():
    tensor = forebay.from_numpy(forebay.arange(3).numpy().copy())
    storage = tensor.untyped_storage()
    assert (storage.resizable(), storage.nbytes(), storage.data_ptr()) == (False, 24, tensor.data_ptr())
    del tensor
    again = forebay.empty(0, dtype=forebay.int64).set_(storage)
    assert again.tolist() == [0, 1, 2]


def test_arrays_over_the_memory_count_as_users():
    tensor = forebay.zeros(3)
    storage = tensor.untyped_storage()
    assert storage.use_count() == 2
    array = tensor.numpy()
    assert storage.use_count() == 3
    del array
    assert storage.use_count() == 2


def test_number_is_never_used_again():
    numbers = {forebay.empty(3).untyped_storage()._cdata for _ in range(100)}
    assert len(numbers) == 100
    gc.collect()
    assert not any(UntypedStorage._new_with_weak_ptr(number) for number in numbers)
    with pytest.raises(forebay.ForebayError, match=f"no storage has the number {min(numbers):#x}"):
        storage_at(min(numbers))


def test_forbidden_access_applies_to_tensors_made_later():
    tensor = forebay.tensor([1.0, 2.0])
    storage = tensor.untyped_storage()
    del tensor
    storage.forbid_access("overwritten")
    later = forebay.empty(0).set_(storage)
    with pytest.raises(forebay.ForebayError, match=r"^overwritten$"):
        later.tolist()
    assert not storage.is_accessible
    storage.forbid_access(None)
    assert later.tolist() == [1, 2]


@pytest.mark.parametrize(("size", "error"), [(-1, forebay.ForebayError), ("x", TypeError), (1.5, TypeError)])
def test_invalid_size_is_rejected(size, error):
    with pytest.raises(error, match="size of a storage"):
        UntypedStorage(size)
