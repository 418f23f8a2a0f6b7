"""Nested tensors with strides on emulated devices: the kernels of the CPU, over the values of the buffer.

The buffer of a nested tensor is a tensor of the device, and its sizes are on the CPU, as on a GPU. Without values, only
what reads no element is supported. C++ code of autograd asks for the sizes where it cannot pass on an exception: an
operator without a kernel there ends the process.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from forebay.errors import ForebayWarning, Unsupported
from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.arguments import tensors_of
from forebay.interop.torch.devices.emulated_memory import accessed_memory, adopt, alias, open_torch_device
from forebay.interop.torch.kernels.schemas import written_arguments
from forebay.interop.torch.kernels.wide_types import over_values
from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["NESTED_KERNELS", "NESTED_KEY", "nested_kernel", "nested_on_device"]

NESTED_KEY = "NestedTensorCUDA"
_AS_CPU = "NestedTensorCPU"
# Operators that read no element, or call others for the buffer.
_STRUCTURE = {
    "_nested_tensor_size", "_nested_tensor_storage_offsets", "_nested_tensor_strides", "_to_copy", "alias", "chunk",
    "clone", "copy_", "detach", "empty_like", "is_same_size", "narrow", "select", "split_with_sizes", "squeeze",
    "transpose", "unbind", "unsqueeze", "values", "view",
}  # fmt: skip


def nested_kernel(operator: Any) -> Callable[..., Any]:
    """Return the kernel of an operator for nested tensors of the device, from that for nested tensors of the CPU."""
    name = operator._schema.name.partition("::")[2]
    written = written_arguments(operator)
    compute = over_values(operator)
    redispatch, keys = operator.redispatch, torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _AS_CPU))

    def structure(*args: Any, **keywords: Any) -> Any:
        return redispatch(keys, *args, **keywords)

    def kernel(*args: Any, **keywords: Any) -> Any:
        if not values.is_computed():
            raise _unsupported(f"{name}() of nested tensors with strides is")
        result = compute(*map(_on_host, args), **{key: _on_host(each) for key, each in keywords.items()})
        for at, argument in written.items():
            return args[at] if at < len(args) else keywords[argument]
        device = next(each.device for each in tensors_of([*args, *keywords.values()]) if each.is_cuda)
        return nested_on_device(result, open_torch_device(device))

    return structure if name in _STRUCTURE else kernel


def nested_on_device(result: Any, opened: OpenDevice) -> Any:
    """Return a result of the CPU, nested or not, as one of the device."""
    if isinstance(result, (list, tuple)):
        return type(result)(nested_on_device(each, opened) for each in result)
    if not isinstance(result, torch.Tensor):
        return result
    if not result.is_nested:
        return adopt(result.clone() if result._is_view() else result, opened)
    if result.device.type != "cpu":
        raise _unsupported("nested tensors with strides are")
    whole = result.clone() if result._is_view() else result
    return _nested(adopt(_buffer(whole, whole.untyped_storage()), opened), whole)


def _on_host(argument: Any) -> Any:
    """Return an argument over the values, on the CPU."""
    if isinstance(argument, torch.Tensor) and argument.is_cuda:
        if argument.is_nested:
            return _nested(_buffer(argument, accessed_memory(argument).values), argument)
        return alias(argument)
    if isinstance(argument, (list, tuple)):
        return [_on_host(each) for each in argument]
    return torch.device("cpu") if isinstance(argument, torch.device) else argument


def _buffer(tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    """Return all elements of a storage with the type of a tensor."""
    buffer = torch.empty(0, dtype=tensor.dtype, device=storage.device)
    return buffer.set_(storage, 0, (storage.nbytes() // tensor.itemsize,), (1,))


def _nested(buffer: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a nested tensor over a buffer."""
    made: torch.Tensor = torch._nested_view_from_buffer(
        buffer, like._nested_tensor_size(), like._nested_tensor_strides(), like._nested_tensor_storage_offsets()
    )
    return made


def _unsupported(subject: str) -> Unsupported:
    return Unsupported(
        f"{subject} not supported on emulated devices without values: create them with layout=torch.jagged, or run "
        "with --compute (mode='compute')"
    )


def _is_left_aligned(given: torch.Tensor, mask: torch.Tensor) -> bool:
    """Return False, with which `torch.nn.TransformerEncoder` does not drop the padding."""
    warnings.warn(
        "on emulated devices, a transformer that would drop its padding in evaluation computes it, which takes more "
        "memory than on a GPU",
        ForebayWarning,
        stacklevel=2,
    )
    return False


NESTED_KERNELS: dict[str, Callable[..., Any]] = {"aten::_nested_tensor_from_mask_left_aligned": _is_left_aligned}
