"""Kernel of any operator for emulated devices: PyTorch's own kernel for the values, and memory for each new result.

The values are computed by the CPU's kernel or, without values, by the meta kernel, which knows the shapes. What the
operator writes is found in its schema.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from forebay.interop.torch.assumptions.sizes import sized_result
from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.arguments import tensors_of
from forebay.interop.torch.devices.emulated_memory import (
    adopt,
    alias,
    check_host,
    memory_of,
    mixed_devices,
    open_torch_device,
    resize_storage,
)  # fmt: skip
from forebay.interop.torch.devices.generators import host_generator
from forebay.interop.torch.kernels.argument_checks import is_refusal
from forebay.interop.torch.kernels.meta_results import meta_results
from forebay.interop.torch.kernels.nested import nested_on_device
from forebay.interop.torch.kernels.schemas import written_arguments
from forebay.interop.torch.kernels.sparse import sparse_on_device
from forebay.interop.torch.kernels.wide_types import on_host
from forebay.runtime.devices.open_device import OpenDevice

__all__ = [
    "ArgumentReader",
    "Operator",
    "caller_of",
    "generic_kernel",
    "replace_values",
    "view_kernel",
    "with_tensors",
]

Operator = Any  # torch._ops.OpOverload, which has no annotations
_TENSOR = torch._C.TensorType.get()
_NUMBERS = (bool, int, float, complex)
_AS_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_as_strided = torch.ops.aten.as_strided.default.redispatch
# Operators whose tensors may be on several devices.
_MIXED = {"copy_", "_copy_from", "_to_copy", "index", "index_put", "index_put_", "_index_put_impl_", "_foreach_copy_",
          "_unsafe_index", "_unsafe_index_put", "_nested_from_padded", "_amp_foreach_non_finite_check_and_unscale_",
          "set_", "_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"}  # fmt: skip


class ArgumentReader:
    """The arguments of one call as tensors over the values, and where the results belong."""

    __slots__ = ("aliases", "device", "elsewhere", "generator", "mixed", "originals", "values_device")

    def __init__(self, values_device: str, *, mixed: bool) -> None:
        self.device: torch.device | None = None
        self.elsewhere: torch.device | None = None  # of a tensor that the device cannot read
        self.generator: torch.Generator | None = None
        self.mixed = mixed
        self.values_device = values_device
        self.aliases: dict[int, torch.Tensor] = {}  # by the id of the original
        self.originals: dict[int, torch.Tensor] = {}  # by the id of the alias, in the same order

    def read(self, argument: Any) -> Any:
        """Return the argument with tensors over values in place of tensors of the device."""
        if isinstance(argument, torch.Tensor):
            return self._read_tensor(argument)
        if isinstance(argument, (list, tuple)):
            return [self.read(each) for each in argument]
        if isinstance(argument, torch.device) and argument.type == "cuda":
            self.device = self.device or argument
            return torch.device(self.values_device)
        if isinstance(argument, torch.Generator):
            self.generator = argument
            return None
        return argument

    def _read_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        device = tensor.device
        if device.type != "cuda":
            if tensor.dim() or device.type != "cpu":  # else a number
                self.elsewhere = device
            if device.type == "cpu":
                check_host(tensor)
            return tensor.to("meta") if self.values_device == "meta" and device.type == "cpu" else tensor
        if self.device is None:
            self.device = device
        elif device != self.device:
            self.elsewhere = device
        known = self.aliases.get(id(tensor))
        if known is None:
            known = alias(tensor)
            self.aliases[id(tensor)] = known
            self.originals[id(known)] = tensor
        return known

    def check_devices(self, written: Sequence[Any], copies: bool) -> None:
        """Raise an error unless all tensors may be where they are. A number that is only read may be on the CPU."""
        if self.device is None or not self.aliases:
            return
        elsewhere = None if self.mixed else self.elsewhere
        for each in tensors_of(written):
            if not each.is_cuda:
                if copies and self.values_device == "meta":
                    raise values.needs_values("a copy to the CPU")
                elsewhere = elsewhere if copies else each.device
        if elsewhere is not None:
            raise mixed_devices(self.device, elsewhere)

    def write_back(self) -> None:
        """Give the originals the shapes that the operator has changed."""
        for original, changed in zip(self.originals.values(), self.aliases.values(), strict=True):
            if changed.shape != original.shape or changed.stride() != original.stride():
                replace_values(original, changed)


def replace_values(original: torch.Tensor, values: torch.Tensor) -> None:
    """Make `original` a tensor over `values`, whose storage may have grown, or be another one."""
    memory = memory_of(original)
    source = original
    if memory.values._cdata != values.untyped_storage()._cdata:
        source = adopt(values, open_torch_device(original.device))
    elif memory.nbytes != memory.values.nbytes():  # views have the same storage as before
        resize_storage(original.untyped_storage(), memory, memory.values.nbytes())
    storage: Any = source.untyped_storage()
    torch.ops.aten.set_.source_Storage_storage_offset.redispatch(
        _AS_CPU, original, storage, values.storage_offset(), values.shape, values.stride()
    )


def caller_of(operator: Operator) -> Callable[[Sequence[Any], dict[str, Any]], Any]:
    """Return a function that calls an operator with positional and named arguments, which a kernel has received.

    PyTorch passes a number in place of a tensor as a number.
    """
    tensors = [at for at, argument in enumerate(operator._schema.arguments) if argument.type.isSubtypeOf(_TENSOR)]

    def call(args: Sequence[Any], keywords: dict[str, Any]) -> Any:
        if any(at < len(args) and isinstance(args[at], _NUMBERS) for at in tensors):
            return operator.overloadpacket(*args, **keywords)
        return operator(*args, **keywords)

    return call


def with_tensors(operator: Operator, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that receives tensors on the CPU for the numbers that PyTorch passes in place of tensors."""
    arguments = [*enumerate(operator._schema.arguments)]
    tensors = {at: argument.name for at, argument in arguments if argument.type.isSubtypeOf(_TENSOR)}

    def call(*args: Any, **keywords: Any) -> Any:
        for at, name in tensors.items():
            if at < len(args):
                if isinstance(args[at], _NUMBERS):
                    args = (*args[:at], _tensor_of(args[at]), *args[at + 1 :])
            elif isinstance(keywords.get(name), _NUMBERS):
                keywords[name] = _tensor_of(keywords[name])
        return kernel(*args, **keywords)

    return call if tensors else kernel


def _tensor_of(number: complex) -> torch.Tensor:
    """Return a number as a tensor of the type that PyTorch gives it."""
    dtype = {float: torch.float64, complex: torch.complex128}.get(type(number))
    return torch.tensor(number, dtype=dtype, device="cpu")


def generic_kernel(
    operator: Operator, values_device: Callable[[], str], *, is_foreign: bool = False
) -> Callable[..., Any]:
    """Return the kernel of an operator. One of another package may take tensors of the CPU, too, and return views."""
    name = operator._schema.name.partition("::")[2]
    mixed = is_foreign or name in _MIXED
    written = written_arguments(operator)
    returns_written = [any(alias_of.is_write for alias_of in [each.alias_info] if alias_of is not None)
                       for each in operator._schema.returns]  # fmt: skip
    names = [argument.name for argument in operator._schema.arguments]
    call = on_host(operator, caller_of(operator))
    draws = "generator" in names
    first = next(iter(written), 0)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        reader = ArgumentReader(values_device(), mixed=mixed)
        read = reader.read
        given = [read(each) for each in args]
        keywords = {key: read(each) for key, each in kwargs.items()}
        reader.check_devices(
            [args[at] if at < len(args) else kwargs.get(key) for at, key in written.items()], name == "_foreach_copy_"
        )
        if "pin_memory" in keywords:
            keywords["pin_memory"] = False
        if draws:
            keywords["generator"] = host_generator(reader.device or torch.device("cuda"), reader.generator)
            given = given[: names.index("generator")]
        try:
            results = call(given, keywords)
        except RuntimeError as error:  # of the meta device, if the size of the result depends on values
            if values.is_computed() or is_refusal(error):  # Note [Calls that a GPU refuses]
                raise
            if not (isinstance(error, NotImplementedError) or "meta tensor" in str(error)):
                raise
            if not returns_written:  # it returns nothing, and changes no shape
                return None
            found = meta_results(name, given)
            if all(returns_written):  # an overload whose arguments are the results
                for (at, key), made in zip(written.items(), tensors_of(found), strict=False):
                    (given[at] if at < len(given) else keywords[key]).resize_(made.shape)
            if found is None and not written:
                found = sized_result(name, {**dict(zip(names, args, strict=False)), **kwargs})
            if found is None:
                raise values.needs_values(f"{name}()") from None
            results = found
        if is_foreign:
            results = _views_of_arguments(results, reader)
        if written:
            reader.write_back()
            if not returns_written:
                return None
            if len(returns_written) == 1 and returns_written[0]:
                return args[first] if first < len(args) else kwargs[names[first]]
        opened = open_torch_device(reader.device)
        return _wrap(results, reader, opened)

    kernel.__name__ = name
    return kernel


def _wrap(result: Any, reader: ArgumentReader, opened: OpenDevice) -> Any:
    if isinstance(result, torch.Tensor):
        if result.is_nested:
            return nested_on_device(result, opened)
        if result.layout is not torch.strided:
            return sparse_on_device(result, opened)
        original = reader.originals.get(id(result))
        if result.is_cuda:
            return result
        return adopt(result, opened) if original is None else original
    if isinstance(result, (list, tuple)):
        return type(result)(_wrap(each, reader, opened) for each in result)
    return result


def _views_of_arguments(result: Any, reader: ArgumentReader) -> Any:
    """Return results with views of the device in place of those that share the values of an argument."""
    if isinstance(result, (list, tuple)):
        return type(result)(_views_of_arguments(each, reader) for each in result)
    if not isinstance(result, torch.Tensor) or id(result) in reader.originals or result.layout is not torch.strided:
        return result
    for original, known in zip(reader.originals.values(), reader.aliases.values(), strict=True):
        if result.dtype == known.dtype and torch._C._storage_id(result) == torch._C._storage_id(known):
            return _as_strided(_AS_CPU, original, result.shape, result.stride(), result.storage_offset())
    return result


def view_kernel(operator: Operator) -> Callable[..., Any]:
    """Return the kernel of an operator that returns views: PyTorch's own for the CPU, which reads no memory."""
    redispatch = operator.redispatch

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return redispatch(_AS_CPU, *args, **kwargs)

    return kernel
