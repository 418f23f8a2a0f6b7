"""Kernels of sparse COO tensors on emulated devices: those of the CPU, over the values of indices and elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.emulated_memory import adopt, alias, open_torch_device
from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["sparse_kernel", "sparse_on_device"]

_AS_SPARSE_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.SparseCPU)
# Operators that read neither indices nor elements.
_STRUCTURE = {
    "_coalesced_", "_dimI", "_dimV", "_indices", "_nnz", "_sparse_coo_tensor_with_dims_and_tensors", "_values",
    "dense_dim", "indices", "is_coalesced", "sparse_dim", "values",
}  # fmt: skip


def sparse_kernel(operator: Any) -> Callable[..., Any]:
    """Return the kernel of an operator for sparse tensors."""
    name = operator._schema.name.partition("::")[2]
    written = [each.alias_info is not None and each.alias_info.is_write for each in operator._schema.arguments]
    redispatch = operator.redispatch

    def structure(*args: Any, **keywords: Any) -> Any:
        return redispatch(_AS_SPARSE_CPU, *args, **keywords)

    def kernel(*args: Any, **keywords: Any) -> Any:
        if not values.is_computed():
            raise values.needs_values(f"the sparse operator {name}()")
        devices = [each.device for each in (*args, *keywords.values()) if isinstance(each, torch.Tensor)]
        device = next((each for each in devices if each.type == "cuda"), keywords.get("device"))
        result = operator(*map(_on_host, args), **{key: _on_host(each) for key, each in keywords.items()})
        opened = open_torch_device(device)
        if any(written):
            target = args[0]
            if target.is_sparse:
                _replace(target, result, opened)
            return target
        return sparse_on_device(result, opened)

    return structure if name in _STRUCTURE else kernel


def _on_host(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor) and argument.is_cuda:
        if not argument.is_sparse:
            return alias(argument)
        indices, elements = alias(argument._indices()), alias(argument._values())
        return torch.sparse_coo_tensor(
            indices, elements, argument.shape, check_invariants=False, is_coalesced=argument.is_coalesced()
        )
    if isinstance(argument, torch.device):
        return torch.device("cpu")
    return argument


def sparse_on_device(result: Any, opened: OpenDevice) -> Any:
    """Return a result of the CPU, sparse or not, as one of the device."""
    if not isinstance(result, torch.Tensor):
        return result
    if not result.is_sparse:
        return adopt(result.clone() if result._is_view() else result, opened)
    parts = [adopt(each.clone(), opened) for each in (result._indices(), result._values())]
    return _coo(parts[0], parts[1], result)


def _coo(indices: torch.Tensor, elements: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return torch.sparse_coo_tensor(
        indices, elements, like.shape, check_invariants=False, is_coalesced=like.is_coalesced()
    )


def _replace(target: torch.Tensor, result: torch.Tensor, opened: OpenDevice) -> None:
    """Give a sparse tensor new indices and elements."""
    made = sparse_on_device(result, opened)
    target.data = made
