"""Checks of compiled kernels: shared memory, registers and spills, and accesses outside the memory of tensors.

A kernel is checked when Triton loads it: before that, it raises an error for too much shared memory, which
`triton.autotune` catches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

from forebay._base.kernel_checks import KernelCheck
from forebay.interop.torch.devices.python_names import NameReplacements
from forebay.interop.torch.processes import checked_kernels
from forebay.interop.torch.triton.arguments import OutsideAccess
from forebay.interop.torch.triton.resources import resources

__all__ = ["check_loaded", "note_access"]


def check_loaded(names: NameReplacements) -> None:
    """Check each kernel that Triton, which is imported, loads from now on."""
    compiled: Any = import_module("triton.compiler.compiler").CompiledKernel
    names.replace(compiled, "_init_handles", _noting(compiled._init_handles))


def _noting(load: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(load)
    def run(self: Any) -> Any:
        if checked_kernels.is_checking():
            _note(self)
        return load(self)

    return run


def _note(kernel: Any) -> None:
    metadata, driver = kernel.metadata, import_module("triton.runtime.driver").driver.active
    limits = driver.utils.get_device_properties(driver.get_current_device())
    function = getattr(getattr(kernel.src, "fn", None), "fn", None)
    code = getattr(function, "__code__", None)
    taken = resources(kernel.kernel) if isinstance(kernel.kernel, bytes) else None
    checked_kernels.note(
        KernelCheck(
            metadata.name,
            f"{code.co_filename}:{code.co_firstlineno}" if code is not None else "",
            f"sm_{metadata.target.arch}",
            metadata.num_warps,
            metadata.shared,
            limits["max_shared_mem"],
            None if taken is None else taken.registers,
            None if taken is None else taken.spilled,
        )
    )


def note_access(access: OutsideAccess) -> None:
    """Note an access outside the memory of tensors."""
    checked_kernels.note_outside(access.kernel, f"{access.verb} outside a tensor: {access.where}")
