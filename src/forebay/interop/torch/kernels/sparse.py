"""Kernels of sparse tensors on emulated devices: those of the CPU, over the values of indices and elements.

The indices and the elements of a sparse tensor are tensors of the device. What cuSPARSE takes beside them is not
counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forebay.interop.torch.assumptions.sizes import distinct_indices, product_elements
from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.emulated_memory import adopt, alias, memory_of, mixed_devices, open_torch_device
from forebay.interop.torch.kernels.schemas import written_arguments
from forebay.interop.torch.kernels.scratch_memory import Scratch
from forebay.interop.torch.kernels.temporary_storage import pair_sort_bytes
from forebay.interop.torch.kernels.wide_types import over_values
from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["SPARSE_KEYS", "sparse_kernel", "sparse_on_device"]

# Dispatch keys of the CPU's kernels, and of those of the devices: coordinates, and compressed rows or columns.
SPARSE_KEYS = {"SparseCPU": "SparseCUDA", "SparseCsrCPU": "SparseCsrCUDA"}
# Operators that read neither indices nor elements.
_STRUCTURE = {
    "_coalesced_", "_dimI", "_dimV", "_indices", "_nnz", "_sparse_coo_tensor_with_dims_and_tensors", "_values",
    "ccol_indices", "col_indices", "crow_indices", "dense_dim", "indices", "is_coalesced", "row_indices", "sparse_dim",
    "values", "view_as_complex", "view_as_real",
}  # fmt: skip
_COPIES = {"copy_", "copy_sparse_to_sparse_"}  # between devices
_PRODUCTS = (torch.sparse_coo, torch.sparse_csr)
_BY_ROWS = (torch.sparse_csr, torch.sparse_bsr)


def sparse_kernel(operator: Any, key: str) -> Callable[..., Any]:
    """Return the kernel of an operator for sparse tensors, from that of the CPU for the dispatch key."""
    name = operator._schema.name.partition("::")[2]
    written = written_arguments(operator)
    compute = over_values(operator)
    redispatch, keys = operator.redispatch, torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def structure(*args: Any, **keywords: Any) -> Any:
        opened = open_torch_device(_device([*args, *keywords.values()]))
        with torch.cuda.device(opened.device.index):
            return redispatch(keys, *args, **keywords)

    def kernel(*args: Any, **keywords: Any) -> Any:
        arguments = [*args, *keywords.values()]
        opened = open_torch_device(_device(arguments))
        if name not in _COPIES:
            _refuse_others(arguments, torch.device("cuda", opened.device.index))
        if not values.is_computed():
            if written:
                raise _needs_values(name)
            return _without_values(name, args, opened)
        given, named = [_on_host(each) for each in args], {at: _on_host(each) for at, each in keywords.items()}
        result = compute(*given, **named)
        if not written:
            return sparse_on_device(result, opened)
        for at, argument in written.items():
            if at < len(args):
                _write(args[at], given[at], opened)
            else:
                _write(keywords[argument], named[argument], opened)
        at, argument = next(iter(written.items()))
        return args[at] if at < len(args) else keywords[argument]

    return structure if name in _STRUCTURE else kernel


def _device(arguments: list[Any]) -> torch.device | None:
    """Return the device of the first tensor on a device, or the one that is asked for."""
    found = None
    for each in arguments:
        if isinstance(each, torch.Tensor) and each.is_cuda:
            return each.device
        if isinstance(each, torch.device) and each.type == "cuda":
            found = each
        elif isinstance(each, (list, tuple)):
            found = _device([*each]) or found
    return found


def _refuse_others(arguments: list[Any], device: torch.device) -> None:
    """Raise PyTorch's error unless all tensors are on the device. Numbers may be on the CPU."""
    for each in arguments:
        if isinstance(each, (list, tuple)):
            _refuse_others([*each], device)
        elif isinstance(each, torch.Tensor) and each.device != device and (each.is_cuda or each.dim()):
            raise mixed_devices(device, each.device)


def _without_values(name: str, args: tuple[Any, ...], opened: OpenDevice) -> torch.Tensor:
    """Return the result of an operator without values. Raises DataDependent if its size depends on them."""
    sparse = [each for each in args if isinstance(each, torch.Tensor) and each.layout is not torch.strided]
    if name == "_coalesce":
        return _coalesced(args[0], opened)
    if name == "clone":
        return _joined([each.clone() for each in _parts(args[0])], args[0])
    if name == "mm" and len(sparse) == 2 and args[0].layout in _PRODUCTS:
        return _product(args[0], args[1], opened)
    if name == "_to_sparse" and args[0].layout is torch.sparse_csr and args[0].dim() == 2:
        return _as_coordinates(args[0])
    if name == "_to_dense":
        shape, dtype = args[0].shape, args[1] if len(args) > 1 and args[1] is not None else args[0].dtype
    elif name in ("mm", "addmm", "mv") and len(sparse) == 1:
        left, right = args[-2:]
        shape, dtype = torch.Size([left.shape[0], *right.shape[1:]]), left.dtype
    else:
        raise _needs_values(name)
    return adopt(torch.empty(shape, dtype=dtype, device="meta"), opened)


def _coalesced(tensor: torch.Tensor, opened: OpenDevice) -> torch.Tensor:
    """Return a tensor without equal indices, of which none are assumed. They are sorted with their places before."""
    indices, elements = _parts(tensor)
    dims, found = indices.shape
    count, nbytes = distinct_indices(found), found * 8
    with Scratch(opened) as scratch:
        if found > 1:
            places = [scratch.take(nbytes) for _ in range(3)]
            scratch.free(scratch.take(pair_sort_bytes(found, 8, 8)))
            if dims == 1:  # the sorted indices are the result
                scratch.free(places[0])
        made = adopt(torch.empty((dims, count), dtype=torch.int64, device="meta"), opened)
        shape = (count, *elements.shape[1:])
        kept = adopt(torch.empty(shape, dtype=elements.dtype, device="meta"), opened)
    return torch.sparse_coo_tensor(made, kept, tensor.shape, check_invariants=False, is_coalesced=True)


def _product(left: torch.Tensor, right: torch.Tensor, opened: OpenDevice) -> torch.Tensor:
    """Return the product of two sparse matrices, with the most elements that it may have."""
    shape = torch.Size([left.shape[0], right.shape[1]])
    count = product_elements(left._nnz(), right._nnz(), *shape)
    first = _parts(left)[0]
    sizes = [(2, count)] if left.layout is torch.sparse_coo else [(shape[0] + 1,), (count,)]
    parts = [torch.empty(size, dtype=first.dtype, device="meta") for size in sizes]
    parts.append(torch.empty(count, dtype=left.dtype, device="meta"))
    made = [adopt(each, opened) for each in parts]
    if left.layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(*made, shape, check_invariants=False, is_coalesced=True)
    return torch.sparse_csr_tensor(*made, shape, check_invariants=False)


def _as_coordinates(tensor: torch.Tensor) -> torch.Tensor:
    """Return a matrix of compressed rows with coordinates. The elements stay where they are."""
    rows, columns, elements = _parts(tensor)
    indices = torch._convert_indices_from_csr_to_coo(rows, columns)
    return torch.sparse_coo_tensor(indices, elements, tensor.shape, check_invariants=False, is_coalesced=True)


def _needs_values(name: str) -> values.DataDependent:
    return values.needs_values(f"the sparse operator {name}()")


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the indices and the elements of a sparse tensor."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in _BY_ROWS:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]


def _joined(parts: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """Return a sparse tensor of other parts."""
    if like.layout is torch.sparse_coo:
        indices, elements = parts
        return torch.sparse_coo_tensor(
            indices, elements, like.shape, check_invariants=False, is_coalesced=like.is_coalesced()
        )
    return torch.sparse_compressed_tensor(*parts, like.shape, layout=like.layout, check_invariants=False)


def _on_host(argument: Any) -> Any:
    """Return an argument over the values, on the CPU."""
    if isinstance(argument, torch.Tensor) and argument.is_cuda:
        if argument.layout is torch.strided:
            return alias(argument)
        return _joined([alias(each) for each in _parts(argument)], argument)
    if isinstance(argument, (list, tuple)):
        return [_on_host(each) for each in argument]
    return torch.device("cpu") if isinstance(argument, torch.device) else argument


def sparse_on_device(result: Any, opened: OpenDevice) -> Any:
    """Return a result of the CPU, sparse or not, as one of the device."""
    if isinstance(result, (list, tuple)):
        return type(result)(sparse_on_device(each, opened) for each in result)
    if not isinstance(result, torch.Tensor):
        return result
    if result.layout is torch.strided:
        return adopt(result.clone() if result._is_view() else result, opened)
    return _joined([adopt(each.clone(), opened) for each in _parts(result)], result)


def _write(target: torch.Tensor, changed: torch.Tensor, opened: OpenDevice) -> None:
    """Give a tensor that an operator has written the new values, and new memory if that is another one."""
    if not target.is_cuda:
        return
    if target.layout is torch.strided:
        if target.shape != changed.shape:
            target.resize_(changed.shape)
        if memory_of(target).values._cdata != changed.untyped_storage()._cdata:
            alias(target).copy_(changed)
        return
    pairs = zip(_parts(target), _parts(changed), strict=True)
    if target.shape != changed.shape or not all(
        memory_of(one).values._cdata == other.untyped_storage()._cdata and one.shape == other.shape
        for one, other in pairs
    ):
        target.data = sparse_on_device(changed, opened)
