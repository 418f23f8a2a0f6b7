"""Registration of kernels for emulated devices in PyTorch's dispatcher."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from forebay.interop.torch.devices.graph_capture import capturable
from forebay.interop.torch.devices.pinned_memory import is_pinned_kernel
from forebay.interop.torch.kernels.generic import generic_kernel, view_kernel
from forebay.interop.torch.kernels.random_draws import RANDOM_KERNELS
from forebay.interop.torch.kernels.schemas import written_arguments
from forebay.interop.torch.kernels.sparse import SPARSE_KEYS, sparse_kernel

__all__ = ["Kernels"]

_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
# Composite operators that call kernels by the type of the device, and those with a kernel of CUDA's own.
_COMPOSITE = ("_foreach_", "_fused_", "_amp_", "copy_", "_index_put_impl_", "convolution", "convolution_backward")
# Operators that only the CPU has: programs get PyTorch's error, as on a GPU.
_OF_CPU = (
    "_add_relu", "_histogramdd_", "_sparse_mm_reduce_impl", "_spdiags", "_upsample_lanczos2d_aa", "histogram",
)  # fmt: skip


class Kernels:
    """All kernels of the emulated devices.

    Parameters
    ----------
    special : dict of str to callable
        Kernels by name of the operator and its overload, such as "aten::copy_", in place of the generic one.
    values_device : callable
        Return the device of the values: "cpu" or "meta".
    composites : dict of str to callable, optional
        Functions in place of operators that consist of others, which compute their gradients.
    """

    def __init__(
        self,
        special: dict[str, Callable[..., Any]],
        values_device: Callable[[], str],
        composites: dict[str, Callable[..., Any]] | None = None,
    ) -> None:
        self._libraries: dict[str, torch.library.Library] = {}
        self._special, self._values_device = special, values_device
        self._composites = composites or {}

    def register(self) -> None:
        """Register the kernels. PyTorch's own kernels for CUDA are replaced where the build has them."""
        for name, operator in _operators("aten"):
            if name.removeprefix("aten::").startswith(_OF_CPU):
                continue
            for key, added in SPARSE_KEYS.items():
                if _has_kernel(name, key):
                    self._add(name, sparse_kernel(operator, key), added)
            if (kernel := self._special.get(name)) is None:
                if not _needs_kernel(name):
                    continue
                if _is_view(operator):
                    self._add(name, view_kernel(operator))
                    continue
                kernel = generic_kernel(operator, self._values_device)
            if name not in RANDOM_KERNELS:  # forebay captures draws itself
                kernel = capturable(kernel, written_arguments(operator))
            self._add(name, kernel)
        self._add("aten::is_pinned", is_pinned_kernel, "CPU")
        for name, function in self._composites.items():
            for key in ("AutogradCUDA", "CUDA"):
                self._add(name, function, key)

        for name, kernel in self._special.items():
            if not name.startswith("aten::"):
                self._add(name, kernel)

    def remove(self) -> None:
        """Remove the kernels."""
        for library in self._libraries.values():
            library._destroy()
        self._libraries.clear()

    def _add(self, name: str, kernel: Callable[..., Any], key: str = "CUDA") -> None:
        space, _, short = name.partition("::")
        if space not in self._libraries:
            self._libraries[space] = torch.library.Library(space, "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._libraries[space].impl(short, kernel, key)


def _operators(space: str) -> Iterator[tuple[str, Any]]:
    """Yield all operators of a namespace with their names."""
    packets = getattr(torch.ops, space)
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith(f"{space}::"):
            short, _, overload = name.partition("::")[2].partition(".")
            try:
                yield name, getattr(getattr(packets, short), overload or "default")
            except (AttributeError, RuntimeError):  # without a Python name
                continue


def _needs_kernel(name: str) -> bool:
    short = name.partition("::")[2].partition(".")[0]
    if any(_has_kernel(name, key) for key in ("CPU", "CompositeExplicitAutogradNonFunctional")):
        return True
    return _has_kernel(name, "CompositeExplicitAutograd") and short.startswith(_COMPOSITE)


def _is_view(operator: Any) -> bool:
    """Return True if results share the memory of arguments that the operator does not write."""
    returned = [each.alias_info for each in operator._schema.returns]
    return bool(returned) and all(each is not None and not each.is_write for each in returned)
