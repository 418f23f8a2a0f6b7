"""Registration of kernels for emulated devices in PyTorch's dispatcher."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import cache, partial, wraps
from typing import Any

import torch

from forebay.interop.torch.devices import host_values
from forebay.interop.torch.devices.graph_capture import capturable
from forebay.interop.torch.devices.operator_libraries import choose_again, close_library, open_library
from forebay.interop.torch.devices.python_names import NameReplacements
from forebay.interop.torch.kernels.copies import COPY_KERNELS
from forebay.interop.torch.kernels.determinism import with_alert
from forebay.interop.torch.kernels.factories import FACTORY_KERNELS
from forebay.interop.torch.kernels.foreach import on_one_device
from forebay.interop.torch.kernels.foreign_operators import foreign_kernel, native_cuda_kernels
from forebay.interop.torch.kernels.generic import generic_kernel, view_kernel, with_tensors
from forebay.interop.torch.kernels.host_kernels import first_kernels, other_kernels
from forebay.interop.torch.kernels.known_values import with_known_values
from forebay.interop.torch.kernels.nested import NESTED_KEY, nested_kernel
from forebay.interop.torch.kernels.random_draws import RANDOM_KERNELS
from forebay.interop.torch.kernels.schemas import is_view, written_arguments
from forebay.interop.torch.kernels.sparse import SPARSE_KEYS, sparse_kernel
from forebay.interop.torch.kernels.stream_waits import waits_for_stream

__all__ = ["Kernels"]

_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
# Composite operators that call kernels by the type of the device, and those with a kernel of CUDA's own.
_COMPOSITE = (
    "_amp_", "_chunk_cat", "_foreach_", "_fused_", "_grouped_mm", "_index_put_impl_", "convolution",
    "convolution_backward", "copy_", "ldexp", "mode", "split_with_sizes_copy",
)  # fmt: skip
# Operators that only the CPU has: programs get PyTorch's error, as on a GPU.
_OF_CPU = (
    "_add_relu", "_histogramdd_", "_sparse_mm_reduce_impl", "_spdiags", "_upsample_lanczos2d_aa", "histogram",
)  # fmt: skip


class Kernels:
    """All kernels of the emulated devices.

    `special` has kernels in place of the generic one by name of the operator and its overload, such as "aten::copy_".
    `values_device` returns the device of the values: "cpu" or "meta". `composites` has functions in place of operators
    that consist of others, which compute their gradients.
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of replaced kernels
            for name in torch._C._dispatch_get_all_op_names():
                if name.startswith("aten::") and not name.removeprefix("aten::").startswith(_OF_CPU):
                    self._add_aten(name)
            if self._values_device() == "meta":
                self._add_host_kernels(first_kernels())
                host_values.before_first(lambda: self._add_host_kernels(other_kernels()))
            for name, function in self._composites.items():
                for key in ("AutogradCUDA", "CUDA"):
                    self._add(name, function, key)
            for name, kernel in self._special.items():
                if not name.startswith("aten::"):
                    self._add(name, kernel)
            self._libraries["_"] = open_library("_")
            self._libraries["_"].fallback(_foreign, "CUDA")
        self.replace_native()
        choose_again()

    def replace_native(self) -> None:
        """Replace kernels for CUDA of other packages' native libraries: Note [Operators of other packages]."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of replaced kernels
            for name in native_cuda_kernels():
                operator = _operator(name)
                if operator is not None and name not in self._special:
                    self._add(name, partial(_foreign, operator))

    def replace_loading(self, names: NameReplacements) -> None:
        """Replace the kernels of each native library that PyTorch loads from now on, too."""
        load = torch.ops.load_library

        @wraps(load)
        def load_library(path: Any) -> Any:
            loaded = load(path)
            self.replace_native()
            return loaded

        names.replace(torch.ops, "load_library", load_library)

    def remove(self) -> None:
        """Remove the kernels."""
        host_values.before_first(None)
        for library in self._libraries.values():
            close_library(library)
        self._libraries.clear()

    def _add_host_kernels(self, kernels: Mapping[str, Callable[..., Any]]) -> None:
        for name, kernel in kernels.items():
            self._add(name, kernel, "CPU")
        choose_again()

    def _add_aten(self, name: str) -> None:
        for key, sparse in _sparse_kernels(name):
            self._add(name, sparse, key)
        nested = _nested_kernel(name)
        if nested is not None:
            self._add(name, nested, NESTED_KEY)
        operator, kernel = _operator(name), self._special.get(name)
        if kernel is None:
            kernel = _dense_kernel(name, self._values_device)
        elif operator is not None:
            kernel = with_tensors(operator, _recorded(name, operator, kernel))
        if operator is not None and kernel is not None:
            if name.startswith("aten::_foreach_"):
                kernel = on_one_device(operator, kernel)
            self._add(name, with_alert(name, kernel))

    def _add(self, name: str, kernel: Callable[..., Any], key: str = "CUDA") -> None:
        space, _, short = name.partition("::")
        if space not in self._libraries:
            self._libraries[space] = open_library(space)
        self._libraries[space].impl(short, kernel, key)


# These are cached for the process: a test suite calls patch() in each test.


def _foreign(operator: Any, *args: Any, **keywords: Any) -> Any:
    """Run an operator of another package."""
    return _foreign_kernel(operator)(*args, **keywords)


@cache
def _foreign_kernel(operator: Any) -> Callable[..., Any]:
    return _recorded(operator._schema.name, operator, foreign_kernel(operator))


@cache
def _operator(name: str) -> Any:
    """Return an operator, or None if it has no Python name."""
    space, _, short = name.partition("::")
    short, _, overload = short.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, space), short), overload or "default")
    except (AttributeError, RuntimeError):
        return None


@cache
def _sparse_kernels(name: str) -> tuple[tuple[str, Callable[..., Any]], ...]:
    """Return the kernels of an operator for sparse tensors, with their dispatch keys."""
    operator = _operator(name)
    if operator is None:
        return ()
    return tuple((added, sparse_kernel(operator, key)) for key, added in SPARSE_KEYS.items() if _has_kernel(name, key))


@cache
def _nested_kernel(name: str) -> Callable[..., Any] | None:
    """Return the kernel of an operator for nested tensors, or None if the CPU has none."""
    operator = _operator(name)
    return nested_kernel(operator) if operator is not None and _has_kernel(name, "NestedTensorCPU") else None


@cache
def _dense_kernel(name: str, values_device: Callable[[], str]) -> Callable[..., Any] | None:
    """Return the generic kernel of an operator, or None if it needs none."""
    operator = _operator(name)
    if operator is None or not _needs_kernel(name):
        return None
    if is_view(operator):
        return view_kernel(operator)
    return _recorded(name, operator, generic_kernel(operator, values_device))


def _recorded(name: str, operator: Any, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return the kernel with its recording in graphs."""
    if name in RANDOM_KERNELS:  # forebay captures draws itself
        return kernel
    if name not in COPY_KERNELS and name not in FACTORY_KERNELS:  # which note known values, or have none
        kernel = with_known_values(operator, kernel)
    return capturable(kernel, written_arguments(operator), waits_for_stream(operator))


def _needs_kernel(name: str) -> bool:
    short = name.partition("::")[2].partition(".")[0]
    if any(_has_kernel(name, key) for key in ("CPU", "CompositeExplicitAutogradNonFunctional")):
        return True
    return _has_kernel(name, "CompositeExplicitAutograd") and short.startswith(_COMPOSITE)
