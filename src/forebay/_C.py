"""Functions of `torch._C` that programs call although they are private."""  # noqa: N999 -- PyTorch's name

from __future__ import annotations

from collections.abc import Callable

from forebay.cuda._kind import CUDA
from forebay.runtime.allocator import oom_observers
from forebay.runtime.devices import open_device

__all__ = ["_cuda_attach_out_of_memory_observer"]


def _cuda_attach_out_of_memory_observer(observer: Callable[[int, int, int, int], object]) -> None:
    """Register a function that is called before OutOfMemory is raised on any CUDA device.

    It is called as `observer(index, requested, total, free)`, as `forebay.mtia.attach_out_of_memory_observer` states.
    Does not initialise CUDA. (`torch._C._cuda_attach_out_of_memory_observer`)
    """
    opened = open_device.open_devices(CUDA.name).devices
    oom_observers.attach(CUDA.name, observer, [each.allocator for each in opened])
