"""One accelerator runtime: devices, streams, events, a caching allocator, and the story of where the memory went."""

from typing import Any as _Any

_why_no_core: Exception | None = None
try:
    from forebay._core import Block
except Exception as _why:  # noqa: BLE001 - an ImportError, or anything where the file is damaged; see __getattr__
    _why_no_core = _why
else:
    from forebay import _oom_advice, memory, random  # noqa: F401 -- the first is there to be asked
    from forebay.backends import why_not
    from forebay.device_spec import Device
    from forebay.dtypes import (
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
    from forebay.errors import (
        DeviceError,
        ForebayError,
        ForebayWarning,
        Forked,
        OutOfMemory,
        Unsupported,
        WrongState,
    )
    from forebay.interop import multiprocessing as _multiprocessing  # noqa: F401 -- it tells Python's of tensors
    from forebay.runtime.devices.current import current_device, reopen, set_device, use_device
    from forebay.runtime.devices.open_device import device_count
    from forebay.runtime.lifecycle.emulation import emulate
    from forebay.runtime.lifecycle.exit_and_fork import EXIT_SECONDS as _EXIT_SECONDS  # noqa: F401 -- its handlers are there now
    from forebay.runtime.random.generator import Generator, manual_seed
    from forebay.runtime.streams.event import Event
    from forebay.runtime.streams.stream import Stream, current_stream, default_stream, set_stream, synchronize
    from forebay.runtime.tensors.creation import (
        allocate,
        empty,
        empty_pinned,
        from_dlpack,
        from_numpy,
        full,
        tensor,
        zeros,
    )
    from forebay.runtime.tensors.random_creation import (
        bernoulli,
        exponential,
        rand,
        rand_like,
        randint,
        randint_like,
        randn,
        randn_like,
    )
    from forebay.runtime.tensors.random_permutation import randperm
    from forebay.runtime.tensors.tensor import Tensor

    # A traceback shows the name that a program catches.
    for _error in (DeviceError, Forked, OutOfMemory, ForebayError, ForebayWarning, Unsupported, WrongState):
        _error.__module__ = "forebay"

# Without `bfloat16`, see below: `from forebay import *` must not need its package.
__all__ = [
    "Block",
    "Device",
    "DeviceError",
    "Event",
    "ForebayError",
    "ForebayWarning",
    "Forked",
    "Generator",
    "OutOfMemory",
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

    Without the compiled core there is nothing else: the package can be imported, so that `forebay doctor` runs, and
    every public name raises the reason.
    """
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("forebay")
        except PackageNotFoundError:  # it runs from its sources, which does not make it fail
            return "0+source"
    if _why_no_core is not None and name in {*__all__, "bfloat16"}:
        said = f"{type(_why_no_core).__name__}: {_why_no_core}".partition("\n")[0]
        message = f"forebay's compiled core does not load ({said}); `forebay doctor` says what to do"
        raise ImportError(message, name="forebay._core") from _why_no_core
    if name in _FACES:
        from importlib import import_module

        return import_module(f"forebay.{name}")
    if name == "bfloat16":
        from forebay import dtypes

        return dtypes.bfloat16
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
