"""Installation of CUDA's C++ interfaces in a PyTorch that has no driver: the device guard and the hooks.

# Note [Patched interfaces of PyTorch]
PyTorch keeps a table of device guards, one for each type of device, which change the current device and stream of C++
code such as the autograd engine, and an object of hooks that says whether CUDA exists. Both belong to the part of
PyTorch that needs NVIDIA's libraries. They are replaced by copies of objects that do nothing (the guard of meta
tensors, the hooks of a build without CUDA), in whose tables a few methods are functions of `_device_guard`; so is the
allocator of pinned memory that the hooks return, a copy of the host's. The positions of the methods are counted in the
header files that every wheel contains, bases first, as they differ between versions; if a name is missing there, the
patch raises Unsupported before it has changed anything. The guard stays while tensors are alive (Note [Tensors after
the end]). Rejected: a C++ extension, which needs a compiler at the user's and a build for each version; to replace
factories by functions that pin memory, which a `TorchFunctionMode` does not know.
Test: tests/interop/torch/devices/test_patching.py::test_backward_allocates_on_the_stream_of_the_forward_pass
"""

from __future__ import annotations

import ctypes
import re
from functools import cache
from pathlib import Path

import torch

from forebay.errors import Unsupported
from forebay.interop.torch.devices._device_guard import make_object, make_pinned_allocator

__all__ = ["CudaInterfaces", "method_slots"]

_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"  # c10::impl::device_guard_impl_registry
_HOOKS = "_ZN2at6detail12getCUDAHooksEv"  # at::detail::getCUDAHooks()
_HOST_ALLOCATOR = "_ZN3c1015GetCPUAllocatorEv"  # c10::GetCPUAllocator()
_CPU, _CUDA, _META = 0, 1, 14  # c10::DeviceType
_GUARD_METHODS = ("exchangeDevice", "getDevice", "setDevice", "uncheckedSetDevice", "deviceCount", "getStream",
                  "getDefaultStream", "exchangeStream", "record", "block", "destroyEvent", "queryEvent", "queryStream",
                  "synchronizeEvent", "synchronizeStream", "recordDataPtrOnStream")  # fmt: skip
_HOOK_METHODS = ("hasCUDA", "hasPrimaryContext", "isBuilt", "isAvailable", "init", "getPinnedMemoryAllocator",
                 "isPinnedPtr")  # fmt: skip
# Guards that stay, and PyTorch's own.
_kept: dict[int | None, int | None] = {}
_VIRTUAL = re.compile(r"\bvirtual\s+(~)?[^;{}()]*?(\w+)\s*\(")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def method_slots(*headers: str) -> dict[str, int]:
    """Return the position of each virtual method in the table of a class, whose bases come first.

    >>> method_slots("virtual ~A(); virtual int f() const = 0;  // virtual g()", "virtual bool h(int i) { return i; }")
    {'~A': 0, 'f': 2, 'h': 3}
    """
    slots: dict[str, int] = {}
    position = 0
    for header in headers:
        for destructor, name in _VIRTUAL.findall(_COMMENT.sub("", header)):
            key = f"~{name}" if destructor else name
            if key not in slots:  # else it overrides that of a base
                slots[key] = position
                position += 2 if destructor else 1  # two destructors: one also frees the memory
    return slots


class CudaInterfaces:
    """The guard and the hooks of the emulated devices.

    Raises
    ------
    Unsupported
        If this build of PyTorch has not the expected interfaces.
    """

    def __init__(self) -> None:
        folder = Path(torch.__file__).parent
        try:
            core = ctypes.CDLL(str(folder / "lib/libc10.so"))
            self._guards = (ctypes.c_void_p * (_META + 1)).in_dll(core, _GUARDS)
            find_allocator = getattr(core, _HOST_ALLOCATOR)
            find_hooks = getattr(ctypes.CDLL(str(folder / "lib/libtorch_cpu.so")), _HOOKS)
            headers = folder / "include"
            guard = (headers / "c10/core/impl/DeviceGuardImplInterface.h").read_text()
            base = (headers / "ATen/detail/AcceleratorHooksInterface.h").read_text()
            hooks = (headers / "ATen/detail/CUDAHooksInterface.h").read_text()
            guard_slots, hook_slots = method_slots(guard), method_slots(base, hooks)
            self._guard_slots = {name: guard_slots[name] for name in _GUARD_METHODS}
            allocator = (headers / "c10/core/Allocator.h").read_text().partition("struct C10_API Allocator {")[2]
            allocator_slots = method_slots(allocator.partition("\n};")[0])
            allocator_slots = {name: allocator_slots[name] for name in ("allocate", "raw_deleter")}
            self._hook_slots = {name: hook_slots[name] for name in _HOOK_METHODS if name in hook_slots}
        except (OSError, ValueError, AttributeError, KeyError) as error:
            raise Unsupported(f"PyTorch {torch.__version__} cannot emulate CUDA devices: {error!r}") from None
        if not (self._guards[_CPU] and self._guards[_META] and "hasCUDA" in self._hook_slots):
            raise Unsupported(
                f"PyTorch {torch.__version__} cannot emulate CUDA devices: it has no guard of meta tensors"
            )
        find_allocator.restype = find_hooks.restype = ctypes.c_void_p
        make_pinned_allocator(find_allocator(), allocator_slots)
        self._hooks = ctypes.cast(find_hooks(), ctypes.POINTER(ctypes.c_void_p))
        self._replaced: tuple[int | None, int | None] | None = None

    def install(self) -> None:
        """Replace PyTorch's guard and hooks."""
        guard, _ = _copy(self._guards[_META] or 0, *self._guard_slots.items())
        _, hooks = _copy(ctypes.addressof(self._hooks.contents), *self._hook_slots.items())
        before = self._guards[_CUDA]
        self._replaced = _kept.get(before, before), self._hooks[0]
        self._guards[_CUDA], self._hooks[0] = guard, hooks
        torch.empty(0, pin_memory=True)  # initializes CUDA in C++ code, which otherwise does not ask what is pinned

    def remove(self, *, keep_guard: bool = False) -> None:
        """Restore them, but not the guard if tensors of its devices are alive, which PyTorch's guard cannot serve."""
        if self._replaced is not None:
            guard, self._hooks[0] = self._replaced
            if keep_guard:
                _kept[self._guards[_CUDA]] = guard
            else:
                self._guards[_CUDA] = guard
            self._replaced = None


@cache
def _copy(template: int, *slots: tuple[str, int]) -> tuple[int, int]:
    """Copy an object of PyTorch, once in the process: the copy is never freed."""
    return make_object(template, dict(slots))
