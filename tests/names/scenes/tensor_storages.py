"""Storages of tensors, `Tensor.data`, and what memory tools ask a tensor. No element is computed."""

from __future__ import annotations

import gc
import warnings

from support.on_oracle import outcome


def storage_is_that_of_the_whole_memory(cuda, torch_like):
    whole = torch_like.empty(4, 3, device="cuda:1")
    part, storage = whole[1:], whole.untyped_storage()
    same = part.untyped_storage() is storage, part.untyped_storage()._cdata == storage._cdata
    sizes = storage.size(), storage.nbytes(), len(storage), storage.element_size(), storage.get_device()
    flags = storage.is_cuda, storage.is_sparse, storage.is_pinned(), storage.is_shared()
    start = storage.data_ptr() == whole.data_ptr(), storage.data_ptr() == part.data_ptr()
    types = isinstance(storage, torch_like.UntypedStorage), torch_like.is_storage(storage), torch_like.is_storage(whole)
    return same, sizes, flags, start, str(storage.device), types


def storages_on_the_cpu(cuda, torch_like):
    empty, plain = torch_like.empty(0).untyped_storage(), torch_like.empty(3).untyped_storage()
    pinned = torch_like.empty(3, pin_memory=True).untyped_storage()
    numbers = torch_like.tensor([1, 258], dtype=torch_like.int16).untyped_storage()
    return (
        (empty.data_ptr(), empty.size(), str(plain.device), plain.is_cuda, plain.is_shared(), plain.get_device()),
        (pinned.is_pinned(), plain.is_pinned(), numbers.tolist(), numbers[1], numbers[-1], repr(numbers)),
    )


def invalid_indices_of_a_storage(cuda, torch_like):
    storage = torch_like.empty(3).untyped_storage()
    return [outcome(cuda, lambda index=index: storage[index]) for index in (12, -13, "a", 1.5)]


def copies_of_a_storage(cuda, torch_like):
    storage = torch_like.empty(5, device="cuda").untyped_storage()
    host = torch_like.tensor([1, 2, 3], dtype=torch_like.uint8).untyped_storage()
    other = torch_like.empty(3, dtype=torch_like.uint8).untyped_storage()
    moved = host.cuda(1)
    return (
        [str(each.device) for each in (storage.cpu(), storage.clone(), moved, host.cuda())],
        (storage.clone().nbytes(), storage.clone().data_ptr() == storage.data_ptr(), host.cpu() is host),
        (moved.cpu().tolist(), other.copy_(moved).tolist(), other.fill_(7).tolist()),
        outcome(cuda, other.copy_, storage),
    )


def typed_storage(cuda, torch_like):
    def properties(tensor):
        made = tensor.storage()
        names = str(made.dtype).split(".")[-1], str(made.device), made.type(), made.pickle_storage_type()
        sizes = made.size(), len(made), made.nbytes(), made.element_size(), made.get_device(), made.is_cuda
        same = made.data_ptr() == tensor.untyped_storage().data_ptr(), made.untyped() is tensor.untyped_storage()
        classes = torch_like.TypedStorage, cuda.FloatStorage, cuda.HalfStorage
        is_one = torch_like.is_storage(made), [isinstance(made, each) for each in classes], made.is_shared()
        return names, sizes, same, is_one, made._cdata == tensor.untyped_storage()._cdata

    tensor = torch_like.empty(4, 3, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated: see legacy_tensor_types
        sizes = tensor[1:].storage().size()
    return sizes, properties(tensor), properties(torch_like.empty(2))


def elements_of_a_typed_storage(cuda, torch_like):
    tensor = torch_like.tensor([1.5, 2, 3])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, which is reported once per process
        found = tensor.storage()
    found[1] = 7
    wrong = [outcome(cuda, lambda index=index: found[index]) for index in (3, "a", slice(1))]
    moved = found.cuda(1)
    return (
        (found.tolist(), list(found), found[-1], tensor.tolist(), repr(found), wrong),
        (
            found.cpu().data_ptr() == found.data_ptr(),
            str(moved.device),
            moved.cpu().tolist(),
            str(found.clone().device),
        ),
    )


def attributes_of_tensors(cuda, torch_like):
    names = ["requires_grad", "grad", "grad_fn", "is_leaf", "is_sparse", "is_sparse_csr", "is_quantized", "is_meta"]
    names += ["is_nested", "is_mps", "is_mtia", "is_cpu", "is_cuda"]
    methods = ["is_floating_point", "is_complex", "is_signed"]

    def row(tensor):
        shared = tensor.is_shared(), torch_like.numel(tensor), str(tensor.layout).split(".")[-1]
        values = [getattr(tensor, name) for name in names]
        return values, [getattr(tensor, name)() for name in methods], shared

    dtypes = (torch_like.half, torch_like.bool, torch_like.complex64, torch_like.uint8)
    rows = [row(torch_like.empty(2, dtype=dtype, device=device)) for dtype in dtypes for device in ("cpu", "cuda")]
    tensor = torch_like.empty(1)
    return rows, [torch_like.is_tensor(each) for each in (tensor, 3, tensor.untyped_storage())]


def gradients_that_are_not_requested(cuda, torch_like):
    tensor, numbers = torch_like.empty(2), torch_like.empty(2, dtype=torch_like.int64)
    tensor.requires_grad = False
    tensor.grad = gradient = torch_like.empty(2)
    kept = tensor.grad is gradient
    tensor.grad = None
    return (
        (tensor.requires_grad_(False) is tensor, tensor.requires_grad, kept, tensor.grad),
        outcome(cuda, numbers.requires_grad_),
        outcome(cuda, setattr, numbers, "requires_grad", True),
        outcome(cuda, setattr, tensor, "requires_grad", 1),
    )


def detached_tensors_share_memory(cuda, torch_like):
    tensor = torch_like.empty(4, 3, device="cuda")[1:]
    before = cuda.memory_allocated()
    rows = []
    for other in (tensor.detach(), tensor.data):
        same = (
            other is tensor,
            other.data_ptr() == tensor.data_ptr(),
            other.untyped_storage() is tensor.untyped_storage(),
        )
        rows.append([*same, list(other.shape), list(other.stride()), other.storage_offset(), str(other.device)])
    return rows, cuda.memory_allocated() == before


def data_can_be_replaced(cuda, torch_like):
    tensor, results = torch_like.empty(1 << 18, device="cuda"), []
    view, allocated = tensor[:5], [cuda.memory_allocated()]
    for other in (
        tensor.data.cpu(),
        torch_like.empty(3, 2, device="cuda:1"),
        torch_like.empty(4, dtype=torch_like.half),
    ):
        tensor.data = other
        results.append([list(tensor.shape), str(tensor.device), str(tensor.dtype).split(".")[-1]])
        results.append([tensor.data_ptr() == other.data_ptr(), list(view.shape), str(view.device)])
        allocated.append([cuda.memory_allocated(0), cuda.memory_allocated(1)])
    del view
    return results, allocated, cuda.memory_allocated()


def data_of_another_type_is_refused(cuda, torch_like):
    tensor = torch_like.empty(2)
    wrong = [outcome(cuda, setattr, tensor, "data", value) for value in (3, None, [1.0])]
    return wrong, outcome(cuda, delattr, tensor, "data")


def garbage_collector_finds_tensors(cuda, torch_like):
    gc.collect()  # tensors of other scenes
    mine = [torch_like.empty(1000, device="cuda"), torch_like.empty(7, device="cuda:1")]
    found = [each for each in gc.get_objects() if torch_like.is_tensor(each) and each.is_cuda]
    return sorted(each.untyped_storage().nbytes() for each in found), len(mine)
