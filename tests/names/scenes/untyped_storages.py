"""Storages of tensors: identity, number of users, ownership, exchange and forbidden access."""

from __future__ import annotations

import warnings
import weakref

import numpy as np
from support.on_oracle import outcome


def empty(torch_like, count=1000):
    return torch_like.empty(count, device="cuda")


def number_of(tensor):
    return tensor.untyped_storage()._cdata


def properties(cuda, torch_like):
    rows = []
    for device in ("cuda", "cuda:1", "cpu"):
        storage = torch_like.empty(6, device=device).untyped_storage()
        rows.append([storage.nbytes(), storage.size(), len(storage), storage.element_size(), str(storage.device)])
        rows.append([storage.is_cuda, storage.resizable(), storage.untyped() is storage, type(storage).__name__])
    return rows


def creation(cuda, torch_like):
    made = [torch_like.UntypedStorage(), torch_like.UntypedStorage(5), torch_like.UntypedStorage(5, device="cuda")]
    errors = [outcome(cuda, torch_like.UntypedStorage, -1)["error"]]
    return [[len(each), str(each.device)] for each in made], cuda.memory_allocated(), errors


def an_empty_storage(cuda, torch_like):
    storage = empty(torch_like, 0).untyped_storage()
    c, constructed = torch_like._C, torch_like._C._construct_storage_from_data_pointer
    other = constructed(0, torch_like.device("cuda", 0), 0)
    owned = [c._has_Standard_Deleter(each._cdata) for each in (storage, other)]
    return storage.data_ptr(), storage.nbytes(), owned, outcome(cuda, c._free_And_Remove_DeleterFn, storage._cdata)


def one_object_for_all_tensors(cuda, torch_like):
    tensor = empty(torch_like)
    view = tensor[10:]
    reference = weakref.ref(tensor.untyped_storage())
    results = [view.untyped_storage() is tensor.untyped_storage(), reference() is not None]
    results.append(view.untyped_storage().data_ptr() == tensor.data_ptr())
    del tensor
    results.append(reference() is view.untyped_storage())
    del view
    return [*results, reference() is None, cuda.memory_allocated()]


def users(cuda, torch_like):
    count, kind = torch_like._C._storage_Use_Count, torch_like.UntypedStorage
    tensor = empty(torch_like)
    number = number_of(tensor)
    results = [count(number)]
    view = tensor[10:]
    results.append(count(number))
    storage, weak = tensor.untyped_storage(), tensor.untyped_storage()._weak_ref()
    results += [count(number), weak == number, kind._expired(weak), kind._new_with_weak_ptr(weak) is storage]
    del tensor, view
    results += [count(number), kind._expired(weak), cuda.memory_allocated()]
    del storage
    results += [count(weak), kind._expired(weak), kind._new_with_weak_ptr(weak), cuda.memory_allocated()]
    return [*results, kind._free_weak_ref(weak)]


def a_storage_keeps_the_memory(cuda, torch_like):
    tensor = empty(torch_like)
    address, storage = tensor.data_ptr(), tensor.untyped_storage()
    del tensor
    results = [cuda.memory_allocated()]
    again = empty(torch_like, 0).set_(storage)
    results += [again.data_ptr() == address, again.untyped_storage() is storage, again.numel()]
    del storage
    results.append(cuda.memory_allocated())
    del again
    return [*results, cuda.memory_allocated()]


def setting_the_storage(cuda, torch_like):
    source = empty(torch_like, 6)
    storage, target = source.untyped_storage(), empty(torch_like, 0)

    def describe(*arguments, **named):
        target.set_(*arguments, **named)
        offset = target.data_ptr() - source.data_ptr() if target.numel() else None
        return [*target.shape], [*target.stride()], target.storage_offset(), offset

    given = ((storage, 1, (2, 2), (2, 1)), (storage,), (storage, 2, (3,)), (source,), (source[2:],), ())
    results = [describe(*arguments) for arguments in given]
    results.append(describe(source=storage, storage_offset=1, size=(2, 1), stride=(2, 1)))
    results.append(describe(source[1:], 3, (2,), (1,)))
    short = torch_like.empty(0, dtype=torch_like.int16, device="cuda").set_(storage)
    return [*results, short.numel(), torch_like._C._storage_Use_Count(storage._cdata)]


def invalid_settings_of_the_storage(cuda, torch_like):
    source, target = empty(torch_like, 6), empty(torch_like, 0)
    storage, host = source.untyped_storage(), torch_like.empty(5).untyped_storage()
    invalid = [(host,), (storage, -1, (2,), (1,)), (storage, 0, (2,), (1, 2)), (storage, 0, (2,), (-1,))]
    results = [outcome(cuda, target.set_, *each) for each in invalid]
    short = torch_like.empty(0, dtype=torch_like.int16, device="cuda")
    results += [outcome(cuda, short.set_, source)["error"], outcome(cuda, target.set_, 5)["error"]]
    borrowed = torch_like._C._construct_storage_from_data_pointer(source.data_ptr(), source.device, 24)
    results.append(outcome(cuda, target.set_, borrowed, 0, (7,), (1,)))
    return [*results, outcome(cuda, target.set_, storage, 3)["error"]]


def a_storage_at_an_address(cuda, torch_like):
    c, tensor = torch_like._C, empty(torch_like)
    storage = c._construct_storage_from_data_pointer(tensor.data_ptr(), tensor.device, 4000)
    results = [storage.nbytes(), str(storage.device), storage.data_ptr() == tensor.data_ptr(), storage.resizable()]
    results += [c._has_Standard_Deleter(storage._cdata), outcome(cuda, c._free_And_Remove_DeleterFn, storage._cdata)]
    metadata = {"size": (10, 10), "stride": (10, 1), "dtype": torch_like.float32, "storage_offset": 5}
    made = c._construct_CUDA_Tensor_From_Storage_And_Metadata(metadata | {"device": tensor.device}, storage)
    results += [[*made.shape], [*made.stride()], made.storage_offset(), str(made.device), str(made.dtype)]
    results += [made.data_ptr() - tensor.data_ptr(), made.untyped_storage() is storage]
    construct = c._construct_CUDA_Tensor_From_Storage_And_Metadata
    for missing in ("dtype", "size", "stride", "storage_offset"):
        incomplete = {name: value for name, value in metadata.items() if name != missing}
        results.append(outcome(cuda, construct, incomplete, storage))
    results.append(outcome(cuda, construct, metadata, tensor)["error"])
    results.append([*construct(metadata | {"size": (5000,), "stride": (1,)}, storage).shape])
    del storage, made
    wrong = ((5, "cuda", 5), (5, tensor.device, -5), ("x", tensor.device, 5))
    results += [outcome(cuda, c._construct_storage_from_data_pointer, *each)["error"] for each in wrong]
    return [*results, cuda.memory_allocated()]


def freed_memory(cuda, torch_like):
    c, tensor = torch_like._C, empty(torch_like)
    number = number_of(tensor)
    results = [c._has_Standard_Deleter(number), c._free_And_Remove_DeleterFn(number), cuda.memory_allocated()]
    results += [c._has_Standard_Deleter(number), tensor.data_ptr() != 0, [*tensor[5:].shape]]
    results.append(outcome(cuda, c._free_And_Remove_DeleterFn, number))
    again = empty(torch_like)
    results.append(again.data_ptr() == tensor.data_ptr())
    del tensor
    host = number_of(torch_like.empty(5))
    return [*results, cuda.memory_allocated()], type(host).__name__


def host_memory_has_another_deleter(cuda, torch_like):
    tensor = torch_like.empty(5)
    free, has = torch_like._C._free_And_Remove_DeleterFn, torch_like._C._has_Standard_Deleter
    return has(number_of(tensor)), outcome(cuda, free, number_of(tensor))


def a_tensor_without_its_storage(cuda, torch_like):
    tensor = empty(torch_like)
    view = tensor[5:]
    torch_like._C._set_storage_access_error_msg(tensor, "overwritten")
    methods = ("data_ptr", "untyped_storage", "clone", "storage_offset", "numel", "is_contiguous")
    results = [outcome(cuda, getattr(tensor, name)) for name in methods]
    results += [outcome(cuda, repr, tensor), str(tensor.device), [*tensor.shape], view.data_ptr() != 0]
    results.append(cuda.memory_allocated())
    del view
    return [*results, cuda.memory_allocated()]


def forbidden_access(cuda, torch_like):
    c, tensor = torch_like._C, empty(torch_like)
    view, storage = tensor[5:], tensor.untyped_storage()
    c._set_storage_data_ptr_access_error_msg(storage._cdata, "overwritten")
    results = [outcome(cuda, each.data_ptr) for each in (tensor, view, storage)]
    results += [outcome(cuda, tensor.clone), storage.nbytes(), view.storage_offset(), cuda.memory_allocated()]
    results.append(view.untyped_storage() is storage)
    results.append(c._storage_throw_on_immutable_data_ptr(storage._cdata))
    results.append(c._storage_throw_on_mutable_data_ptr(storage._cdata))
    c._clear_storage_data_ptr_access_error_msg(storage._cdata)
    results += [view.data_ptr() - tensor.data_ptr(), storage.data_ptr() == tensor.data_ptr()]
    return [*results, c._storage_throw_on_immutable_data_ptr(storage._cdata)]


def exchanged_memory(cuda, torch_like):
    one, other = empty(torch_like), empty(torch_like)
    view, addresses = one[10:], [one.data_ptr(), other.data_ptr()]
    one.untyped_storage()._swap_data_ptr_(other.untyped_storage())
    results = [[one.data_ptr(), other.data_ptr()] == addresses[::-1], view.data_ptr() - addresses[1]]
    del other
    results.append(cuda.memory_allocated())
    nothing, third = empty(torch_like, 0), empty(torch_like, 10)
    results.append(outcome(cuda, nothing.untyped_storage()._swap_data_ptr_, third.untyped_storage()))
    results += [nothing.untyped_storage().nbytes(), third.untyped_storage().nbytes(), third.data_ptr()]
    return results


def resized_memory(cuda, torch_like):
    def counted(result=None):
        stats = cuda.memory_stats()
        names = "allocation.all.allocated", "allocation.all.freed", "allocated_bytes.all.current"
        return [result is storage, storage.nbytes(), storage.data_ptr() == tensor.data_ptr(), *map(stats.get, names)]

    tensor = empty(torch_like)
    storage = tensor.untyped_storage()
    rows = [counted(), *[counted(storage.resize_(size)) for size in (4000, 8000, 0, 8000, 100, 4000)]]
    nothing = empty(torch_like, 0).untyped_storage()
    return rows, storage.data_ptr() == 0, nothing.resize_(64).nbytes(), cuda.memory_allocated()


def resized_bytes(cuda, torch_like):
    tensor = torch_like.tensor([1, 2, 3, 4], dtype=torch_like.uint8)
    storage = tensor.untyped_storage()
    results = [storage.resize_(6).tolist()[:4], tensor.tolist(), storage.resize_(2).tolist(), len(storage)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that typed storages are deprecated, once per process
        typed = torch_like.tensor([1, 2, 3]).storage()
    return [*results, typed.resize_(2), typed.tolist(), typed.resize_(4), len(typed), typed.tolist()[:2]]


def invalid_sizes(cuda, torch_like):
    def failed(target, size):
        return outcome(cuda, lambda: target.resize_(size).nbytes())

    storage, numpy_storage = empty(torch_like).untyped_storage(), torch_like.from_numpy(np.zeros(4)).untyped_storage()
    results = [failed(storage, size) for size in (-1, "x", 1.5, None, True, 1 << 63, 1 << 62)]
    return results, failed(numpy_storage, 8), failed(numpy_storage, 32), storage.nbytes()


def set_enlarges_a_storage(cuda, torch_like):
    tensor, storage = empty(torch_like, 0), empty(torch_like, 4).untyped_storage()
    tensor.set_(storage, 0, (100,))
    return storage.nbytes(), tensor.data_ptr() == storage.data_ptr(), cuda.memory_allocated()


def invalid_exchanges(cuda, torch_like):
    swap = empty(torch_like).untyped_storage()._swap_data_ptr_
    others = [empty(torch_like, 10).untyped_storage(), torch_like.empty(1000).untyped_storage(), 5]
    return [outcome(cuda, swap, other) for other in others], outcome(cuda, swap)["error"]


def addresses_of_tensors(cuda, torch_like):
    equal, tensors = torch_like._C._tensors_data_ptrs_at_indices_equal, [empty(torch_like), 5, empty(torch_like)]
    addresses = [tensors[0].data_ptr(), None, 0]
    results = [equal(tensors, addresses, indices) for indices in ([], [0], [0, 2], [2])]
    invalid = (((), (), ()), (tensors, addresses, [1]), ([], [], [0]), (tensors, addresses, ["a"]))
    return results, [outcome(cuda, equal, *each).get("error") for each in invalid]


def wrong_types(cuda, torch_like):
    c = torch_like._C
    one = (c._storage_Use_Count, c._has_Standard_Deleter, c._free_And_Remove_DeleterFn)
    results = [[outcome(cuda, call, *each)["error"] for each in ((), ("x",), (None,))] for call in one]
    messages = (c._set_storage_access_error_msg, c._set_storage_data_ptr_access_error_msg)
    return results, [outcome(cuda, call, *each)["error"] for call in messages for each in ((), ("x", "x"), (5, 5))]
