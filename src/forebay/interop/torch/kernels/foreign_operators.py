"""Operators of other packages on emulated devices: their kernels for the CPU, or their fake kernels without values.

# Note [Operators of other packages]
A package adds operators to PyTorch's dispatcher at any time, from C++ or Python, with kernels for some devices. A
backend fallback for the key CUDA serves all that have no kernel for CUDA: it needs no list, and no knowledge of when a
package is imported. Kernels for CUDA in a native library would read the addresses of emulated tensors, so they are
replaced by the same fallback, when the patch begins and after each library that PyTorch loads. Kernels in Python are
kept, as they call PyTorch's operators. A kernel for all devices serves the CPU, too. Without values, the fake kernel
tells the layouts; where it is missing or needs values, the CPU's kernel computes on zeros, which is listed as an
assumption. Rejected: a kernel for each operator that is known when the patch begins, as most packages are imported
after it.
Test: tests/interop/torch/kernels/test_foreign_operators.py::test_operator_with_a_kernel_of_the_cpu_runs
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Never

import torch

from forebay.errors import ForebayError, Unsupported
from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.arguments import forget_values, tensors_of
from forebay.interop.torch.kernels.generic import generic_kernel
from forebay.interop.torch.kernels.known_values import adopt_layouts, known_values
from forebay.interop.torch.kernels.schemas import written_arguments
from forebay.interop.torch.processes import assumed_values, unread_values

__all__ = ["MissingKernel", "foreign_kernel", "native_cuda_kernels"]

_has_own_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_OWN = ("aten::", "c10d::")  # PyTorch's operators, which have kernels of their own here
_SHOWN = ("CPU", "Meta", "QuantizedCPU", "MPS", "XPU", "SparseCPU", "BackendSelect", "Autograd")


def _has_kernel(name: str, key: str) -> bool:
    """Return True if an operator has a kernel for a device, or one for all devices."""
    return any(_has_own_kernel(name, each) for each in (key, "CompositeExplicitAutograd"))


class MissingKernel(Unsupported, NotImplementedError):
    """An operator of another package has no kernel with which an emulated device could compute."""


def native_cuda_kernels() -> Iterator[str]:
    """Yield the operators of other packages whose kernels for CUDA are native code.

    Those without a kernel of the CPU, too: else theirs would read addresses of emulated tensors.
    """
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith(_OWN) and _has_own_kernel(name, "CUDA"):
            places = [line for line in torch._C._dispatch_dump(name).splitlines() if line.startswith("CUDA: ")]
            if places and ".py:" not in places[0]:
                yield name


def foreign_kernel(operator: Any) -> Callable[..., Any]:
    """Return the kernel of an operator that has none for CUDA. Raises an error if it has no other either."""
    name = operator._schema.name + (f".{operator._overloadname}" if operator._overloadname != "default" else "")
    if name.startswith("aten::"):
        return _refusing(name)
    compute = generic_kernel(operator, values.device, is_foreign=True)
    written = written_arguments(operator)

    def kernel(*args: Any, **keywords: Any) -> Any:
        has_kernel = _has_kernel(name, "CPU")
        if values.is_computed():
            if not has_kernel:
                _refuse(name)
            return compute(*args, **keywords)
        if _has_kernel(name, "Meta"):
            try:
                return compute(*args, **keywords)
            except Exception as error:
                is_of_device = isinstance(error, (ForebayError, MemoryError, torch.OutOfMemoryError))
                if isinstance(error, values.DataDependent) and not values.is_strict():
                    unread_values.withdraw(error.line)
                elif is_of_device or not has_kernel:
                    raise
        if not has_kernel:
            _refuse(name)
        if values.is_strict():
            raise values.needs_values(f"{name}()")
        forget_values([args[at] if at < len(args) else keywords.get(key) for at, key in written.items()])
        return _on_zeros(name, operator, args, keywords)

    kernel.__name__ = name
    return kernel


def _refusing(name: str) -> Callable[..., Any]:
    """Return a kernel that raises PyTorch's error, as on a GPU, for one of its operators that only the CPU has."""

    def kernel(*_: Any, **__: Any) -> Never:
        available = ", ".join(key for key in _SHOWN if _has_own_kernel(name, key))
        raise NotImplementedError(
            f"Could not run '{name}' with arguments from the 'CUDA' backend. This could be because the operator "
            "doesn't exist for this backend, or was omitted during the selective/custom build process (if using custom "
            f"build). '{name}' is only available for these backends: [{available}]."
        )

    return kernel


def _refuse(name: str) -> Never:
    if _has_kernel(name, "Meta"):
        step = "run without values, with --shapes-only (mode='shapes'), as it has a fake kernel"
    else:
        step = f"without values, a fake kernel is enough: @torch.library.register_fake('{name}')"
    raise MissingKernel(
        f"the operator {name} has no kernel for CUDA in this environment, and none for the CPU, with which emulated "
        f"devices compute. Install a build of its package with kernels for the CPU, register one with "
        f"@torch.library.register_kernel('{name}', 'cpu'), or {step}"
    )


def _on_zeros(name: str, operator: Any, args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """Return results with the layouts that the CPU's kernel returns for zeros in place of unknown values."""
    copies: dict[int, torch.Tensor] = {}
    unknown: list[torch.Tensor] = []
    given, named = ([_host(each, copies, unknown) for each in args],
                    {key: _host(each, copies, unknown) for key, each in keywords.items()})  # fmt: skip
    try:
        with torch.no_grad():
            found = operator(*given, **named)
    except Exception as error:
        raise values.needs_values(f"{name}()") from error
    if unknown:
        shapes = ", ".join(str([*each.shape]) for each in tensors_of(found)) or "no results"
        assumed_values.note(values.calling_line()[0], f"{shapes} ({name} of zeros), which decides a size")
    originals = {id(copies[id(each)]): each for each in tensors_of([*args, *keywords.values()]) if id(each) in copies}
    device = next(each.device for each in tensors_of([*args, *keywords.values()]) if each.is_cuda)
    return adopt_layouts(found, device, originals)


def _host(argument: Any, copies: dict[int, torch.Tensor], unknown: list[torch.Tensor]) -> Any:
    """Return an argument with tensors of the CPU in place of those of the device: what is known, otherwise zeros."""
    if isinstance(argument, torch.Tensor):
        if not argument.is_cuda:
            return argument
        if id(argument) not in copies:
            known = known_values(argument)
            if known is None:
                unknown.append(argument)
                known = torch.zeros(argument.shape, dtype=argument.dtype)
            copies[id(argument)] = known.clone()
        return copies[id(argument)]
    if isinstance(argument, (list, tuple)):
        return [_host(each, copies, unknown) for each in argument]
    return torch.device("cpu") if isinstance(argument, torch.device) else argument
