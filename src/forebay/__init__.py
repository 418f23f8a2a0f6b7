"""One accelerator runtime: devices, streams, events, a caching allocator and memory diagnostics."""

from typing import Any as _Any

_why_no_core: Exception | None = None
try:
    from forebay._core import Block
except Exception as _why:  # noqa: BLE001 - an ImportError, or anything where the file is damaged; see __getattr__
    _why_no_core = _why
else:
    from forebay import _wiring, backends, memory, random  # noqa: F401 -- the first sets hooks
    from forebay._base.device_spec import Device as device  # noqa: N813 - PyTorch's name
    from forebay._base.dtypes import DType as dtype  # noqa: N813 - as above
    from forebay._base.dtypes import (
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
    from forebay._base.layouts import (
        Size,
        channels_last,
        channels_last_3d,
        contiguous_format,
        layout,
        memory_format,
        preserve_format,
        strided,
    )
    from forebay._utils import _register_device_module as _register_device_module  # private: not in __all__
    from forebay._utils import get_device_module
    from forebay.backends import why_not
    from forebay.errors import (
        DeviceError,
        ForebayError,
        ForebayWarning,
        Forked,
        OutOfMemory,
        Unsupported,
        WrongState,
    )
    from forebay.names import torch_backends as _torch_backends
    from forebay.names.cpu_tensor_types import (
        BFloat16Tensor,
        BoolTensor,
        ByteTensor,
        CharTensor,
        DoubleTensor,
        FloatTensor,
        HalfTensor,
        IntTensor,
        LongTensor,
        ShortTensor,
    )
    from forebay.names.float32_precision import get_float32_matmul_precision, set_float32_matmul_precision
    from forebay.names.grad_mode import (
        enable_grad,
        inference_mode,
        is_grad_enabled,
        is_inference_mode_enabled,
        no_grad,
        set_grad_enabled,
    )
    from forebay.names.tensor_queries import equal, is_complex, is_floating_point, is_storage, is_tensor, numel
    from forebay.names.type_info import finfo, iinfo
    from forebay.runtime.devices.current import (
        current_device,
        get_default_device,
        set_default_device,
        set_device,
        use_device,
    )
    from forebay.runtime.devices.open_device import device_count
    from forebay.runtime.lifecycle.emulation import emulate
    from forebay.runtime.random.generator import (
        Generator,
        get_rng_state,
        initial_seed,
        manual_seed,
        seed,
        set_rng_state,
    )
    from forebay.runtime.streams.event import Event
    from forebay.runtime.streams.stream import Stream, current_stream, default_stream, set_stream, synchronize
    from forebay.runtime.tensors.creation import (
        allocate,
        arange,
        as_tensor,
        empty,
        empty_pinned,
        from_numpy,
        full,
        ones,
        tensor,
        zeros,
    )
    from forebay.runtime.tensors.creation_like import empty_like, full_like, ones_like, zeros_like
    from forebay.runtime.tensors.dlpack import from_dlpack
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
    from forebay.runtime.tensors.random_parameters import normal, poisson
    from forebay.runtime.tensors.random_permutation import randperm
    from forebay.runtime.tensors.tensor import Tensor
    from forebay.storage import TypedStorage, UntypedStorage

    AcceleratorError = DeviceError
    OutOfMemoryError = OutOfMemory

    # A traceback shows the name that a program catches.
    for _error in (DeviceError, Forked, OutOfMemory, ForebayError, ForebayWarning, Unsupported, WrongState):
        _error.__module__ = "forebay"
    for _query in ("cuda", "cudnn", "mps"):  # `torch.backends.cuda`, … beside forebay's own backends
        setattr(backends, _query, getattr(_torch_backends, _query))

# Names that hide Python's (`bool`, `float`, `int`) and `bfloat16`, which needs a package, are in __getattr__ only.
__all__ = [
    "AcceleratorError",
    "BFloat16Tensor",
    "Block",
    "BoolTensor",
    "ByteTensor",
    "CharTensor",
    "DeviceError",
    "DoubleTensor",
    "Event",
    "FloatTensor",
    "ForebayError",
    "ForebayWarning",
    "Forked",
    "Generator",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "OutOfMemory",
    "OutOfMemoryError",
    "ShortTensor",
    "Size",
    "Stream",
    "Tensor",
    "TypedStorage",
    "Unsupported",
    "UntypedStorage",
    "WrongState",
    "__version__",
    "allocate",
    "arange",
    "as_tensor",
    "bernoulli",
    "channels_last",
    "channels_last_3d",
    "complex64",
    "complex128",
    "contiguous_format",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "dtype",
    "empty",
    "empty_like",
    "empty_pinned",
    "emulate",
    "enable_grad",
    "equal",
    "exponential",
    "finfo",
    "float16",
    "float32",
    "float64",
    "from_dlpack",
    "from_numpy",
    "full",
    "full_like",
    "get_default_device",
    "get_device_module",
    "get_float32_matmul_precision",
    "get_rng_state",
    "iinfo",
    "inference_mode",
    "initial_seed",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_complex",
    "is_floating_point",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "is_storage",
    "is_tensor",
    "layout",
    "manual_seed",
    "memory",
    "memory_format",
    "no_grad",
    "normal",
    "numel",
    "ones",
    "ones_like",
    "poisson",
    "preserve_format",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "random",
    "randperm",
    "seed",
    "set_default_device",
    "set_device",
    "set_float32_matmul_precision",
    "set_grad_enabled",
    "set_rng_state",
    "set_stream",
    "strided",
    "synchronize",
    "tensor",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "use_device",
    "why_not",
    "zeros",
    "zeros_like",
]


# Imported at their first use.
_MODULES = ("_C", "_utils", "accelerator", "cuda", "distributed", "mps", "mtia", "storage", "types", "version", "xpu")
_EXTENSION = ("load_ipython_extension", "unload_ipython_extension")  # `%load_ext forebay` in a notebook


def __getattr__(name: str) -> _Any:
    """Import what most programs do not need, at its first use.

    Without the compiled core the package can still be imported, so that `forebay doctor` runs; every public name then
    raises the reason.
    """
    if name == "__version__":
        from forebay._base.own_version import own_version

        return own_version()
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    dtypes = import_module("forebay._base.dtypes")  # an import from the package would call this function again
    if _why_no_core is not None and name in {*__all__, *_EXTENSION, *dtypes.NAMES}:
        reason = f"{type(_why_no_core).__name__}: {_why_no_core}".partition("\n")[0]
        message = f"forebay's compiled core does not load ({reason}); `forebay doctor` reports the remedy"
        raise ImportError(message, name="forebay._core") from _why_no_core
    if name in _MODULES:
        return import_module(f"forebay.{name}")
    if name in _EXTENSION:
        return getattr(import_module("forebay.interop.torch.fit_magic"), name)
    if name in dtypes.NAMES:
        return dtypes.named(name)
    if name.endswith("Storage"):
        storages = import_module("forebay.names.cpu_storages")
        if name in storages.__all__:
            return getattr(storages, name)
    if _why_no_core is None and name[0] != "_":
        others = import_module("forebay.names.other_names")
        if hasattr(others, name):
            return getattr(others, name)
        raise import_module("forebay.errors").NoArithmetic(__name__, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
