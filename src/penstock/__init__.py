"""One accelerator runtime: devices, streams, events, a caching allocator, and the story of where the memory went."""

from typing import Any as _Any

_why_no_core: Exception | None = None
try:
    from penstock._core import Block
except Exception as _why:  # noqa: BLE001 - an ImportError, or anything where the file is damaged; see __getattr__
    _why_no_core = _why
else:
    from penstock import _advising, memory, random  # noqa: F401 -- the first is there to be asked
    from penstock.backends import why_not
    from penstock.device import Device
    from penstock.dtypes import (
        bool_,
        complex64,
        complex128,
        float16,
        float32,
        float64,
        int8,
        int16,
        int32,
        int64,
        uint8,
        uint16,
        uint32,
        uint64,
    )
    from penstock.errors import (
        DeviceError,
        Forked,
        OutOfMemory,
        PenstockError,
        PenstockWarning,
        Unsupported,
        WrongState,
    )
    from penstock.interop import multiprocessing as _multiprocessing  # noqa: F401 -- it tells Python's of tensors
    from penstock.runtime.creation import allocate, empty, empty_pinned, from_dlpack, from_numpy, full, tensor, zeros
    from penstock.runtime.current import current_device, reopen, set_device, use_device
    from penstock.runtime.emulation import emulate
    from penstock.runtime.event import Event
    from penstock.runtime.generator import Generator, manual_seed
    from penstock.runtime.lifecycle import EXIT_SECONDS as _EXIT_SECONDS  # noqa: F401 -- its handlers are there now
    from penstock.runtime.open_device import device_count
    from penstock.runtime.random_creation import (
        bernoulli,
        exponential,
        rand,
        rand_like,
        randint,
        randint_like,
        randn,
        randn_like,
    )
    from penstock.runtime.random_permutation import randperm
    from penstock.runtime.stream import Stream, current_stream, default_stream, set_stream, synchronize
    from penstock.runtime.tensor import Tensor

    # A traceback shows the name that a program catches.
    for _error in (DeviceError, Forked, OutOfMemory, PenstockError, PenstockWarning, Unsupported, WrongState):
        _error.__module__ = "penstock"

# Without `bfloat16`, see below: `from penstock import *` must not need its package.
__all__ = [
    "Block",
    "Device",
    "DeviceError",
    "Event",
    "Forked",
    "Generator",
    "OutOfMemory",
    "PenstockError",
    "PenstockWarning",
    "Stream",
    "Tensor",
    "Unsupported",
    "WrongState",
    "__version__",
    "allocate",
    "bernoulli",
    "bool_",
    "complex64",
    "complex128",
    "current_device",
    "current_stream",
    "default_stream",
    "device_count",
    "empty",
    "empty_pinned",
    "emulate",
    "exponential",
    "float16",
    "float32",
    "float64",
    "from_dlpack",
    "from_numpy",
    "full",
    "int8",
    "int16",
    "int32",
    "int64",
    "manual_seed",
    "memory",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "random",
    "randperm",
    "reopen",
    "set_device",
    "set_stream",
    "synchronize",
    "tensor",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "use_device",
    "why_not",
    "zeros",
]


_FACES = ("accelerator", "cuda", "mps", "mtia")  # imported when they are asked for


def __getattr__(name: str) -> _Any:
    """What costs an import that most programs do not need.

    Without the compiled core there is nothing else: the package can be imported, so that `penstock doctor` runs, and
    every public name raises the reason.
    """
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("penstock")
        except PackageNotFoundError:  # it runs from its sources, which does not make it fail
            return "0+source"
    if _why_no_core is not None and name in {*__all__, "bfloat16"}:
        said = f"{type(_why_no_core).__name__}: {_why_no_core}".partition("\n")[0]
        message = f"penstock's compiled core does not load ({said}); `penstock doctor` says what to do"
        raise ImportError(message, name="penstock._core") from _why_no_core
    if name in _FACES:
        from importlib import import_module

        return import_module(f"penstock.{name}")
    if name == "bfloat16":
        from penstock import dtypes

        return dtypes.bfloat16
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
